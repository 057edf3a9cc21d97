#!/usr/bin/env bash
# clang-tidy over the project's sources, all cores. Headers are checked through what includes them,
# and are most of the work: files that are compiled alike are read eight at a time, as one file that
# includes them. Where that finds anything, a name that two of the files define included, each half
# is read again, down to single files: only what those say counts. A constant that nothing uses is
# told only in a file read by itself, so GCC warns of those (-Wunused-const-variable).
#
#   scripts/tidy.sh BUILD [FILE...]    BUILD: a configured build folder; FILE: only these, one by one
#   scripts/tidy.sh BUILD --changed    what changed in the day before the newest commit: sources, and of each header one
#                                      source that includes it; all where the history does not go back so far
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:?usage: scripts/tidy.sh BUILD [FILE...]}
shift
export build

tidy() { clang-tidy --quiet --config-file=.clang-tidy "$@"; }

# check FOLDER FILE...: the folder is for the file that includes the others, and how it is compiled.
check() {
  local folder=$1 half=$((($# - 1) / 2)) command file
  shift
  if (($# == 1)); then
    tidy -p "$build" "$1"
    return
  fi
  mkdir -p "$folder"
  command=$(grep -B 1 -F "\"file\": \"$1\"" "$build/compile_commands.json" | head -n 1)
  printf '[{\n  "directory": "%s",\n%s -c all.cpp",\n  "file": "all.cpp"\n}]\n' \
    "$folder" "${command%% -o *}" >"$folder/compile_commands.json"
  for file in "$@"; do printf '#include "%s"  // NOLINT\n' "$file"; done >"$folder/all.cpp"
  if ! tidy -p "$folder" "$folder/all.cpp" >/dev/null 2>&1; then
    local code=0
    check "$folder/1" "${@:1:half}" || code=1
    check "$folder/2" "${@:half+1}" || code=1
    return "$code"
  fi
}
export -f tidy check

including() { git grep -lF "$1" -- '*.cpp' | sed -n 1p || true; } # TEXT: the first source with it
# The sources to read: none stands for all.
changed() {
  local newest base file
  newest=$(git log -1 --format=%ct)
  base=$(git rev-list -1 --before=$((newest - 24 * 60 * 60)) HEAD)
  [[ -n $base ]] || return 0
  git diff --name-only --diff-filter=d "$base" -- '*.cpp' '*.hpp' '*.h' | while IFS= read -r file; do
    case $file in
      *.cpp) echo "$file" ;;
      include/*) including "${file#include/}" ;;
      *) including "\"${file#*/}\"" ;;
    esac
  done | sort -u | tr '\n' ' '
}
only=
if [[ ${1:-} == --changed ]]; then
  only=$(changed)
  shift
fi

# One batch a line: its folder and its files, those of one compiler command after each other.
batches() {
  local folder
  folder=$(realpath "$build")/tidy
  rm -rf "$folder"
  awk -F '"' -v root="$PWD/" -v folder="$folder" -v only="$only" '
    BEGIN { some = split(only, names, " "); for (i in names) wanted[root names[i]] }
    $2 == "command" { command = $0; sub(/ -o .*/, "", command) }
    $2 == "file" && index($4, root) == 1 && index($4, folder) != 1 && $4 !~ root "build" &&
      (!some || $4 in wanted) && !seen[$4]++ {
      if (!(command in group)) group[command] = ++groups
      g = group[command]
      files[g, n[g]++] = $4
    }
    END {
      for (g = 1; g <= groups; g++)
        for (i = 0; i < n[g]; i++)
          printf "%s%s", i % 8 ? " " : (i || g > 1 ? "\n" : "") folder "/" ++batch " ", files[g, i]
      if (batch) print ""
    }' "$build/compile_commands.json"
}
# shellcheck disable=SC2016  # $0 is the inner shell's: one line of batches
if (($#)); then
  printf 'none %s\n' "$@"
else
  batches
fi | xargs -r -d '\n' -n 1 -P "$(nproc)" bash -c 'set -f; check $0' 2> >(
  grep -v 'warnings\? generated\.$\|^Suppressed \|^Use -header-filter' >&2)
