#!/usr/bin/env bash
# Ranks on several GPUs of a host, in under seven minutes: checks against fp64, compute-sanitizer, times beside one GPU and peers.
#
#   bench/gpu/ranks.sh OUT [RANKS]     RANKS: GPUs, 2 or more; default: 2
#
# ATTN_BUILD names the build folder (default build-gpu), which is built here where it has no library. RANDOM_PROBLEMS: how many
# are checked, as far as CHECK_SECONDS let them (defaults 300 and 150). All output goes to OUT/*.txt; the last lines are a table.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
[[ $# -ge 1 ]] || { sed -n '2,7p' "$0" >&2 && exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
ranks=${2:-2}
build=${ATTN_BUILD:-build-gpu}
count=${RANDOM_PROBLEMS:-300}
limit=${CHECK_SECONDS:-150}
failed=0
table=()
export ATTN_CACHE_DIR=${ATTN_CACHE_DIR:-$out/cache}
mkdir -p "$ATTN_CACHE_DIR"

if [[ ! -f $build/libattn.a || ! -x $build/attn ]]; then
  if ! { cmake -G Ninja -B "$build" -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD_TESTS=OFF && cmake --build "$build"; } \
    >"$out/build.txt" 2>&1; then
    tail -n 20 "$out/build.txt" && exit 1
  fi
fi
start=$SECONDS
c++ -O2 -std=c++20 -Iinclude -Isrc bench/gpu/ranks.cpp "$build/libattn.a" -lfmt -ldl -lpthread -o "$out/ranks" || exit
say() { table+=("$*") && printf '%s\n' "$*"; }
[[ $(nvidia-smi -L 2>/dev/null | wc -l) -ge $ranks ]] || say "fewer GPUs than $ranks ranks: some share one"

# 8192 tokens a GPU: grouped heads, head sizes, packed documents, masks and scores.
n=$((8192 * ranks))
problems=(
  "b1_n${n}_hq64_hk8_d128_causal_bf16"
  "b1_n${n}_hq32_hk32_d128_causal_bf16"
  "b1_n${n}_hq8_hk1_d128_causal_bf16"
  "b1_n${n}_hq64_hk8_d64_causal_bf16"
  "b1_n${n}_hq64_hk8_d256_causal_bf16"
  "b6_sq$((4096 * ranks))_sk$((4096 * ranks))_hq64_hk8_d128_causal_packed_bf16/$((4096 * ranks)),$((2048 * ranks)),$((1024 * ranks)),$((512 * ranks)),$((256 * ranks)),$((256 * ranks))"
  "b1_n${n}_hq64_hk8_d128_window4096x0_sink_bf16"
  "b1_n${n}_hq64_hk8_d128_prefix2048_bf16"
  "b1_n${n}_hq64_hk8_d128_causal_softcap30_alibi_bf16"
)

# 1. Each kernel compiles once, all problems beside each other; meanwhile random problems, compute-sanitizer and NCCL.
for i in "${!problems[@]}"; do
  timeout "$limit" "$out/ranks" --warm "$ranks" "${problems[i]}" >"$out/warm.$i.txt" 2>&1 &
done
parts=$(nproc)
((parts <= 30)) || parts=30
each=$(((count + parts - 1) / parts))
for ((i = 0; i < parts; ++i)); do
  timeout "$limit" "$build/attn" check --device cuda --ranks $((2 * ranks)) --random "$each" \
    --seed $((7000 + i * each)) >"$out/check.$i.txt" 2>&1 &
done
PATH=$PATH:/usr/local/cuda/bin
if command -v compute-sanitizer >/dev/null; then
  { # one problem has several groups of heads
    timeout "$limit" compute-sanitizer --error-exitcode 9 "$build/attn" check --device cuda --ranks "$ranks" --chunk 64 \
      b1_n512_hq64_hk8_d128_causal_bf16 b2_n300_hq8_hk4_d64_window50x0_sink_bf16/dlse >"$out/sanitizer.txt" 2>&1
    echo "exit $?" >>"$out/sanitizer.txt"
  } &
else
  echo 'not installed' >"$out/sanitizer.txt"
fi
for folder in /usr/local/cuda/include /usr/include; do [[ -f $folder/nccl.h ]] && break; done
{
  c++ -O1 -std=c++20 -Iinclude -Isrc -I. -isystem "$folder" -isystem /usr/local/cuda/include tests/dist/nccl_ranks.cpp \
    "$build"/verify/libattn_verify.a "$build/libattn.a" -L/usr/local/cuda/lib64 -lnccl -lcudart -lfmt -ldl -lpthread \
    -o "$out/nccl_ranks" && timeout "$limit" "$out/nccl_ranks" "$ranks"
  echo "exit $?"
} >"$out/nccl.txt" 2>&1 &
wait
ok=$(cat "$out"/check.*.txt | grep -c '^ok')
bad=$(cat "$out"/check.*.txt | grep -c '^FAILED')
say "random problems on 1 to $((2 * ranks)) ranks: $ok right, $bad wrong; $((SECONDS - start)) s with compiling"
((ok > 0 && bad == 0)) || { failed=1 && grep -h '^FAILED' "$out"/check.*.txt | cut -c 1-300 | head -n 5; }
say "compute-sanitizer: $(grep -h 'cases,' "$out/sanitizer.txt" | cut -c 1-60) $(grep 'ERROR SUMMARY' "$out/sanitizer.txt" | sed 's/=//g')" \
  "$(tail -n 1 "$out/sanitizer.txt")"
[[ $(tail -n 1 "$out/sanitizer.txt") == 'exit 0' ]] || failed=1
say "$(tail -n 2 "$out/nccl.txt" | tr '\n' ' ')"
[[ $(tail -n 1 "$out/nccl.txt") == 'exit 0' ]] || failed=1

# 2. Times: ours, then the others'.
timeout 150 "$out/ranks" "$ranks" "${problems[@]}" >"$out/times.txt" 2>"$out/plans.txt" || failed=1
while IFS= read -r line; do say "$line"; done <"$out/times.txt"
timeout 120 python3 bench/gpu/ranks_peers.py "$ranks" ${n}x64x8x128 ${n}x32x32x128 ${n}x8x1x128 ${n}x64x8x64 ${n}x64x8x256 \
  >"$out/peers.txt" 2>&1
grep -h '^peers' "$out/peers.txt" >/dev/null || tail -n 5 "$out/peers.txt"
while IFS= read -r line; do say "$line"; done < <(grep -h '^peers' "$out/peers.txt")
rm -rf "$out/cache" "$out/ranks" "$out/nccl_ranks"
printf '\n==== ranks on %s GPUs, ms (one GPU: forward backward; ranks: forward backward; %% of ideal), %d s\n' "$ranks" \
  $((SECONDS - start))
printf '%s\n' "${table[@]}" | tee "$out/summary.txt"
exit $failed
