#!/usr/bin/env bash
# All that needs a GPU, on a machine without a network: build, test, check memory and races, bench.
#
#   scripts/gpu.sh OUT [STEP...]     steps: build test sanitize bench; default: all of them
#
# Results go to files in the folder OUT; OUT/summary.txt, printed last, says what failed, and
# OUT/tests.txt the same with the commit, the machine and the GPU, as bench/results keeps it. ATTN_BUILD
# names the build folder (default build-gpu); with a build there already, leave the step out.
# ATTN_GPU_DEVICE: cuda (default), cuda:1, ... for check and bench.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

if [[ $# -lt 1 ]]; then
  sed -n '2,9p' "$0"
  exit 2
fi
mkdir -p "$1" || exit
out=$(cd "$1" && pwd)
shift
steps=("$@")
[[ ${#steps[@]} -gt 0 ]] || steps=(build test sanitize bench)
build=${ATTN_BUILD:-build-gpu}
device=${ATTN_GPU_DEVICE:-cuda}
summary=$out/summary.txt
failed=0
: >"$summary"

say() { printf '%s\n' "$*" | tee -a "$summary"; }

# run NAME FILE COMMAND...: the output goes to OUT/FILE, ok or FAILED and the time to the summary.
run() {
  local name=$1 file=$out/$2 start=$SECONDS code=0
  shift 2
  "$@" >"$file" 2>&1 || code=$?
  local verdict=ok
  if [[ $code -ne 0 ]]; then
    verdict="FAILED ($code)"
    failed=1
  fi
  say "$(printf '%-12s %4d s  %s' "$verdict" $((SECONDS - start)) "$name")"
  return "$code"
}

step_build() {
  run configure configure.txt cmake -G Ninja -B "$build" -DCMAKE_BUILD_TYPE=Release \
    -DATTN_BUILD_TESTS=ON -DATTN_BUILD_EXAMPLES=OFF &&
    run build build.txt cmake --build "$build"
}

# One line of numbers, and why tests were skipped.
count_tests() {
  local passed skipped broken
  passed=$(cat "$@" | grep -c '^\[       OK \]')
  skipped=$(cat "$@" | grep -c '^\[  SKIPPED \].*(.*ms)$')
  broken=$(cat "$@" | grep -c '^\[  FAILED  \].*(.*ms)$')
  say "tests: $passed passed, $broken failed, $skipped skipped"
  grep -h '^skipped: ' "$@" | cut -c1-140 | sort | uniq -c | sort -rn | head -8 | tee -a "$summary"
}

step_test() {
  local test files=()
  for test in "$build"/tests/cuda/cuda_*_test "$build"/tests/cuda/expr/cuda_expr_test; do
    local name=${test##*/}
    run "$name" "$name.txt" "$test" --gtest_brief=0
    files+=("$out/$name.txt")
  done
  count_tests "${files[@]}"
  run "2000 random problems" random.txt \
    "$build/attn" check --random 2000 --seed 1 --device "$device"
  tail -n 2 "$out/random.txt" | cut -c1-300 | tee -a "$summary"
}

# Small, and each with something of its own: edges of tiles, strides, packed, paged, splits, loads.
sanitized=(
  b1_n64_h1_d64_bf16
  b2_n200_hq4_hk2_d64_causal_bf16
  b1_sq130_sk257_h2_d128_window64x0_f16/strided
  b2_n150_h2_d64_packed_causal_bf16
  b2_sq3_sk300_hq4_hk1_d128_paged16_bf16
  b1_sq1_sk2048_hq8_hk2_d64_bf16
  b2_n100_h2_d96_dv40_softcap10_alibi_bias_sink_bf16/padded
  b1_n140_h2_d64_documents_dropout0.2_seed3_f16
  b1_n70_h1_d256_bf16
  b1_n33_h2_d40_f32
)

step_sanitize() {
  local tool sanitizer
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
  if [[ -z $sanitizer ]]; then
    say "skipped: compute-sanitizer is not installed"
    return
  fi
  for tool in memcheck racecheck initcheck synccheck; do
    run "$tool" "$tool.txt" "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$build/attn" check "${sanitized[@]}" --device "$device"
    grep -h 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/$tool.txt" | tail -n 1 | tee -a "$summary"
  done
}

step_bench() {
  local suite name
  for suite in bench/suites/gpu-*.txt; do
    name=$(basename "$suite" .txt)
    run "$name" "$name.txt" "$build/attn" bench "@$suite" --device "$device" \
      --json "$out/$name.json" --seconds 0.3
    cat "$out/$name.txt" >>"$summary"
  done
}

if [[ -x $build/attn ]] || [[ " ${steps[*]} " == *" build "* ]]; then
  for step in "${steps[@]}"; do
    case $step in
      build) step_build ;;
      test) step_test ;;
      sanitize) step_sanitize ;;
      bench) step_bench ;;
      *)
        say "step '$step' is not known; accepted are build, test, sanitize and bench"
        failed=1
        ;;
    esac
    # Nothing runs without a build.
    [[ -x $build/attn ]] || break
  done
  if [[ -x $build/attn ]]; then "$build/attn" info >"$out/info.txt" 2>&1; fi
else
  say "no build in $build; add the step build, or set ATTN_BUILD"
  failed=1
fi

{
  git log -1 --format='commit %h, %cs' 2>/dev/null
  if [[ -x $build/attn ]]; then "$build/attn" info | grep -E '^(version|NVRTC| +cuda)'; fi
  cat "$summary"
} >"$out/tests.txt"

printf '\n===== summary\n'
cat "$summary"
exit "$failed"
