#!/usr/bin/env bash
# scripts/gpu.sh with programs that pretend: what fails, does not end or is not run must be told.
#   tests/scripts/gpu_test.sh SCRIPT
set -euo pipefail
script=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/build/tests/cuda/expr" "$work/bin"

# program PATH BODY
program() {
  printf '#!/bin/bash\n%s\n' "$2" >"$1"
  chmod +x "$1"
}
passes='echo "[       OK ] A.Test (1 ms)"'
for name in conformance_test backward_test large_test visibility_test hidden_values_test driver_test expr/cuda_expr_test; do
  file=$work/build/tests/cuda/cuda_$name
  [[ $name == expr/* ]] && file=$work/build/tests/cuda/$name
  program "$file" "$passes"
done
# shellcheck disable=SC2016
program "$work/build/tests/cuda/cuda_refusals_test" 'echo "skipped: because"; echo "[  SKIPPED ] B.Test (0 ms)"; echo "[  FAILED  ] B.Other (2 ms)"; exit 1'
# shellcheck disable=SC2016
program "$work/build/attn" 'case "$*" in
  info) echo "version 0" ;;
  *random*) echo "50 cases, 50 checks: 49 passed, 1 failed" ;;
  *) echo "1 cases, 1 checks: 1 passed, 0 failed" ;;
esac'
# shellcheck disable=SC2016
program "$work/bin/compute-sanitizer" 'shift 4; "$@"; echo "========= ERROR SUMMARY: 0 errors"'

run() { ATTN_BUILD=$work/build PATH=$work/bin:$PATH bash "$script" "$@"; }
expect() {
  grep -qF -- "$1" "$2" && return
  echo "gpu_test: '$1' is not in:"
  cat "$2"
  exit 1
}

run --dry-run "$work/dry" test sanitize >"$work/listed"
parts=$(tail -n 1 "$work/listed" | cut -d' ' -f1)
[[ $parts -eq $(($(wc -l <"$work/listed") - 1)) && $parts -gt 200 ]]
[[ ! -e $work/dry ]] || { echo "gpu_test: --dry-run wrote something" && exit 1; }
expect 'memcheck.backward.b1_n64_h1_d64_bf16' "$work/listed"
expect 'random.backward.1951' "$work/listed"

code=0
run --jobs 8 "$work/out" test sanitize >"$work/screen" || code=$?
[[ $code -eq 1 ]] || { echo "gpu_test: exit code $code, not 1" && exit 1; }
summary=$work/out/summary.txt
expect "$parts parts, 8 at a time" "$summary"
expect 'tests: 93 passed, 1 failed, 1 skipped' "$summary"
expect 'random problems, forward: 2000 problems, 1960 checks passed, 40 failed' "$summary"
expect 'memcheck: 25 problems without an error, 0 with' "$summary"
expect 'FAILED: 1 parts: refusals (1, ' "$summary"
expect '1 skipped: because' "$summary"
[[ $(wc -l <"$summary") -le 24 ]]
if grep -q 'NOT RUN' "$summary"; then exit 1; fi

# A part that does not end, with a process of its own. Should it not be ended, CTest ends this test.
# shellcheck disable=SC2016
program "$work/build/tests/cuda/cuda_driver_test" 'sleep 4000 & echo $! > '"$work"'/sleeper; wait'
code=0
run --jobs 8 --limit 6 "$work/out" test >"$work/screen" || code=$?
[[ $code -eq 1 ]]
expect 'NOT RUN, or ended by the limit of 6 s: ' "$summary"
expect ' driver ' "$summary"
# A signal takes a moment; a zombie that nobody has waited for yet has ended.
lives() {
  local state
  state=$(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) || return
  [[ $state != [ZX]* ]]
}
for _ in {1..100}; do
  lives "$(cat "$work/sleeper")" || break
  sleep 0.1
done
if lives "$(cat "$work/sleeper")"; then echo "gpu_test: what a part started lives on" && exit 1; fi
run --limit x "$work/out" test >/dev/null 2>&1 && exit 1
run "$work/out" tests >/dev/null 2>&1 && exit 1
echo "gpu_test: ok"
