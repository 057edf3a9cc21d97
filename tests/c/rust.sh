#!/usr/bin/env bash
# The C interface from Rust: examples/c_api.rs, compiled and run.
#   tests/c/rust.sh LIBRARY FOLDER    FOLDER: where the program goes
set -euo pipefail
library=$(realpath "${1:?usage: tests/c/rust.sh LIBRARY FOLDER}")
folder=$(realpath "${2:?usage: tests/c/rust.sh LIBRARY FOLDER}")
cd "$(dirname "$0")/../../examples"
if ! command -v rustc >/dev/null; then
  echo 'not compared with Rust: there is no rustc (Debian: rustc)'
  exit 77
fi
name=$(basename "$library" .so)
rustc -D warnings -O --edition 2021 -L "native=$(dirname "$library")" -l "dylib=${name#lib}" \
  -C "link-arg=-Wl,-rpath,$(dirname "$library")" c_api.rs -o "$folder/c_api_rust"
exec "$folder/c_api_rust"
