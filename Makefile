# make demo    install into .venv, build, run examples/digits.py
# make test    the same, then the tests, one process per core (PYTEST_ARGS="-k name" for some of them)
# make lint    ruff, mypy --strict, clang-format, over what is there
# make format  let ruff and clang-format rewrite it
# make build   install and build only; rebuilds what changed
# make clean   forget everything that was built, .venv too
#
# Each step leaves a file behind, so a second run does only what is new.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
FIND_PYTHON := for p in python3.11 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; \
	done
PYTHON ?= $(shell $(FIND_PYTHON))

TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
CSRC := $(shell find lazytrace/csrc -name '*.cpp' -o -name '*.h' -o -name '*.def')
HAVE_TORCH := $(VENV)/.have-torch
INSTALLED := $(VENV)/.installed
CORE := $(VENV)/.core-built
FLAGS := build/flags

.PHONY: demo test lint format build clean compiler FORCE

demo: build
	$(PY) examples/digits.py

test: build
	$(PY) -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict lazytrace
	$(VENV)/bin/clang-format --dry-run -Werror $(filter-out %.def,$(CSRC))

format: $(INSTALLED)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(filter-out %.def,$(CSRC))

build: $(CORE)

clean:
	rm -rf $(VENV) build lazytrace.egg-info lazytrace/_core*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find lazytrace examples tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@[ -n "$(PYTHON)" ] || { echo "lazytrace needs CPython 3.11, and found no such python3.11 or python3." \
	  "Install it (Debian and Ubuntu: apt install python3.11 python3.11-venv python3.11-dev)," \
	  "or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "No virtual environment could be made (Debian and Ubuntu: apt install python3.11-venv)." >&2; exit 1; }

# torch comes first and alone, so that nothing that is installed later chooses another one.
# A missing compiler is said before anything is downloaded.
$(HAVE_TORCH): constraints.txt | compiler
	@echo "installing $(TORCH) into $(VENV)"
	@$(PIP) install -c constraints.txt $(TORCH)
	@touch $@

$(INSTALLED): $(HAVE_TORCH) setup.py setup.cfg pyproject.toml
	@echo "installing lazytrace and its tools into $(VENV)"
	@$(PIP) install -c constraints.txt setuptools wheel ninja
	@LAZYTRACE_PURE=1 $(PIP) install -c constraints.txt --no-build-isolation -e '.[test,dev]'
	@touch $@

# Changes only when the way of compiling does, so that a sanitized build and a plain one do not mix.
$(FLAGS): FORCE
	@mkdir -p build
	@echo 'CXX=$(CXX) SANITIZE=$(LAZYTRACE_SANITIZE)' | cmp -s - $@ \
	  || echo 'CXX=$(CXX) SANITIZE=$(LAZYTRACE_SANITIZE)' > $@

$(CORE): $(INSTALLED) $(CSRC) $(FLAGS) $(if $(wildcard lazytrace/_core*.so),,FORCE)
	CXX='$(CXX)' $(PY) setup.py -q build_ext --inplace
	@touch $@

compiler: | $(PY)
	@command -v $(firstword $(CXX)) >/dev/null || { echo "lazytrace needs a C++17 compiler, and found no" \
	  "'$(CXX)'. Install one (Debian and Ubuntu: apt install g++), or name it: make CXX=clang++" >&2; exit 1; }
	@[ -f "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] || { \
	  echo "lazytrace needs Python's headers, and found no Python.h." \
	  "Install them (Debian and Ubuntu: apt install python3-dev, or python3.11-dev)" >&2; exit 1; }
