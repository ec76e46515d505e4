# Every target sets up what it needs: system packages (Debian, as root), a virtual environment, the extension module.
# What was done is remembered inside the environment; delete .venv to start over.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/done
STEP := .ci/step
BUILD := build/editable
# The environment variables that pyproject.toml reads: another value of one builds the package again.
VALUES := $(shell sed -n 's/.*{env="\([A-Z_]*\)".*/\1/p' pyproject.toml)
# The folders of the package too: the installation says for each module of it whether it is a file or a folder.
SOURCES := pyproject.toml CMakeLists.txt $(wildcard python/hexane/*/__init__.py) $(shell find csrc -name '*.cpp' -o -name '*.c' -o -name '*.h')
CPP_FILES := $(shell find csrc tests/cpp tests/c99 tests/fake_ane tests/fake_coreml -name '*.cpp' -o -name '*.c' -o -name '*.h' -o -name '*.mm' -o -name '*.m')
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CMAKE_COLOR_DIAGNOSTICS := OFF
# Tests start Python hundreds of times, and half of that time would be compiling modules anew.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: always check-wheel-arguments help run test test-long stand-in conformance bench bench-alloc bench-compile bench-schedule bench-memory bench-c99 bench-sweep bench-train bench-bf16 bench-llm sanitize threads test-arm64 test-mcu apple lint bench-cost fresh wheel docs
help:
	@echo "make run          the digits example: predictions, accuracy, latency"
	@echo "make test         the test suite (C++ and Python)"
	@echo "make test-long    the same with the slow tests, of many random cases another quarter each day (TURN=all: all)"
	@echo "make stand-in     the stand-in for the engine, for its tests; needs clang 16 or newer and libgnustep-base-dev"
	@echo "make conformance  ONNX's own backend tests; writes docs/conformance.md"
	@echo "make bench        speed, beside onnxruntime and OpenVINO"
	@echo "make bench-alloc  the memory allocator on the MiniMalloc instances"
	@echo "make bench-compile  compiling for the host and for chips, beside onnxruntime"
	@echo "make bench-schedule  orders of layers: greedy beside optimal"
	@echo "make bench-c99     int8 networks in the C99 runtime, beside the host's kernels and TiGrIS"
	@echo "make bench-memory  networks in whole tensors beside row by row: memory and speed"
	@echo "make bench-train  training steps of small networks and decoders, with PyTorch's in the same run (ARGS=\"--torch PYTHON\")"
	@echo "make bench-llm    a language model next to torch, llama.cpp, onnxruntime and OpenVINO (ARGS=\"--torch PYTHON\" and so on)"
	@echo "make bench-bf16   networks in fp32, bf16 and dtype auto, with OpenVINO's in the same run (ARGS=\"--openvino PYTHON\")"
	@echo "make bench-cost FILE=ROWS.csv  estimated latencies compared with published ones"
	@echo "make bench-sweep  every op beside onnxruntime; lists the slow ones"
	@echo "make sanitize     tests of C++ under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make threads      contexts of 4 models, and 4 programs of the stand-in, from 8 threads under ThreadSanitizer"
	@echo "make test-mcu     generated apps on Cortex-M under QEMU, with their sizes; needs gcc-arm-none-eabi,"
	@echo "                  libnewlib-arm-none-eabi and qemu-system-arm"
	@echo "make test-arm64   the C++ tests, cross-built and run under qemu"
	@echo "make apple        the core and the Objective-C, compiled for Macs (fetches 100 MB once)"
	@echo "make docs         the pages as a site in build/site; a broken link is an error"
	@echo "make wheel        a manylinux wheel in build/wheels; ARGS=aarch64 or ARGS=macos for those systems (docs/building.md)"
	@echo "make fresh SUITE=trixie  'make test' of a clone of HEAD in a bare Debian (bookworm, trixie, sid);"
	@echo "                  needs root and debootstrap"
	@echo "make lint         ruff, mypy, clang-format"

run: $(DONE)/package
	@$(BIN)/python examples/digits/run.py

test test-long: $(DONE)/package $(DONE)/test
	@.ci/system test
	@$(STEP) "building the C++ tests" $(BIN)/cmake --build $(BUILD) --target cpp_tests
	@.ci/stand-in $(BUILD)
	@$(STEP) "C++ tests" $(BIN)/ctest --test-dir $(BUILD) --output-on-failure
	@echo "Python tests"
	@$(if $(TURN),HEXANE_TEST_TURN=$(TURN)) $(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder $(if $(filter test,$@),-m "not slow") $(ARGS)

stand-in: $(DONE)/package
	@.ci/stand-in $(BUILD)

conformance: $(DONE)/package
	@$(BIN)/python tests/conformance/run.py

bench: $(DONE)/package $(DONE)/test $(DONE)/bench
	@$(BIN)/python -m pytest -q benchmarks $(ARGS)

bench-alloc: $(DONE)/package
	@$(BIN)/python benchmarks/alloc.py $(ARGS)

bench-compile: $(DONE)/package $(DONE)/test
	@$(BIN)/python benchmarks/compile.py $(ARGS)

bench-schedule: $(DONE)/package
	@$(BIN)/python benchmarks/schedule.py $(ARGS)

bench-memory: $(DONE)/package
	@$(BIN)/python benchmarks/memory.py $(ARGS)

bench-c99: $(DONE)/package
	@$(BIN)/python benchmarks/c99_speed.py $(ARGS)

bench-cost: $(DONE)/package
	@$(if $(FILE),,echo "FILE: got nothing, need a table of latencies (docs/cost.md)" >&2; exit 1;) $(BIN)/python benchmarks/fit_cost.py --judge $(FILE) $(ARGS)

bench-sweep: $(DONE)/package $(DONE)/test
	@$(BIN)/python benchmarks/sweep.py $(ARGS)

bench-train: $(DONE)/package
	@$(BIN)/python benchmarks/train.py $(ARGS)
	@$(BIN)/python benchmarks/train_decoder.py $(ARGS)

bench-bf16: $(DONE)/package $(DONE)/bench
	@$(BIN)/python benchmarks/bf16.py $(ARGS)

bench-llm: $(DONE)/package $(DONE)/test
	@$(BIN)/python benchmarks/language_model.py $(ARGS)

sanitize: $(DONE)/package $(DONE)/test
	@.ci/sanitize $(ARGS)

test-arm64: $(DONE)/build
	@.ci/test-arm64

test-mcu: $(DONE)/package $(DONE)/test
	@$(BIN)/python -m pytest -q tests/c99/test_mcu.py $(ARGS)

threads: $(DONE)/package
	@.ci/threads

apple: $(DONE)/build $(DONE)/apple
	@.ci/apple

# Before anything is installed.
check-wheel-arguments:
	@.ci/wheel --check $(ARGS)

wheel: check-wheel-arguments $(DONE)/build $(DONE)/wheel $(if $(filter macos,$(ARGS)),$(DONE)/apple)
	@.ci/wheel $(ARGS)

fresh:
	@.ci/fresh $(or $(SUITE),trixie) make test $(if $(ARGS),ARGS="$(ARGS)")

docs: $(DONE)/venv $(DONE)/docs
	@$(STEP) "building the site" env NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html"

lint: $(DONE)/package $(DONE)/test $(DONE)/lint
	@$(STEP) "ruff check" $(BIN)/ruff check .
	@$(STEP) "ruff format" $(BIN)/ruff format --diff .
	@$(STEP) "mypy" $(BIN)/mypy
	@$(STEP) "clang-format" $(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	@$(STEP) "sentences" .ci/prose

$(DONE)/venv:
	@PYTHON=$(PYTHON) .ci/system
	@$(STEP) "creating $(VENV)" $(PYTHON) -m venv $(VENV)
	@$(STEP) "updating pip" $(BIN)/python -m pip install --upgrade pip
	@mkdir -p $(DONE) && touch $@

# A group of dependencies in pyproject.toml: build, test, lint, bench.
$(DONE)/%: pyproject.toml $(DONE)/venv
	@$(STEP) "installing what '$*' needs" $(BIN)/python -m pip install --group $*
	@touch $@

# The file is written only if a value differs, and the package is newer than it otherwise.
$(DONE)/values: $(DONE)/venv always
	@printf '%s\n' $(foreach name,$(VALUES),"$(name)=$$$(name)") > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(DONE)/package: $(DONE)/build $(DONE)/values $(SOURCES)
	@$(STEP) "building hexane (a few minutes the first time)" \
	  $(BIN)/python -m pip install --no-build-isolation --editable . --config-settings=build-dir=$(BUILD)
	@touch $@
