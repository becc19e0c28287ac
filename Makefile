# Two commands do everything: `make run` and `make test`. Both make the environment first; it is remade when its inputs change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL ?= smollm2
PROMPT ?= Write one sentence about rivers.

.PHONY: run test unit coverage lint install clean

install: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard constraints/*.txt) $(wildcard src/headrace/kernels/*/cpu*.cpp src/headrace/kernels/*/cpu*.h src/headrace/kernels/native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints/cpu.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r constraints/triton.txt
	touch $@

run: $(STAMP)  ## fetch the default model, serve it, answer a first prompt in the terminal
	$(BIN)/headrace serve $(MODEL) --prompt "$(PROMPT)"

test: $(STAMP) lint  ## the whole suite; a test that never ends fails by name
	$(BIN)/python -m pytest --timeout=600

unit: $(STAMP)  ## without a device or a model
	$(BIN)/python -m pytest tests/unit

coverage: $(STAMP)  ## how much of the platforms their tests run
	ci/coverage.sh

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
