#!/usr/bin/env bash
# Compiles the library for another system, and tests it where an emulator runs what comes out.
#
#   scripts/cross.sh mingw      Windows on x86-64, without the CUDA backend: compiled and linked, not run
#   scripts/cross.sh aarch64 [EVERY]    Linux on AArch64, under qemu-user: examples, and every EVERY-th listed
#                               case (tests/conformance/run_list.cpp), in turn on a CPU with bf16 dot products
#                               and on one without
#
# Ends with 77, which .ci/run counts as skipped, where the compiler or the emulator is missing.
set -euo pipefail
target=${1:-}
cd "$(dirname "$0")/.."

need() {  # need COMMAND PACKAGE
  command -v "$1" >/dev/null && return
  echo "cross: $1 is missing (Debian: $2)"
  exit 77
}

# -O1: the warnings of -O3 are those of other builds.
configure() {
  cmake -S . -B "build-$target" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/$target.cmake" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DATTN_KERNEL_OPTIMIZATION=-O1 -DATTN_PRECOMPILE=ON \
    -DATTN_FMT_COMPILED_IN=ON -DATTN_WERROR=ON -DATTN_BUILD_TESTS=OFF "$@"
}

case $target in
  mingw)
    need x86_64-w64-mingw32-g++-posix g++-mingw-w64-x86-64-posix
    configure -DATTN_CUDA=OFF
    cmake --build build-mingw --target example_forward example_c_api
    ;;
  aarch64)
    need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
    need qemu-aarch64 qemu-user
    configure -DATTN_BUILD_TOOLS=ON
    cmake --build build-aarch64 --target conformance_list example_forward example_c_api example_expressions
    emulate() { qemu-aarch64 -L /usr/aarch64-linux-gnu "$@"; }
    for example in forward c_api expressions; do emulate "build-aarch64/examples/example_$example"; done
    # The last line begins with the sets that ran: which of them a CPU has, the library finds out.
    list() {  # list CPU FIRST SETS
      emulate -cpu "$1" build-aarch64/verify/conformance_list $((2 * every)) "$2" | tee /dev/stderr | tail -n 1 |
        grep -q "^$3 [0-9]"
    }
    every=${2:-1}
    # One processor each, as the problems are small.
    list max 0 'neon neon_bf16' &
    with_bf16=$!
    list cortex-a72 "$every" neon || { wait "$with_bf16"; exit 1; }
    wait "$with_bf16"
    ;;
  *)
    echo 'usage: scripts/cross.sh mingw | aarch64 [EVERY]' >&2
    exit 2
    ;;
esac
