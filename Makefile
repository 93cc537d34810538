# `make demo` shows what it does and `make test` checks it; each first makes the virtual environment. `make help` lists all.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_FLAGS ?=
# Cores for the tests. `make test` takes a process more, since tests that start Ray or a browser wait much, and two where there
# is memory: each takes 3 GB with what it starts.
WORKERS ?= 2
PROCESSES = $$(cat /proc/meminfo 2>/dev/null | awk '/^MemAvailable/ {n = $$2 > 16000000} END {print $(WORKERS) + 1 + n}')
BIN := .venv/bin
DEMO := demo

# Tests start some hundred Pythons, each of which would compile our modules anew where a container's image sets this.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo train check lint ruff types contracts unit test loops modules chromium test-cluster test-matrix gpu gpu-data mutants docs bench peers release clean help

help:
	@echo "make demo          install, make a source of real media, pack it, verify it, print the report"
	@echo "make train         pack the demo source into short packs and train a tiny Qwen3-VL, two ranks per pack"
	@echo "make check         lint, types, import contracts, and the tests that start no process: a minute"
	@echo "make test          lint, types, import contracts, and the tests but those of make test-cluster and test-matrix"
	@echo "make lint          lint, types and import contracts alone"
	@echo "make test-cluster  jobs that lose nodes, and whole jobs as in a pod: some minutes"
	@echo "make test-matrix   whole grids; the tests of reader, attention and families with the oldest and newest torch and transformers"
	@echo "make gpu           measure on a GPU, PART=exact|kernel|step|feed|learn, ONLY='names;of rows'; REHEARSE=1 runs all parts in small on the CPU"
	@echo "make gpu-data      make what make gpu reads, in build/gpu"
	@echo "make mutants       plant 20 small faults, one at a time, and say which of them no test notices: minutes"
	@echo "make docs          build the pages and the reference into build/docs, warnings as errors"
	@echo "make bench         run the benchmarks and print their figures"
	@echo "make peers         install TRL and compare packing and the split of images with others"
	@echo "make release       build sdist and wheel, and try them in a clean environment: all of a release but its upload"
	@echo "make clean         remove the environment and the demo"

# Each installs once, and again when the requirements change: what the demo needs, then what the tests need as well.
# Modules are compiled when they are first imported: most never are.
.venv/demo: pyproject.toml constraints.txt
	@echo "==> making .venv with $(PYTHON) and installing (a minute or two the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "preshard needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python tests/support/install.py $(PIP_FLAGS) -c constraints.txt -e '.[all]'
	@touch $@

.venv/installed: .venv/demo
	@echo "==> installing what the tests need"
	@$(BIN)/python tests/support/install.py $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $@

demo: .venv/demo
	@echo "==> making a source of real videos, photographs and text in $(DEMO)/source"
	@test -f $(DEMO)/source/EXPECTED.json || $(BIN)/preshard demo-source $(DEMO)/source
	@echo "==> packing it into $(DEMO)/dataset, for a model of your own (8% of its rows are broken on purpose)"
	@$(BIN)/preshard pack $(DEMO)/source --max-rejects 0.1 --out $(DEMO)/dataset --set packs_per_shard=4
	@echo "==> verifying every byte of it"
	@$(BIN)/preshard verify $(DEMO)/dataset
	@echo "==> making a tiny Qwen3-VL in $(DEMO)/model, and packing for it into $(DEMO)/qwen3_vl"
	@test -f $(DEMO)/model/config.json || $(BIN)/preshard demo-model $(DEMO)/model --family qwen3_vl
	@$(BIN)/preshard pack $(DEMO)/source --max-rejects 0.1 --out $(DEMO)/qwen3_vl --set model=$(DEMO)/model --set packs_per_shard=4
	@$(BIN)/preshard verify $(DEMO)/qwen3_vl
	@echo "==> reporting on it"
	@$(BIN)/preshard report $(DEMO)/qwen3_vl

# Short packs, so that two CPUs train 100 steps in a few minutes.
SHORT := seq_len=1024 block_size=64 max_images=32 video.max_frames=8 oversize=split order.window=16 \
	cp_sizes=[1,2,4] ring_degrees=[1,2,4] model=$(DEMO)/model

