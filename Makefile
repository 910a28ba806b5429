# make demo    train a CNN on handwritten digits, then show what the VM did
# make test    the test suite, in two processes; names the slowest twenty
# make quick   the tests that a change needs most, listed in tests/quick.txt: under a minute
# make changed the tests that the files need which differ from the last commit
# make lint    ruff: format and rules; lists of public names; docstrings are counted that do not
#              name their subject, and names of the product that are verbs
# make types   mypy, strict
# make memory  the tests of ops, gradients and layers with the memory check (FLOWVM_CHECK=memory)
# make versions   the quick tier on every Python there is, with the newest and the oldest packages
# make campaigns   for the night: products whole, an hour of each campaign (MINUTES=60), small
#              programs explored whole
# make docs    the documentation as a site in build/site, with links checked
# make wheel   a wheel in dist/ that carries the VM and the usual kernels, compiled
# make bench   time flowvm against NumPy, and against PyTorch and JAX where they are installed
# make clean   remove the environment and everything built
#
# Everything runs in .venv, made here with $(PYTHON): make demo PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST_ARGS ?= -n 2
SLOWEST ?= 20
BENCH_ARGS ?=
MINUTES ?= 60

.PHONY: demo test quick memory changed versions lint types campaigns bench docs wheel clean help
.DEFAULT_GOAL := help

help:
	@sed -n '/^# make/s/^# //p' Makefile

demo: $(VENV)/installed
	$(BIN)/python -m flowvm demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest $(PYTEST_ARGS) --durations=$(SLOWEST)

quick: $(VENV)/installed-dev
	@sed '/^#/d; /^$$/d' tests/quick.txt | xargs $(BIN)/python -m pytest -q $(PYTEST_ARGS)

changed: $(VENV)/installed-dev
	$(BIN)/python -m tools.changed

MEMORY_TESTS ?= tests/ops tests/autograd tests/nn tests/optim tests/amp/test_amp.py \
	tests/vm/engine/test_streams.py tests/graph/passes/test_random_programs.py

memory: $(VENV)/installed-dev
	FLOWVM_CHECK=memory $(BIN)/python -m pytest -q $(PYTEST_ARGS) $(MEMORY_TESTS)

versions: $(VENV)/installed-dev
	$(BIN)/python -m tools.versions

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m tools.faces --check
	$(BIN)/python -m tools.methods --check
	$(BIN)/python -m tools.prose

types: $(VENV)/installed-dev
	tools/typecheck.sh $(BIN)/python

campaigns: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q $(PYTEST_ARGS) --whole -m product
	$(BIN)/python -m tools.campaign all --minutes $(MINUTES)
	$(BIN)/python -m tests.vm.exploring 6
	$(BIN)/python -m tests.graph.plan.exploring 3

bench: $(VENV)/installed
	$(BIN)/python -m tools.bench $(BENCH_ARGS)

docs: $(VENV)/installed-docs
	$(BIN)/python -m tools.reference --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html"

wheel: $(VENV)/installed
	$(BIN)/python -m tools.wheel

clean:
	rm -rf $(VENV) build dist flowvm.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# The stamps are remade when pyproject.toml changes; the install is editable, so sources are live.
$(VENV)/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "flowvm needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "No virtual environment. On Debian or Ubuntu: apt install python3-venv"; exit 1; }
	@touch $@

$(VENV)/installed: pyproject.toml $(VENV)/created
	$(PIP) install --editable .
	@touch $@

$(VENV)/installed-docs: pyproject.toml $(VENV)/created
	$(PIP) install --editable '.[docs]'
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(VENV)/created
	$(PIP) install --editable '.[dev,tutorials]'
	@touch $@ $(VENV)/installed
