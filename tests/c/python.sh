#!/usr/bin/env bash
# The C interface from Python's ctypes.
#   tests/c/python.sh LIBRARY FOLDER
set -euo pipefail
library=$(realpath "${1:?usage: tests/c/python.sh LIBRARY FOLDER}")
cd "$(dirname "$0")"
if ! command -v python3 >/dev/null; then
  echo 'not compared with ctypes: there is no python3'
  exit 77
fi
PYTHONDONTWRITEBYTECODE=1 exec python3 by_ctypes.py "$library" ../../include/attn/attn.h