train: .venv/demo
	@test -f $(DEMO)/source/EXPECTED.json || $(BIN)/preshard demo-source $(DEMO)/source
	@test -f $(DEMO)/model/config.json || $(BIN)/preshard demo-model $(DEMO)/model --family qwen3_vl
	@echo "==> packing $(DEMO)/source into short packs for the tiny Qwen3-VL, in $(DEMO)/short"
	@$(BIN)/preshard pack $(DEMO)/source --max-rejects 0.1 --out $(DEMO)/short $(addprefix --set ,$(SHORT))
	@echo "==> training on 2 processes, each with half of every pack; the figures of each step go to $(DEMO)/metrics.jsonl"
	@OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 2 -m preshard.train --data $(DEMO)/short \
		--model $(DEMO)/model --from-scratch --ring 2 --layout balanced_gather --steps 100 --lr 3e-3 --log-every 10 \
		--metrics $(DEMO)/metrics.jsonl --checkpoint $(DEMO)/checkpoints --resume

# The four parts of `make check`, two at a time, the longest first.
check: .venv/installed
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target unit types contracts ruff

lint: ruff types contracts

ruff: .venv/installed
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .venv/installed
	@echo "==> mypy"
	@$(BIN)/mypy

contracts: .venv/installed
	@echo "==> import contracts"
	@$(BIN)/lint-imports

unit: .venv/installed
	@echo "==> unit tests: no process, no browser, no Ray"
	@$(BIN)/python -m pytest --quiet -n $(WORKERS) -m "not process and not slow"

# What takes one process comes first, beside the linters; the tests then take every core.
test: .venv/installed
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target loops types modules chromium contracts ruff
	@$(BIN)/python -m pytest --quiet --durations=10 -n $(PROCESSES)

# What each worker would compile at the same time.
loops modules: .venv/installed
	@$(BIN)/python tests/support/compile_ahead.py $@

chromium:
	@sh tests/browser/chromium.sh

# tests/mutants/run.py --help lists what else it takes.
MUTANTS ?= 20
mutants: .venv/installed
	@$(BIN)/python tests/support/install.py $(PIP_FLAGS) -c constraints.txt -e '.[mutants]'
	@$(BIN)/python tests/mutants/run.py --count $(MUTANTS)

docs: .venv/installed
	@$(BIN)/sphinx-build -q -W --keep-going docs build/docs
	@echo "build/docs/index.html"

test-cluster: .venv/installed
	@echo "==> jobs that lose nodes or run as in a pod, with loops compiled as on a fresh cluster"
	@$(BIN)/python -m pytest -m cluster tests/cluster tests/k8s

test-matrix: .venv/installed
	@echo "==> whole grids, of which make test has a part"
	@$(BIN)/python -m pytest --quiet -n $(WORKERS) -m slow
	@echo "==> forged datasets, drawn by number, against everything that opens one"
	@$(BIN)/python tests/hostile/forged.py --draws 5000
	@WORKERS=$(WORKERS) $(BIN)/python tests/matrix/run.py

# A machine with a GPU has a torch of its own, whose Python is named or found; there nothing is installed.
GPU_PYTHON ?= $(shell test -x $(BIN)/python && echo $(BIN)/python || command -v python3)
PART ?= exact
gpu:
ifdef REHEARSE
	@$(MAKE) --no-print-directory .venv/installed
	@$(BIN)/python -m pytest --quiet -s -n 0 -m "slow or not slow" tests/gpu
else
	@PYTHONDONTWRITEBYTECODE=1 timeout 540 $(GPU_PYTHON) tests/gpu/run.py $(PART) $(if $(ONLY),--only '$(ONLY)')
endif

gpu-data: .venv/installed
	@$(BIN)/python tests/gpu/prepare.py

bench: .venv/installed
	@for script in tests/benchmarks/layouts.py tests/benchmarks/planning.py tests/benchmarks/reading.py \
		tests/benchmarks/attention.py; do \
		echo "==> $$script"; $(BIN)/python $$script || exit 1; done

peers: .venv/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[peers]'
	@$(BIN)/python tests/benchmarks/peers.py

release: .venv/installed
	@.ci/release

clean:
	rm -rf .venv .venv-matrix build dist $(DEMO)
