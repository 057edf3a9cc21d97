#!/usr/bin/env bash
# clang-tidy over the project's sources, all cores. Headers are checked through what includes them.
#
#   scripts/tidy.sh BUILD [FILE...]    BUILD: a configured build folder; FILE: only these sources
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:?usage: scripts/tidy.sh BUILD [FILE...]}
shift
if (($# == 0)); then
  # What the build compiles, the largest files first so that no core ends up waiting for one.
  mapfile -t files < <(sed -n 's/^ *"file": "\(.*\)",\{0,1\}$/\1/p' "$build/compile_commands.json" |
    sort -u | grep "^$PWD/" | grep -v "^$PWD/build" | xargs ls -S)
  set -- "${files[@]}"
fi
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p "$build" 2> >(
  grep -v 'warnings\? generated\.$\|^Suppressed \|^Use -header-filter' >&2)
