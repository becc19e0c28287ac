# Two commands do everything: `make run` and `make test`. Both make the environment first, `make run` with what serving needs
# alone; it is remade when its inputs change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVING := $(VENV)/.serving
STAMP := $(VENV)/.installed
INPUTS := pyproject.toml CMakeLists.txt $(wildcard constraints/*.txt) $(wildcard src/headrace/kernels/*/cpu*.cpp src/headrace/kernels/*/cpu*.h src/headrace/kernels/native/*)
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
UNIT := $(BIN)/python -m pytest tests/unit -n auto --maxprocesses 4 --dist worksteal --timeout=600
# Tests of one file share servers and models (`tests/file_scheduling.py`), so each file runs in one process.
REST := $(BIN)/python -m pytest --ignore tests/unit -n auto --maxprocesses 2 --dist loadfile --timeout=600
MODEL ?= smollm2
PROMPT ?= Write one sentence about rivers.

# What is imported is compiled once, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test unit coverage lint install clean

install: $(STAMP)

$(SERVING): $(INPUTS)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	@echo "Installing PyTorch and other packages, then compiling the CPU kernels: some minutes, shown by pip. Later calls skip this."
	$(BIN)/pip install --disable-pip-version-check -c constraints/cpu.txt -e .
	touch $@

# The package is there: with its name, pip adds the packages for development and does not compile the kernels again.
$(STAMP): $(SERVING)
	@echo "Installing the packages for development."
	$(PIP) -c constraints/cpu.txt 'headrace[dev]'
	$(PIP) --no-deps -r constraints/triton.txt
	touch $@

run: $(SERVING)  ## fetch the default model, serve it, answer a first prompt in the terminal
	$(BIN)/headrace serve $(MODEL) --prompt "$(PROMPT)"

# The second part runs whatever the first one gives; either fails the whole.
test: $(STAMP) lint  ## the whole suite: `unit`, then the rest in two processes; a test that never ends fails by name
	$(UNIT); first=$$?; $(REST) && exit $$first

unit: $(STAMP)  ## without a device or a model, in two to four processes
	$(UNIT)

coverage: $(STAMP)  ## how much of the platforms their tests run
	ci/coverage.sh

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
