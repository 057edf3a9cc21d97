#!/usr/bin/env bash
# Mutations of the library, each of which a test must catch (docs/mutations.md). Works in a copy of the committed tree.
#   scripts/mutate.sh                     every row of tests/mutations/table.txt
#   scripts/mutate.sh NAME...             these rows
#   ATTN_MUTATE_COPY=FOLDER scripts/mutate.sh    where the copy is; default build/mutate, kept for the next time
# Prints a row of a Markdown table for each; exits with 1 where a mutation survives.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
copy=$(realpath -m "${ATTN_MUTATE_COPY:-build/mutate}")
table=$root/tests/mutations/table.txt
mkdir -p "$copy"
# Only files that differ are written, so that nothing else is built again.
git archive HEAD | tar -x --skip-old-files -C "$copy"
while read -r file; do
  git show "HEAD:$file" | cmp -s - "$copy/$file" || git show "HEAD:$file" > "$copy/$file"
done < <(git ls-tree -r --name-only HEAD)
cd "$copy"
[ -f build/build.ninja ] || cmake --preset release -DATTN_BUILD_TESTS=ON > /dev/null

emulator=build/tests/cuda/emulator/driver
on_emulator=(env "LD_LIBRARY_PATH=$emulator" "ATTN_NVRTC=$emulator/libcuda.so.1" ATTN_CACHE_DIR=)
build() { cmake --build build --target attn_command attn_emulated_gpu "$@" > build/mutate.log 2>&1; }
program() { find build/tests -name "$1" -type f -perm -u+x -print -quit; }

# $1: cpu, gpu (attn check), test, emulated (a test program and a filter); then its arguments.
targets_of() { case $1 in test | emulated) echo "$2" ;; esac; }
run_test() {
  local kind=$1
  shift
  case $kind in
    cpu) timeout 600 build/attn check "$@" ;;
    gpu) timeout 600 "${on_emulator[@]}" build/attn check --device cuda "$@" ;;
    test) timeout 600 "$(program "$1")" --gtest_filter="${2:-*}" ;;
    emulated) timeout 600 "${on_emulator[@]}" "$(program "$1")" --gtest_filter="${2:-*}" ;;
    *) echo "no kind of test is called $kind" >&2; exit 2 ;;
  esac > build/mutate.out 2>&1
}

survivors=0
declare -A passes_unchanged
while IFS='|' read -r name file change test; do
  if [ -z "$name" ] || [[ $name == \#* ]]; then continue; fi
  if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
  read -ra words <<< "$test"
  mapfile -t targets < <(targets_of "${words[@]}")
  build "${targets[@]}" || { cat build/mutate.log; exit 2; }
  if [ -z "${passes_unchanged[$test]:-}" ]; then
    run_test "${words[@]}" || { echo "fails without a mutation: $test"; tail -5 build/mutate.out; exit 2; }
    passes_unchanged[$test]=yes
  fi
  cp "$file" build/unchanged
  perl -0pi -e "$change" "$file"
  verdict=caught
  if cmp -s build/unchanged "$file"; then
    verdict="**changes nothing**"
  elif ! build "${targets[@]}"; then
    verdict="**does not compile**"
  elif run_test "${words[@]}"; then
    verdict="**survives**"
  fi
  cp build/unchanged "$file"
  [ "$verdict" = caught ] || survivors=$((survivors + 1))
  echo "| $name | \`$file\` | \`${test//|/\\|}\` | $verdict |"
done < "$table"
[ "$survivors" -eq 0 ]
