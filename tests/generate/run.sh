#!/usr/bin/env bash
# Compares examples/generate with a Llama decoder in NumPy, on small random models that it writes as
# GGUF files and as folders of Hugging Face, and gives it files that are broken.
#
#   tests/generate/run.sh BUILD [--seed S]    BUILD: a folder with examples/example_generate
set -euo pipefail
build=$(realpath "${1:?usage: tests/generate/run.sh BUILD [--seed S]}")
shift
cd "$(dirname "$0")"
# shellcheck source=tests/numpy/environment.sh
source ../numpy/environment.sh
numpy_python "$build"
exec "$python" compare.py "$build/examples/example_generate" "$@"
