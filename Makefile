# Shorthand for the CMake commands that CONTRIBUTING.md describes.
.DEFAULT_GOAL := build
.PHONY: build demo docs test format tidy clean help

jobs := $(shell nproc)
sample := examples/data/minilm_layer3.safetensors
# On CI a warning fails the build.
configure := cmake --preset release $(if $(CI),-DATTN_WERROR=ON)

build: build/build.ninja ## build the library and the command at build/attn
	@cmake --build build

# What it runs, for this machine alone, in a folder of its own: a third of the library.
demo: setup ## run the sample, verify it against fp64, time standard against flash attention
	@test -f build-demo/build.ninja || cmake --preset demo
	@cmake --build build-demo
	build-demo/attn_demo run --input $(sample) --verify
	build-demo/attn_demo bench @bench/suites/demo.txt --plot build-demo/demo.svg

# Five problems that look different: docs/explain.md.
docs: build/build.ninja ## pages that explain problems, in build/docs
	@cmake --build build --target attn_command
	@mkdir -p build/docs
	build/attn explain b1_n4096_h16_d128_causal_bf16 -o build/docs/causal.html
	build/attn explain 'n4096_h8_d64_mask(key<64||key<=position&&position-key<700)' -o build/docs/window-sinks.html
	build/attn explain b1_n4096_h8_d64_documents_causal_bf16 -o build/docs/documents.html
	build/attn explain n4096_h8_d64_butterfly64 --algorithm block_sparse -o build/docs/block-sparse.html
	build/attn explain b8_sq1_sk32768_hq32_hk8_d128_bf16 -o build/docs/decoding.html

test: ## build everything, run every test, say what was skipped and why
	@bash scripts/setup.sh build test
	@$(configure) -DATTN_BUILD_TESTS=ON
	@cmake --build build
	@code=0; ctest --preset release -j $(jobs) || code=$$?; bash scripts/skipped_tests.sh build; exit $$code

format: ## rewrite every C++ file in the project's format
	@bash scripts/setup.sh check
	@bash scripts/format.sh

tidy: ## clang-tidy on every source file
	@bash scripts/setup.sh build test check
	@$(configure) -DATTN_BUILD_TESTS=ON
	@python3 scripts/tidy.py build

clean: ## remove what was built
	rm -rf build build-demo build-dev build-asan build-tsan build-consumer build-clang build-mingw build-aarch64

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

# The tests stay out of the first configuration, so that a build and the demo need no GoogleTest.
build/build.ninja: setup
	@test -f $@ || $(configure) -DATTN_BUILD_TESTS=OFF

.PHONY: setup
setup:
	@bash scripts/setup.sh build
