# make serve   set up and serve the default model on http://127.0.0.1:8000 (Ctrl-C stops it)
# make test    set up and run lint, types and tests
# make audit   ask what is known about the locked packages (needs a network)
#
# PYTHON=python3.12       interpreter for .venv (3.11 or newer)
# TORCH_INDEX=URL         the package index for torch alone; https://download.pytorch.org/whl/cpu has the small build without CUDA
# ARGS="--model NAME"     arguments for `launch.py cluster start`
# PYTEST_ARGS="-k name"   arguments for pytest

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
TORCH_INDEX ?=
ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install

.PHONY: serve test lint types tests tests-code tests-contract tests-system tests-slow tests-slow-code tests-slow-contract tests-slow-system audit wheel clean
.DELETE_ON_ERROR:
ifndef PARTS
.NOTPARALLEL:
endif

serve: $(VENV)/.run-installed
	@$(BIN)/python launch.py cluster start --host 127.0.0.1 --port 8000 $(ARGS)

test: lint types tests

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev-installed
	$(BIN)/mypy .

# The scheduler and the messages are tested under branch coverage, which must be whole; with PYTEST_ARGS there is one plain run.
COVERING := $(filter-out %/test_scheduler_speed.py,$(wildcard $(addprefix tests/unit/test_,scheduler_*.py messages_*.py frontend_peers.py rec*.py replay.py prefix_model.py)))

# Three runs at once: what mostly computes, and two halves of what mostly waits for processes. They print when they end. A GPU is for one at a time.
JOBS ?= $(if $(wildcard /dev/nvidia0),1,3)
PYTEST := $(BIN)/python -m pytest
CONTRACT := tests/contract $(wildcard tests/system/test_cases*.py)
SYSTEM := $(filter-out $(CONTRACT),$(wildcard tests/system/test_*.py))
AT_ONCE := @$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target PARTS=yes

tests: $(VENV)/.dev-installed
ifeq ($(PYTEST_ARGS),)
	$(AT_ONCE) tests-system tests-contract tests-code
else
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)
endif

tests-code:
	$(BIN)/coverage run -m pytest -m "not slow" $(COVERING)
	$(BIN)/coverage report
	$(PYTEST) -m "not slow" $(addprefix --ignore=,$(COVERING) tests/contract tests/system)

tests-contract:
	$(PYTEST) -m "not slow" $(CONTRACT)

tests-system:
	$(PYTEST) -m "not slow" $(SYSTEM)

tests-slow: $(VENV)/.dev-installed
ifeq ($(PYTEST_ARGS),)
	$(AT_ONCE) tests-slow-system tests-slow-contract tests-slow-code
else
	$(PYTEST) -m slow $(PYTEST_ARGS) || test $$? -eq 5  # 5: none selected
endif

tests-slow-code:
	$(PYTEST) -m slow --ignore=tests/contract --ignore=tests/system

tests-slow-contract:
	$(PYTEST) -m slow $(CONTRACT)

tests-slow-system:
	$(PYTEST) -m slow $(SYSTEM)

audit: $(BIN)/python
	@.ci/audit

wheel: $(VENV)/.dev-installed
	$(BIN)/python -m pip --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are newer than their lock when what it names is installed; a failed install leaves none.
$(VENV)/.run-installed: requirements.lock | $(BIN)/python
	$(if $(TORCH_INDEX),$(PIP) --no-deps --index-url $(TORCH_INDEX) $$(grep '^torch==' requirements.lock))
	$(PIP) -r requirements.lock
	@touch $@

$(VENV)/.dev-installed: requirements-dev.lock $(VENV)/.run-installed | $(BIN)/python
	$(PIP) -r requirements-dev.lock
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Pagewire needs Python 3.11 or newer and found none; name one with: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is not Python 3.11 or newer; name another with: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
		{ echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
