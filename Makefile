# Freshview: `make demo` shows it, `make test` checks it. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: setup demo test tests repeat lint docs bench conformance hunt soak clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Freshview needs Python 3.11 or newer; $(PYTHON) is not on the PATH."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Freshview needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

demo: setup
	@$(BIN)/python -m freshview.demo

lint: setup
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports

# The types are checked beside the first tests.
test: setup
	@$(MAKE) --no-print-directory --jobs=2 lint tests

tests: setup
	$(BIN)/python tests/runs.py

# How many runs are green: the parts without Spark 20 times; make repeat ARGS=--whole for all tests, 3 times.
repeat: setup
	$(BIN)/python -m tests.repeat $(ARGS)

# The site, in build/site; a warning is an error.
docs: setup
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/site

# A trial in minutes: make bench ARGS=--quick. Some suites only: make bench ARGS="views peers".
bench: setup
	$(BIN)/python -m freshview.bench $(ARGS)

conformance: setup
	$(BIN)/python -m freshview.bench.conformance

# Definitions whose view might be wrong: make hunt ARGS="--definitions 5000 --seed 1 --processes 2". Options: ARGS=--help.
hunt: setup
	$(BIN)/python -m tests.hunt $(ARGS)

# The laws of views hold without the embedded engine too: modules of tests/spark that run a second time.
VIEWS := keyed_views aggregate_state relevance deferred inside design_laws large_changes

# How long: FRESHVIEW_SOAK_SECONDS (1800), FRESHVIEW_HUNT_SECONDS (1200), FRESHVIEW_KILLS (50), FRESHVIEW_SOAK_KILLS (300). FRESHVIEW_SOAK_SEED replays a run, FRESHVIEW_SEED the draws of the first two commands.
soak: setup
	FRESHVIEW_EFFORT=10 $(BIN)/python -m pytest tests/unit tests/catalog tests/storage tests/cdc tests/spark tests/cluster -q
	FRESHVIEW_EFFORT=10 FRESHVIEW_ENGINE=spark $(BIN)/python -m pytest $(VIEWS:%=tests/spark/test_%.py) -q
	$(BIN)/python -m pytest tests/soak -s

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
