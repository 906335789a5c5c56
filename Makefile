# Everything a checkout needs: make, Python 3.11+ and a network to install packages from.
# `make crawl URL=https://example.org/` runs the main job; `make test` runs the whole suite.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
URL ?=
ARGS ?=
# Each URL in quotes of its own: an & or ; in one would be the shell's, a $ ours.
QUOTED_URLS = $(foreach url,$(value URL),'$(subst ','\'',$(url))')
# More than the two cores that it is made for: many tests wait for a lease or a delay. The tests start processes of their
# own, so many more would only make them wait for each other.
TEST_PROCESSES ?= 3
TEST_ARGS ?=

.PHONY: help setup setup-dev crawl test containers chaos fuzz check format bench lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "streamcrawl needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The stamps make a second run cost nothing; a changed lock file or pyproject installs again.
$(VENV)/.installed: $(VENV)/.python pyproject.toml requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@touch $@

setup: $(VENV)/.installed ## Create .venv with the streamcrawl command
setup-dev: $(VENV)/.installed-dev ## The same, with everything the tests need

ifeq ($(strip $(value URL)$(value ARGS)),)
crawl: ## Crawl a site: make crawl URL=https://example.org/ ARGS="-o pages.jsonl --depth 3"
	@echo 'say what to crawl: make crawl URL=https://example.org/ [ARGS="-o pages.jsonl"]' >&2; exit 2
else
crawl: setup
	@$(BIN)/streamcrawl crawl $(QUOTED_URLS) $(ARGS)
endif

test: setup-dev ## Set up and run the whole test suite (chaos runs in their short form)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal -m "not quiet" $(TEST_ARGS)
	$(BIN)/python -m pytest -m quiet $(TEST_ARGS)

containers: setup-dev ## The tests that `make test` skips: the image and the compose stack, on a container engine (root, Debian)
	.ci/containers $(TEST_ARGS)

chaos: setup-dev ## The chaos runs at full length
	STREAMCRAWL_CHAOS=full $(BIN)/python -m pytest -n 1 -m chaos --timeout 3600 $(TEST_ARGS)

fuzz: setup-dev ## The tests of the parsers with strange inputs, a hundred times as many as in the suite
	STREAMCRAWL_FUZZ=20000 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --timeout 7200 tests/unit/test_fuzz.py $(TEST_ARGS)

check: setup-dev ## Format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup-dev ## Rewrite the files in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup-dev ## The short benchmarks; benchmarks/README.md says how to read them
	$(BIN)/python -m benchmarks

lock: ## Resolve the dependencies again into the lock files (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-header --extra embedded pyproject.toml -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-header --extra embedded --extra parquet --extra postgres --extra xpath --extra otel --group dev pyproject.toml -c requirements.lock -o requirements-dev.lock
	for wanted in benchmarks/contestants/*.in; do \
	  uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header $$wanted -o $${wanted%.in}.txt || exit; \
	done

clean: ## Remove the virtual environment and caches, never a crawl's data
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
