#!/usr/bin/env bash
# Compares `attn run` with attention written in NumPy from the documentation (docs/numerics.md).
# NumPy goes into an environment of its own inside the build folder, made at the first run.
#
#   tests/numpy/run.sh BUILD [--problems N] [--seed S]    BUILD: a folder with the attn command
set -euo pipefail
build=$(realpath "${1:?usage: tests/numpy/run.sh BUILD [--problems N] [--seed S]}")
shift
cd "$(dirname "$0")"

skip() {  # 77: CTest counts the test as skipped
  echo "not compared with NumPy: $1"
  exit 77
}

environment=$build/numpy
python=$environment/bin/python
if ! "$python" -c 'import numpy' 2>/dev/null; then
  command -v python3 >/dev/null || skip 'there is no python3'
  rm -rf "$environment"
  python3 -m venv "$environment" >/dev/null 2>&1 || skip 'python3 has no venv (Debian: python3-venv)'
  "$python" -m pip install --quiet --disable-pip-version-check --retries 1 'numpy>=1.24' >/dev/null 2>&1 ||
    skip 'pip could not install numpy'
fi
exec "$python" fuzz.py "$build/attn" "$@"
