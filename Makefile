# make demo and make test are all a user needs; the other targets are for people who change the code.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(if $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo ok),$(p))))
VENV ?= .venv
RUN = $(VENV)/bin/python
INSTALL = $(RUN) -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable
DEMO ?= runs/demo

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint types check audit docs site java clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(INSTALL) .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what tests and training need into $(VENV)"
	$(INSTALL) '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## encode, search and evaluate the embedded collection
	$(RUN) -m dupmae_ir.demo --output $(DEMO)

test: $(VENV)/.installed-dev  ## the tests, in a few minutes
	$(RUN) -m pytest

test-all: $(VENV)/.installed-dev  ## the slow tests too
	$(RUN) -m pytest -m ''

lint: $(VENV)/.installed-dev  ## ruff: rules and formatting
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/.installed-dev  ## mypy
	$(RUN) -m mypy

audit: $(VENV)/.installed-dev  ## compare the pinned dependencies with the published advisories (needs the network)
	$(RUN) -m pip install -qq --disable-pip-version-check pip-audit
	$(RUN) -m pip_audit --local --skip-editable

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "installing what the site needs into $(VENV)"
	$(INSTALL) '.[docs]'
	@touch $@

docs: $(VENV)/.installed  ## write the generated pages and parts of pages in docs/, README.md and the model card
	$(RUN) docs/make_cli.py
	$(RUN) docs/make_python.py
	$(RUN) docs/make_architecture.py
	$(RUN) docs/make_tutorial.py
	$(RUN) docs/make_reproduction.py
	$(RUN) docs/make_performance.py
	$(RUN) docs/make_systems.py

site: $(VENV)/.installed-docs  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

java: $(VENV)/.installed  ## compile dupmae_ir/java (needs the javac of JDK 25, which compiled the committed class)
	javac --release 21 -g:none -cp "$$($(RUN) -c 'from dupmae_ir.pyserini import find_jar; print(find_jar())')" \
	  -d dupmae_ir/java dupmae_ir/java/*.java

check: lint types test site  ## everything that CI runs

clean:  ## remove the environment, caches and demo files
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist site *.egg-info runs/demo
