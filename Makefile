# SPDX-License-Identifier: Apache-2.0
# From a bare clone: Python 3.10+, pip and make are enough. Everything is installed into $(VENV), once.

PYTHON ?= python3
VENV ?= .venv
# Address of PyTorch's CPU packages (pytorch.org/get-started). Empty: pip chooses, which on Linux means a CUDA build
# of several GB unless pip is configured otherwise.
TORCH_INDEX ?=
# Test processes; 0 runs the tests one by one.
WORKERS ?= 2

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
# Whole files stay in one process: their module-scoped recordings are made once.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test fast thorough lint bench clean

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "without a GPU: make test TORCH_INDEX=(address of PyTorch's CPU packages, see pytorch.org/get-started)"

demo: $(VENV)/.demo ## plan the precision of examples/text_gpt.py; results go to demo/
	mkdir -p demo
	$(BIN)/floatwise plan examples/text_gpt.py -o demo/precision.toml

test: lint ## lint, types and all tests but the thorough ones
	$(PYTEST)

fast: lint ## lint, types and the tests that take under three minutes together
	$(PYTEST) -m "not slow"

thorough: $(VENV)/.dev ## further trainings: projects that floatwise new writes, every script of tests/scripts under 16-bit weights
	$(PYTEST) -m thorough

lint: $(VENV)/.dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.dev ## measure what Floatwise costs and gains on this machine
	$(BIN)/python benchmarks/probe_cost.py
	$(BIN)/python benchmarks/run_vs_autocast.py
	$(BIN)/python benchmarks/master_weights.py
	$(BIN)/python benchmarks/scale_growth.py

clean: ## remove the virtual environment and everything made
	rm -rf $(VENV) demo build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

# Stamps: each step is done again only when what it depends on has changed.

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "Floatwise needs Python 3.10 or newer and '$(PYTHON)' is not that; name one: make test PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null || $(MAKE) --no-print-directory venv-without-ensurepip
	@touch $@

# Debian and Ubuntu have ensurepip in a package of its own; pip can install itself just as well.
.PHONY: venv-without-ensurepip
venv-without-ensurepip:
	$(PYTHON) -m venv --clear --without-pip $(VENV)
	$(PYTHON) -m pip install --quiet --target "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" pip

# PyTorch alone and first, so that a CPU build already chosen (by TORCH_INDEX or by pip's configuration) stays.
$(VENV)/.torch: $(VENV)/.python constraints.txt
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--no-deps -i $(TORCH_INDEX)) torch
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP_INSTALL) -e '.[torch]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@
