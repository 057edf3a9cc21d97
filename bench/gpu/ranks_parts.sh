#!/usr/bin/env bash
# Where the time of ranks on GPUs goes, in under 150 s: kernels of each rank alone, copies, sums, all together; then random problems.
#
#   bench/gpu/ranks_parts.sh OUT [RANKS]     RANKS: GPUs, 2 or more; default: 2
#
# ATTN_BUILD names the build folder (default build-gpu), which has the targets attn and attn_command. Lines come as they are
# measured, and OUT/ranks_parts.txt has all of them. CHECK_SECONDS: how long random problems are checked (default 50).
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
[[ $# -ge 1 ]] || { sed -n '2,7p' "$0" >&2 && exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
ranks=${2:-2}
build=${ATTN_BUILD:-build-gpu}
limit=${CHECK_SECONDS:-50}
n=$((8192 * ranks))
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export ATTN_CACHE_DIR=${ATTN_CACHE_DIR:-$scratch/cache}
mkdir -p "$ATTN_CACHE_DIR"
start=$SECONDS
{
  c++ -O2 -std=c++20 -Iinclude -Isrc bench/gpu/ranks_parts.cpp "$build/libattn.a" -lfmt -ldl -lpthread -o "$scratch/parts" &
  c++ -O2 -std=c++20 -Iinclude -Isrc bench/gpu/ranks.cpp "$build/libattn.a" -lfmt -ldl -lpthread -o "$scratch/ranks" &
  wait
  for problem in "b1_n${n}_hq64_hk8_d128_causal_bf16" \
    "b6_sq$((n / 2))_sk$((n / 2))_hq64_hk8_d128_causal_packed_bf16/$((n / 2)),$((n / 4)),$((n / 8)),$((n / 16)),$((n / 32)),$((n / 32))" \
    "b1_n${n}_hq64_hk8_d128_window4096x0_sink_bf16"; do
    timeout 25 "$scratch/parts" "$ranks" "$problem"
    echo "exit $?, $((SECONDS - start)) s"
  done
  timeout 15 "$scratch/ranks" "$ranks" "b1_n${n}_hq32_hk32_d128_causal_bf16" "b1_n${n}_hq8_hk1_d128_causal_bf16" 2>/dev/null
  echo "exit $?, $((SECONDS - start)) s"
  # Small random problems, beside each other.
  parts=$(nproc)
  ((parts <= 16)) || parts=16
  for ((i = 0; i < parts; ++i)); do
    timeout "$limit" stdbuf -oL "$build/attn" check --device cuda --ranks $((2 * ranks)) --random 1000 --verbose --seed $((9000 + i * 1000)) \
      >"$scratch/check.$i.txt" 2>&1 &
  done
  wait
  cat "$scratch"/check.*.txt >"$scratch/checks.txt"
  echo "random problems on 1 to $((2 * ranks)) ranks: $(grep -c '^ok' "$scratch/checks.txt") right," \
    "$(grep -c '^FAILED' "$scratch/checks.txt") wrong, $((SECONDS - start)) s"
  grep -h '^FAILED' "$scratch/checks.txt" | cut -c 1-300 | head -n 8
} 2>&1 | tee "$out/ranks_parts.txt"
