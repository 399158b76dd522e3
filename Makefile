# Two commands do everything: make demo, make test. The rest is for people who change the code.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(if $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo ok),$(p))))
VENV ?= .venv
RUN = $(VENV)/bin/python
INSTALL = $(RUN) -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable
DEMO ?= runs/demo

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint types check docs java clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; install one, or say make PYTHON=/path/to/python3.11" >&2; exit 1; }
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

docs: $(VENV)/.installed  ## write docs/cli.md, the table of docs/reproduction.md, what benchmarks and experiments found
	$(RUN) docs/make_cli.py
	$(RUN) docs/make_reproduction.py
	$(RUN) docs/make_performance.py
	$(RUN) docs/make_systems.py

java: $(VENV)/.installed  ## compile dupmae_ir/java anew (wants a JDK 25: its javac made the class that is there)
	javac --release 21 -g:none -cp "$$($(RUN) -c 'from dupmae_ir.pyserini import find_jar; print(find_jar())')" \
	  -d dupmae_ir/java dupmae_ir/java/*.java

check: lint types test  ## all that CI runs

clean:  ## remove the environment, caches and demo files
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info runs/demo
