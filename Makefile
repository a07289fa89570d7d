# Every target does its own set-up: `make demo` on a fresh machine needs Python 3.11+, gcc and make, nothing else.
# Stamp files under .venv/ make a second run instant; each names the set of extras that it stands for.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make install EXTRAS=bench,dev` adds to what serving and tuning need.
EXTRAS ?=

# Two for each core of a small machine: many tests wait for processes of their own.
TEST_PROCESSES ?= 4
# The long ones keep every core busy by themselves.
SOAK_PROCESSES ?= 2

# What `make test` skips for want of Triton.
GPU_TESTS := tests/tuner/schedule/gpu tests/tuner/library/gpu tests/tuner/measure/gpu

comma := ,
empty :=
space := $(empty) $(empty)
# The sorted extras of a set, as in "dev,server"; and the stamp that says they are installed.
extras = $(subst $(space),$(comma),$(sort $(subst $(comma),$(space),server $(1))))
stamp = $(VENV)/.installed-$(subst $(comma),-,$(call extras,$(1)))

WANTED := $(call stamp,$(EXTRAS))
WANTED_DEV := $(call stamp,$(EXTRAS) dev)
WANTED_GPU := $(call stamp,$(EXTRAS) dev gpu)
WANTED_BENCH := $(call stamp,$(EXTRAS) bench)
WANTED_DOCS := $(call stamp,$(EXTRAS) docs)

# A .venv whose interpreter is gone stands for nothing that its stamps say.
ifneq ($(shell test -x $(BIN)/python && echo whole),whole)
$(shell rm -f $(VENV)/.installed-*)
endif

.PHONY: help install demo test gpu soak serve lint bench docs reference lock clean

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(WANTED) ## .venv with what serving and tuning need; EXTRAS=bench,dev for more
	@echo "$(VENV) is ready: $(BIN)/shapewright --help"

demo: $(WANTED) ## tune a dynamic-shape BERT dense layer on embedded defaults and check it; EXTRAS=bench compares with torch
	$(BIN)/python -m examples.demo $(ARGS)

# Modules that are compiled anew by each of the hundred processes that tests start would take minutes.
test gpu soak: export PYTHONDONTWRITEBYTECODE =

test: $(WANTED_DEV) ## the test suite; pytest's arguments go in ARGS
	$(BIN)/python -m pytest -m "not soak" -n $(TEST_PROCESSES) --dist worksteal $(ARGS)

gpu: $(WANTED_GPU) ## the tests of kernels for GPUs, interpreted and compiled by Triton (a gigabyte), without a GPU
	$(BIN)/python -m pytest -m "not soak" -n $(TEST_PROCESSES) --dist worksteal $(GPU_TESTS) $(ARGS)

soak: $(WANTED_DEV) ## the long tests: chaos, load, fuzz, every op tuned
	$(BIN)/python -m pytest -m soak --timeout=3600 -n $(SOAK_PROCESSES) --dist worksteal $(ARGS)

serve: $(WANTED) ## everything in one: shapewright up
	exec $(BIN)/shapewright up $(ARGS)

lint: $(WANTED_DEV) ## ruff, mypy --strict, import rules
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

bench: $(WANTED_BENCH) ## the kernel benchmark; SUITE=FILE and ARGS choose what runs
	$(BIN)/python -m benchmarks.kernels $(or $(SUITE),benchmarks/suites/tokens-dense.yaml) --json bench.json $(ARGS)

docs: export NO_MKDOCS_2_WARNING = 1
docs: $(WANTED_DOCS) ## the site of the documents, in site/
	$(BIN)/python -m mkdocs build --strict

reference: $(WANTED_DEV) ## write the generated parts of docs/reference anew
	$(BIN)/python -m docs.tools.generate

lock: $(call stamp,$(EXTRAS) lock) ## write requirements.lock anew for what pyproject.toml wants; ARGS="--upgrade" takes newer releases
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --fork-strategy fewest --all-extras \
	  --quiet --no-annotate --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" -o requirements.lock $(ARGS)

clean: ## remove .venv and every cache
	rm -rf $(VENV) site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so a half-made .venv is taken for none and made anew where it lacks a working pip.
$(VENV)/.installed-%: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Shapewright needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1 || true)." >&2; \
	  echo "Install one and name it: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) lacks the venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  echo "making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore \
	  -c requirements.lock -e '.[$(subst -,$(comma),$*)]'
	@touch $@
