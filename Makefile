# `make demo` and `make test` work from a bare clone on a machine with nothing but Python 3.11 or later.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test lint types check docs quick benchmark clean

demo: $(READY)
	$(BIN)/metavib demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

# The documentation, in build/site: a dead link, an example that fails or a name without documentation is an error.
docs: $(READY)
	$(BIN)/python -m docs.tools

# Every table and figure of the paper in a tiny version, on built-in data: two minutes.
STUDIES := table-1 figure-2 table-2 calibration omniglot augmented-omniglot beta shots inner-steps objectives embeddings resnet12 shift shift-photographs unequal any-number ink glyphs
quick: $(READY)
	set -e; for name in $(STUDIES); do $(BIN)/python -m reproduction $$name --quick --quiet; done

# Against other libraries, beside which nothing else should run: a quarter of an hour.
benchmark: $(READY)
	$(BIN)/python -m pip install --quiet --requirement requirements-benchmarks.txt
	$(BIN)/python -m benchmarks

# An environment of another Python than today's is made anew.
ifneq ($(shell $(BIN)/python --version 2> /dev/null || true),$(shell $(PYTHON) --version))
.PHONY: $(READY)
CLEAR := --clear
endif

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -m venv $(CLEAR) $(VENV)
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

clean:
	rm -rf $(VENV) runs build
