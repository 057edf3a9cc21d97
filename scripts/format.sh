#!/usr/bin/env bash
# Formats every C and C++ file of the project; with --check only reports what would change.
set -euo pipefail
cd "$(dirname "$0")/.."

mode=(-i)
if [[ ${1:-} == --check ]]; then mode=(--dry-run --Werror); fi
git ls-files -z --cached --others --exclude-standard '*.cpp' '*.hpp' '*.cuh' '*.c' '*.h' ':!third_party' |
  xargs -0 --no-run-if-empty clang-format "${mode[@]}"
