#!/usr/bin/env bash
# All that needs a GPU, on a machine without a network: build, test, check memory and races, bench.
#
#   scripts/gpu.sh [OPTION...] OUT [STEP...]     steps: build test sanitize bench; default: all
#
#   --limit SECONDS   of tests and sanitizers: no part starts after that, those that run are ended,
#                     and the summary says what did not run; default: no limit
#   --jobs N          parts at a time; default: one for each CPU
#   --dry-run         list the parts, run nothing
#
# Tests and sanitizers are parts of some seconds to a minute that run beside each other; the output
# of each goes to OUT/parts. OUT/summary.txt, printed last, is one screen: numbers, what failed, what
# did not run. OUT/tests.txt is the same with the commit, the machine and the GPU, as bench/results
# keeps it. ATTN_BUILD names the build folder (default build-gpu); with a build there already, leave
# the step out. ATTN_GPU_DEVICE: cuda (default), cuda:1, ... for check and bench.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
unset ATTN_TEST_QUICK # all cases, also those that it leaves out

limit=0
jobs=$(nproc)
dry_run=no
while [[ ${1:-} == --* ]]; do
  case $1 in
    --limit) limit=$2 && shift ;;
    --jobs) jobs=$2 && shift ;;
    --dry-run) dry_run=yes ;;
    *) echo "gpu.sh: $1 is no option; accepted are --limit, --jobs and --dry-run" >&2 && exit 2 ;;
  esac
  shift
