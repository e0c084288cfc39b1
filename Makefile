# What a person does with Octavo. `make help` says more; nothing is installed outside this folder.
#
#   PYTHON   the interpreter that .venv is made from (3.11 or newer)
#   ARGS     passed on to `octavo serve` or to pytest
#   DURATION   seconds of `make soak`
#   TORCH    what pip installs first on a machine without a GPU, before anything asks for a torch
#            of its own; pip's settings (PIP_FIND_LINKS, PIP_INDEX_URL) say where it comes from
#   OCTAVO_SHAREGPT, OCTAVO_ALPACA   CSV files of real lengths for `make bench`; see
#            benchmarks/lengths.py for what it does without them

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=
DURATION ?= 600
TORCH ?= torch==2.13.0

VENV := .venv
BIN := $(VENV)/bin
LOG := $(VENV)/install.log
READY := $(VENV)/.octavo-ready

# One dot a package; pip's own words go into a log, which is shown where pip fails.
define pip_install
@$(BIN)/python -m pip install --no-input --disable-pip-version-check --progress-bar off $(1) 2>&1 \
	| tee $(LOG) \
	| awk '/^ *(Collecting|Downloading|Processing|Installing)/ { printf "."; fflush() } END { print "" }' \
	|| { tail -n 30 $(LOG); echo "pip failed; the whole output is in $(LOG)"; exit 1; }
endef

.PHONY: help install serve test test-ray-up test-models lint wheel soak bench bench-peers clean

help:
	@echo "make install   make .venv and install Octavo into it (skipped when done)"
	@echo "make serve     serve a model on http://127.0.0.1:8000, e.g. ARGS='--port 9000'"
	@echo "make test      lint, types and every test, e.g. ARGS='-k prefix'"
	@echo "make test-ray-up   'ray up' to 'ray down' on machines made of namespaces (root, minutes)"
	@echo "make test-models   Gemma-3-270M and more decoders beside transformers (a download of 240 MB, minutes)"
	@echo "make lint      lint and types alone"
	@echo "make soak      load, kills and scale events for DURATION=600 seconds, e.g. ARGS='--seed 1'"
	@echo "make wheel     what 'ray up' installs on the nodes, into dist/"
	@echo "make bench     the benchmarks of benchmarks/RESULTS.md"
	@echo "make bench-peers   Octavo beside vLLM, llama.cpp and transformers, which it installs (5 GB, an hour)"
	@echo "make clean     remove what building and testing left (not .venv)"

install: $(READY)

$(BIN)/pip:
	@command -v $(PYTHON) > /dev/null || { \
		echo "Octavo needs Python 3.11 or newer, but there is no '$(PYTHON)': name one with make PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Octavo needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V): name another with make PYTHON=..."; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml | $(BIN)/pip
	@printf 'Updating pip '
	$(call pip_install,--upgrade pip)
ifeq ($(shell nvidia-smi -L > /dev/null 2>&1 && echo yes),yes)
	@printf 'Installing Octavo for CUDA, with its tools '
	$(call pip_install,-e '.[cuda,dev]')
else
	@printf 'Installing $(TORCH) for the CPU '
	$(call pip_install,$(TORCH))
	@printf 'Installing Octavo and its tools '
	$(call pip_install,-e '.[dev]')
endif
	@touch $@

serve: install
	@exec $(BIN)/octavo serve $(ARGS)

test: lint
	@$(BIN)/pytest --cache-clear --numprocesses=2 --dist=loadscope --no-loadscope-reorder --durations=10 $(ARGS) \
		|| { [ $$? -eq 1 ] && $(BIN)/python -m tests.again; }

test-ray-up: install
	$(BIN)/pytest -s tests/ray_up/by_hand.py $(ARGS)

test-models: install
	$(BIN)/pytest -s tests/e2e/gemma3_by_hand.py tests/workers/more_by_hand.py $(ARGS)

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

soak: install
	$(BIN)/python -m tests.chaos.soak --duration $(DURATION) $(ARGS)

# With the versions that this environment has, so that nodes that come later fit the first ones.
wheel: install
	@rm -rf dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist > $(LOG) 2>&1 || { tail -n 30 $(LOG); exit 1; }
	@$(BIN)/python -m pip freeze | sed -nE 's/^(ray|torch|transformers)==([^+]*).*/\1==\2/p' > dist/constraints.txt
	@ls dist/*

bench: install
	@printf 'Installing what draws plots '
	$(call pip_install,-e '.[bench]')
	$(BIN)/python benchmarks/scheduler_cost.py
	$(BIN)/python benchmarks/blocks.py
	$(BIN)/python benchmarks/metrics.py
	$(BIN)/python benchmarks/sharing.py
	GOMP_SPINCOUNT=2000 $(BIN)/python benchmarks/attention.py
	GOMP_SPINCOUNT=2000 $(BIN)/python benchmarks/linear.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/grammar.py
	$(BIN)/python benchmarks/front.py
	$(BIN)/python benchmarks/serve_path.py
	$(BIN)/python benchmarks/quantized.py
	$(BIN)/python benchmarks/adapters.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/prefix.py
	$(BIN)/python benchmarks/preemption.py
	$(BIN)/python benchmarks/pressure.py
	$(BIN)/python benchmarks/allocation.py
	$(BIN)/python benchmarks/failover.py
	$(BIN)/python benchmarks/routing.py --cost
	$(BIN)/python benchmarks/paper.py --length 0.2
	$(BIN)/python benchmarks/thrashing.py

bench-peers: install
	cd benchmarks && ../$(BIN)/python -m peers $(ARGS)

clean:
	rm -rf build dist octavo.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache tests/cluster/node/node_modules
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
