# A thin front for CMake: `make` builds into build/ and never installs anything. See README.md for what comes next.
#   make CC=clang                another compiler, in build-clang/
#   make test SAN=address        a sanitizer (address, undefined, thread; several with commas), in build-address/
#   make test TESTS=comm         only the tests whose name matches; EXCEPT=process: without those whose name does
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
SAN    ?=
TESTS  ?=
EXCEPT ?=
comma  := ,
MAKEFLAGS += --no-print-directory

compiler := $(if $(filter default,$(origin CC)),,$(CC))
cxx      := $(subst gcc,g++,$(subst clang,clang++,$(compiler)))
BUILD    ?= build$(if $(compiler),-$(notdir $(compiler)))$(if $(SAN),-$(subst $(comma),-,$(SAN)))

.PHONY: all configure deps demo tests test wheel test-python bench results soak install check layers lines tidy clean
all: configure
	@cmake --build $(BUILD) -j $(JOBS)

configure:
	@test -f $(BUILD)/Makefile || cmake -S . -B $(BUILD) -DTRIREME_SANITIZE=$(SAN) \
	    $(if $(compiler),-DCMAKE_C_COMPILER=$(compiler) -DCMAKE_CXX_COMPILER=$(cxx))

# Installs the Debian packages that are missing; instant when none is.
deps:
	@scripts/deps

demo: deps
	@$(MAKE) all
	@scripts/demo $(BUILD)

# What the tests are made of, without running them.
tests:
	@$(MAKE) all
	@cmake --build $(BUILD) -j $(JOBS) --target tests
test: deps
	@$(MAKE) tests
	@scripts/test $(BUILD) $(if $(TESTS),-R '$(TESTS)') $(if $(EXCEPT),-E '$(EXCEPT)')

# The PyTorch plug-in (docs/pytorch.md): the wheel, in BUILD/dist, and its tests. TORCH_VENV names a virtual environment that has
# PyTorch; without it one is made in BUILD.
wheel: configure
	@cmake --build $(BUILD) -j $(JOBS) --target trireme_comm
	@rm -rf $(BUILD)/dist
	@scripts/make-wheel $(BUILD) $(BUILD)/dist
test-python: deps wheel
	@cmake --build $(BUILD) -j $(JOBS) --target trireme_cli
	@scripts/test-python $(BUILD)

bench: all
	@cmake --build $(BUILD) -j $(JOBS) --target benches
	@scripts/bench $(BUILD)

# bench/RESULTS.md, from the JSON files in bench/results.
results: all
	@$(BUILD)/trireme bench report bench/results >$(BUILD)/results.md
	@mv $(BUILD)/results.md bench/RESULTS.md

soak: deps
	@scripts/soak

install: all
	@cmake --install $(BUILD) --prefix $(PREFIX)

check: layers tidy lines
layers:
	@scripts/check-layers $(wildcard $(BUILD))
	@scripts/check-environment
	@scripts/check-ops
	@scripts/check-docs
	@scripts/check-names
lines:
	@scripts/lines
tidy: configure
	@scripts/tidy $(BUILD)

clean:
	rm -rf build build-*
