# make demo and make test are all a user needs; the other targets are for people who change the code.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,$(if $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo ok),$(p))))
VENV ?= .venv
RUN = $(VENV)/bin/python
PIP = $(RUN) -m pip --disable-pip-version-check
# HASHES=1: only the files whose sha256 is in constraints-hashes.txt are installed, and by pip.
HASHES ?=
INSTALL = $(if $(HASHES),$(PIP) install -qq --no-deps --no-build-isolation --editable,\
  $(RUN) tools/install.py --constraint constraints.txt --editable)
PINNED = $(if $(HASHES),$(PIP) install -qq --require-hashes --only-binary :all: --requirement constraints-hashes.txt)
DEMO ?= runs/demo
# Processes that run the tests: two, or one on a machine with one core. Each has its own JVM and its share of the cores.
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
WORKERS ?= $(if $(filter 1,$(CORES)),1,2)
THREADS = OMP_NUM_THREADS=$$(( $(CORES) > $(WORKERS) ? $(CORES) / $(WORKERS) : 1 ))
PYTEST = $(if $(filter 0 1,$(WORKERS)),$(RUN) -m pytest,$(THREADS) $(RUN) -m pytest -n $(WORKERS) --dist worksteal)

# Where it is set, each process that a test starts would compile torch and all else again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all integrations cluster lint types check audit hashes docs site wheel java clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV) (a few minutes the first time)"
	$(PINNED)
	$(INSTALL) .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what tests and training need into $(VENV)"
	$(INSTALL) '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## encode, search and evaluate the embedded collection
	$(RUN) -m dupmae_ir.demo --output $(DEMO)

test: $(VENV)/.installed-dev  ## the tests, in a few minutes (WORKERS=N: in N processes)
	$(PYTEST)

test-all: $(VENV)/.installed-dev  ## the nightly tests too
	$(PYTEST) -m ''

$(VENV)/.installed-integrations: $(VENV)/.installed-dev
	@echo "installing other people's frameworks into $(VENV)"
	$(INSTALL) '.[integrations]'
	@touch $@

integrations: $(VENV)/.installed-integrations  ## the tests of dupmae_ir/integrations, with every framework
	$(RUN) -m pytest -m '' -o asyncio_mode=auto tests/integrations

$(VENV)/.installed-cluster: $(VENV)/.installed-dev
	@echo "installing Ray into $(VENV)"
	$(INSTALL) '.[ray]'
	@touch $@

cluster: $(VENV)/.installed-cluster  ## the tests of encoding on a local Ray cluster, with workers and drivers killed
	$(RUN) -m pytest -m '' tests/encode/test_ray_workers.py tests/encode/test_object_store.py -k "ray"

lint: $(VENV)/.installed-dev  ## ruff: rules and formatting
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/.installed-dev  ## mypy
	$(RUN) -m mypy

audit: $(VENV)/.installed-dev  ## compare the installed packages with the published advisories (needs the network)
	$(PIP) install -qq --constraint constraints.txt pip-audit
	$(RUN) tools/audit.py

hashes: $(VENV)/.installed-dev  ## write constraints-hashes.txt and -licences.tsv for this platform and Python (after a pin has changed)
	$(PIP) install -qq --upgrade 'setuptools>=77'
	$(PIP) install -qq --dry-run --ignore-installed --no-build-isolation --constraint constraints.txt \
	  --report build-report.json '.[dev,docs]'
	$(RUN) tools/pin_hashes.py build-report.json > constraints-hashes.txt
	$(INSTALL) '.[dev,docs]'
	$(RUN) tools/licences.py > constraints-licences.tsv
	rm build-report.json

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "installing what the site needs into $(VENV)"
	$(INSTALL) '.[docs]'
	@touch $@

docs: $(VENV)/.installed  ## write the generated pages and parts of pages in docs/, README.md and the model card
	$(RUN) docs/make_commands.py
	$(RUN) docs/make_architecture.py
	$(RUN) docs/make_tutorial.py
	$(RUN) docs/make_recording.py
	$(RUN) docs/make_chart.py
	$(RUN) docs/make_reproduction.py
	$(RUN) docs/make_performance.py
	$(RUN) docs/make_growth.py
	$(RUN) docs/make_systems.py
	$(RUN) docs/make_experiments.py
	$(RUN) docs/make_scale.py
	$(RUN) docs/make_servers.py
	$(RUN) docs/make_collections.py

site: $(VENV)/.installed-docs  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict --quiet

wheel: $(VENV)/.installed  ## build the wheel, install it outside the clone and search with it
	$(RUN) tools/try_wheel.py --reuse

java: $(VENV)/.installed  ## compile dupmae_ir/java (needs the javac of JDK 25, which compiled the committed class)
	javac --release 21 -g:none -cp "$$($(RUN) -c 'from dupmae_ir.pyserini import find_jar; print(find_jar())')" \
	  -d dupmae_ir/java dupmae_ir/java/*.java

check: lint types site wheel test  ## everything that CI runs

clean:  ## remove the environment, caches and demo files
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist site *.egg-info runs/demo
