#!/usr/bin/env bash
# Compares `attn run` with attention written in NumPy from the documentation (docs/numerics.md).
#
#   tests/numpy/run.sh BUILD [--problems N] [--seed S]    BUILD: a folder with the attn command
set -euo pipefail
build=$(realpath "${1:?usage: tests/numpy/run.sh BUILD [--problems N] [--seed S]}")
shift
cd "$(dirname "$0")"
# shellcheck source=tests/numpy/environment.sh
source environment.sh
numpy_python "$build"
exec "$python" fuzz.py "$build/attn" "$@"
