# make            makes .venv and installs Penstock with everything that demo, tests and benchmarks need
# make demo       the embedded sample through the shipped network, and a report of it
# make test       make check, then every test but the soak tests
# make check      ruff (lint and format) and mypy
# make soak       many random cases: an hour or more
# make sanitize   the kernels' own checks under AddressSanitizer and UBSan
# make bench      the benchmarks; have the machine to yourself
# make page       docs/browser: onnxruntime-web and the exported network, for a plain file server
# make format     ruff's formatter over the sources
# make clean      what was built; make distclean: .venv as well
#
# Needs Python 3.11 or newer, g++, make and a package index; cmake and ninja come from that index.

PYTHON ?= python3
# Tests run in this many processes, each with one torch thread.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ "$$n" -lt 8 ] && echo "$$n" || echo 8)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CODE := src tests tools benchmarks

# The package is installed as users get it, not linked: what the tests import is what a wheel holds. Folders are
# listed too, so that a deleted file counts as a change.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt \
	$(shell find src kernels -not -name '*.so' -not -name '*.pyc' -not -name __pycache__)

.PHONY: install demo test check soak sanitize bench page format clean distclean browser

install: $(VENV)/.installed

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
		echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; \
		rm -rf $(VENV); \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }

# Without build isolation the C++ objects stay valid from one installation to the next, and only changed files are
# compiled again. The constraints keep torch at its CPU build.
$(VENV)/.installed: $(BIN)/python $(SOURCES)
	$(PIP) install --quiet --constraint constraints.txt 'scikit-build-core>=0.10' 'nanobind>=2.4' 'cmake>=3.20' 'ninja>=1.11'
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --quiet --no-build-isolation --constraint constraints.txt \
		'.[dev,compare,timm,tensorboard]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/penstock demo

test: check browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not soak' -n $(JOBS) --dist worksteal

check: $(VENV)/.installed
	$(BIN)/ruff check $(wildcard $(CODE))
	$(BIN)/ruff format --check --quiet $(wildcard $(CODE)) || { echo "run: make format" >&2; exit 1; }
	$(BIN)/mypy

# The report's page is tested in Chromium. Without it those tests are skipped, and say so.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium for the browser tests"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			chromium chromium-driver >/dev/null; } || echo "chromium could not be installed: browser tests are skipped"; \
	else \
		echo "no chromium: browser tests are skipped; on Debian: apt-get install chromium chromium-driver"; \
	fi

soak: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak -n $(JOBS) --dist worksteal --timeout 7200

sanitize: $(VENV)/.installed
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/sanitize -G Ninja \
		-DPENSTOCK_MODULE=OFF -DPENSTOCK_CHECKS=ON -DPENSTOCK_SANITIZE=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/sanitize
	PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir build/sanitize --output-on-failure --no-tests=error

bench: $(VENV)/.installed
	@for file in benchmarks/*.py; do echo "$$file"; $(BIN)/python "$$file" || exit 1; done

page: $(VENV)/.installed
	$(BIN)/python docs/browser/build.py

format: $(VENV)/.installed
	$(BIN)/ruff format $(wildcard $(CODE))
	$(BIN)/ruff check --fix --quiet $(wildcard $(CODE))

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)/.installed
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