done
if [[ $# -lt 1 || ! $limit =~ ^[0-9]+$ || ! $jobs =~ ^[1-9][0-9]*$ ]]; then
  sed -n '2,16p' "$0"
  exit 2
fi
out=$1
shift
steps=("$@")
[[ ${#steps[@]} -gt 0 ]] || steps=(build test sanitize bench)
build=${ATTN_BUILD:-build-gpu}
device=${ATTN_GPU_DEVICE:-cuda}
failed=0

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
    run build build.txt cmake --build "$build" -- -k 0 # all that does build is tested
}

# ---- parts: names, and commands as one line of shell each

names=()
commands=()
part() {
  names+=("$1")
  shift
  commands+=("$*")
}

# A test program in so many parts.
shards() {
  local program=$1 count=$2 filter=$3 name=$4 i
  for ((i = 0; i < count; ++i)); do
    part "$name.$i" "GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$i" \
      "$build/tests/cuda/$program --gtest_brief=0 --gtest_filter='$filter'"
  done
}

# Cases whose hint is `far`, and those of cuda_large_test, take most of the memory of a GPU, and of a machine: one after the
# other, beside the rest. Compiling takes most of the time, of the backward pass several seconds a problem.
parts_of_test() {
  local program name
  local far="$build/tests/cuda/cuda_conformance_test $build/tests/cuda/cuda_backward_test $build/tests/cuda/cuda_large_test"
  part far "bash -c 'code=0; for program in $far; do \$program --gtest_brief=0 --gtest_filter=*far*:CudaLarge* || code=1; done; exit \$code'"
  shards cuda_conformance_test 32 '*:-*far*' conformance
  for program in "$build"/tests/cuda/cuda_*_test "$build"/tests/cuda/expr/cuda_expr_test; do
    name=${program##*/cuda_}
    case $name in conformance_test | backward_test | large_test | visibility_test | hidden_values_test) continue ;; esac
    part "${name%_test}" "$program --gtest_brief=0"
  done
  shards cuda_visibility_test 4 '*' visibility
  shards cuda_hidden_values_test 4 '*' hidden_values
  shards cuda_backward_test 48 '*:-*far*' backward
}

# 2000 problems, each in both phases: last, as the most that a limit may leave out.
parts_of_random() {
  local phase seed
  for phase in forward backward; do
    for ((seed = 1; seed <= 2000; seed += 50)); do
      part "random.$phase.$seed" "$build/attn check --random 50 --seed $seed --phase $phase" \
        "--device $device"
    done
  done
}

# Small, and each with something of its own: edges of tiles, strides, packed, paged, splits, loads,
# dQ in order. A row is a problem, and after a space the options of `attn check` that it is run with.
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
  b1_sq2_sk500_hq20_hk1_d576_dv512_causal_bf16/vink
  b1_n33_h2_d40_f32
  b2_n160_h2_d64_bias1x2x160x160bf16_bf16
  'b2_n300_hq2_hk1_d64_causal_bf16 --deterministic'
)

parts_of_sanitize() {
  local tool problem phase sanitizer
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer)
  if [[ -z $sanitizer ]]; then
    say "skipped: compute-sanitizer is not installed"
    return
  fi
  for tool in memcheck racecheck initcheck synccheck; do
    for phase in forward backward; do
      for problem in "${sanitized[@]}"; do
        [[ $phase$problem == backward*paged* ]] && continue
        # racecheck takes one lane's arrival for its warp alone (bench/gpu/racecheck_ring.cu).
        case $tool.$phase.$problem in
          racecheck.backward.b2_n200_hq4_hk2_d64_causal_bf16 | racecheck.backward.b1_n70_h1_d256_bf16 | \
            racecheck.backward.b2_n160_h2_d64_bias1x2x160x160bf16_bf16 | \
            'racecheck.backward.b2_n300_hq2_hk1_d64_causal_bf16 --deterministic')
            [[ $dry_run == yes ]] ||
              say "left out: racecheck knows no arrival of a lane for its warp: $phase of $problem"
            continue
            ;;
        esac
        part "$tool.$phase.${problem//[\/ ]/_}" "$sanitizer --tool $tool --error-exitcode 9" \
          "$build/attn check '${problem%% *}'${problem#"${problem%% *}"} --phase $phase --device $device"
      done
    done
  done
}

# ---- running them

# Writes the exit code and the seconds to OUT/parts/NAME.end; ended by the limit: nothing.
run_part() {
  local name=$1 start=$SECONDS code=0
  bash -c "exec env $2" >"$out/parts/$name.txt" 2>&1 || code=$?
  echo "$code $((SECONDS - start))" >"$out/parts/$name.end"
}

run_parts() {
  local i running start=$SECONDS end=$((SECONDS + limit))
  for i in "${!names[@]}"; do
    while running=$(jobs -rp | wc -l) && ((running >= jobs)); do
      ((limit > 0 && SECONDS >= end)) && break 2
      sleep 0.1
    done
    ((limit > 0 && SECONDS >= end)) && break
    set -m # a group of its own, which can be ended whole
    run_part "${names[i]}" "${commands[i]}" &
    set +m
  done
  while [[ -n $(jobs -rp) ]]; do
    if ((limit > 0 && SECONDS >= end)); then
      for i in $(jobs -rp); do kill -TERM -- "-$i" 2>/dev/null; done
      break
    fi
    sleep 0.1
  done
  wait
  say "$(printf '%d parts, %d at a time, %d s' "${#names[@]}" "$jobs" $((SECONDS - start)))"
}

# Numbers of all logs of parts whose names begin so; 0 without any.
logs() {
  local prefix
  for prefix in "$@"; do find "$out/parts" -name "$prefix*.txt" -exec cat {} +; done
}
sum() { awk -v key="$1" '{ for (i = 2; i <= NF; ++i) if ($i ~ "^" key) n += $(i - 1) } END { print n + 0 }'; }

summarise() {
  local name code seconds missing=() broken=()
  for name in "${names[@]}"; do
    if [[ ! -f $out/parts/$name.end ]]; then
      missing+=("$name")
      continue
    fi
    read -r code seconds <"$out/parts/$name.end"
    # 3: no kernel takes any of the problems, or there is no GPU.
    [[ $code -eq 0 ]] || broken+=("$name ($code, $seconds s)")
  done
  local all checks tool
  all=$(logs '')
  say "tests: $(grep -c '^\[       OK \]' <<<"$all") passed, $(grep -c '^\[  FAILED  \].*(.*ms)$' <<<"$all") failed," \
    "$(grep -c '^\[  SKIPPED \].*(.*ms)$' <<<"$all") skipped"
  grep '^skipped: ' <<<"$all" | cut -c1-130 | sort | uniq -c | sort -rn | head -4 | tee -a "$summary"
  for tool in forward backward; do
    checks=$(logs "random.$tool." | grep ' checks: ')
    say "random problems, $tool: $(sum cases <<<"$checks") problems, $(sum passed <<<"$checks") checks" \
      "passed, $(sum failed <<<"$checks") failed"
  done
  for tool in memcheck racecheck initcheck synccheck; do
    checks=$(logs "$tool.")
    [[ -n $checks ]] || continue
    say "$tool: $(grep -c 'SUMMARY: 0 ' <<<"$checks") problems without an error," \
      "$(grep 'SUMMARY:' <<<"$checks" | grep -vc 'SUMMARY: 0 ') with"
  done
  if [[ ${#broken[@]} -gt 0 ]]; then
    failed=1
    say "FAILED: ${#broken[@]} parts: $(printf '%s; ' "${broken[@]:0:12}")"
    grep -h '^\[  FAILED  \].*(.*ms)$\|^FAILED ' <<<"$all" | cut -c1-150 | sort -u | head -12 | tee -a "$summary"
  fi
  if [[ ${#missing[@]} -gt 0 ]]; then
    failed=1
    say "NOT RUN, or ended by the limit of $limit s: ${#missing[@]} parts: $(printf '%s ' "${missing[@]}" | cut -c1-600)"
  fi
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

for step in "${steps[@]}"; do
  case $step in
    build | test | sanitize | bench) ;;
    *) echo "gpu.sh: step '$step' is not known; accepted are build, test, sanitize and bench" >&2 && exit 2 ;;
  esac
done
asked() { [[ " ${steps[*]} " == *" $1 "* ]]; }
collect() {
  if asked test; then parts_of_test; fi
  if asked sanitize; then parts_of_sanitize; fi
  if asked test; then parts_of_random; fi
}

if [[ $dry_run == yes ]]; then
  summary=/dev/null
  collect
  for i in "${!names[@]}"; do printf '%-40s %s\n' "${names[i]}" "${commands[i]}"; done
  echo "${#names[@]} parts"
  exit 0
fi

mkdir -p "$out/parts" || exit
out=$(cd "$out" && pwd)
summary=$out/summary.txt
: >"$summary"
find "$out/parts" -type f -delete

if asked build; then step_build; fi
if [[ -x $build/attn ]]; then
  collect
  if [[ ${#names[@]} -gt 0 ]]; then
    run_parts
    summarise
  fi
  if asked bench; then step_bench; fi
  "$build/attn" info >"$out/info.txt" 2>&1
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
