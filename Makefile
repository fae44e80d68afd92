# `make demo` and `make test` do all of their own set-up: a .venv here and, as root, the Debian packages that are missing.
PYTHON ?= python3
BIN := .venv/bin

# The parts of the long tests, each under 20 minutes on two cores: `make test-long PART=slurm`.
PART ?= properties leases queue neighbours pool hosts slurm faces frameworks fresh-root fresh-user

.PHONY: demo test tests checks slowest test-long lint types figures docs setup clean

demo: .venv/.ready
	@$(BIN)/python -m gpulease demo

test: .venv/.ready-test
	@$(MAKE) --no-print-directory --jobs 2 checks tests

slowest: .venv/.ready-test
	@$(MAKE) --no-print-directory tests SLOWEST=20

# Many tests wait for processes, so four at once keep two cores busy. They start thousands of Python processes, which would
# each compile the package where PYTHONDONTWRITEBYTECODE is set.
tests: .venv/.ready-test
	$(BIN)/python -m compileall -q src tests
	$(BIN)/python -m pytest -q -n 4 --dist loadgroup $(if $(SLOWEST),--durations $(SLOWEST))

checks: lint types

test-long: .venv/.ready-test lint types
	$(BIN)/python -m compileall -q src tests
	@sh tools/long_tests.sh $(PART)

lint: .venv/.ready-test
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .

types: .venv/.ready-test
	$(BIN)/mypy

# Every program in bench/, and docs/figures.md from what they print. `make figures QUICK=1` shows in a minute that they work.
figures: .venv/.ready-test
	$(BIN)/python tools/figures.py $(if $(QUICK),--quick)

# The site, into site/. To read it with search: python3 -m http.server -d site
docs: .venv/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

setup: .venv/.ready-test

.venv/.ready: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" sh tools/setup.sh .
	@touch $@

.venv/.ready-test: pyproject.toml tools/setup.sh tests/support/packages.py
	@PYTHON="$(PYTHON)" sh tools/setup.sh '.[test]'
	@touch .venv/.ready $@

.venv/.ready-docs: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" sh tools/setup.sh '.[docs]'
	@touch .venv/.ready $@

clean:
	rm -rf site .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
