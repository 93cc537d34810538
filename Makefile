# Two commands do everything: `make demo` and `make test`. Both make the virtual environment first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_FLAGS ?=
BIN := .venv/bin
DEMO := demo

.PHONY: demo test lint bench clean help

help:
	@echo "make demo   install, make a real source, pack it, verify it, print the report"
	@echo "make test   install, lint, check types and imports, run all tests"
	@echo "make lint   the first part of make test: lint, types, imports"
	@echo "make bench  run the benchmarks and print their figures"
	@echo "make clean  remove the environment and the demo"

# Installed once, and again when what is to be installed changes.
.venv/installed: pyproject.toml constraints.txt
	@echo "==> making .venv with $(PYTHON) and installing (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "preshard needs Python 3.11; run: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[demo,dev]'
	@touch $@

demo: .venv/installed
	@echo "==> making a source of real videos, photographs and text in $(DEMO)/source"
	@test -f $(DEMO)/source/EXPECTED.json || $(BIN)/preshard demo-source $(DEMO)/source
	@echo "==> packing it into $(DEMO)/dataset"
	@$(BIN)/preshard pack $(DEMO)/source --out $(DEMO)/dataset --set packs_per_shard=4
	@echo "==> verifying every byte of it"
	@$(BIN)/preshard verify $(DEMO)/dataset
	@echo "==> reporting"
	@$(BIN)/preshard report $(DEMO)/dataset

lint: .venv/installed
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> mypy"
	@$(BIN)/mypy
	@echo "==> import contracts"
	@$(BIN)/lint-imports

test: lint
	@echo "==> tests"
	@$(BIN)/python -m pytest

bench: .venv/installed
	@for script in tests/benchmarks/layouts.py tests/benchmarks/planning.py tests/benchmarks/reading.py; do \
		echo "==> $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf .venv $(DEMO)
