#!/usr/bin/env bash
# Many random problems, worker beside worker:
#
#   scripts/random_problems.sh [OPTION...] OUT COUNT SEED     problems SEED, SEED + 1, ... COUNT of them
#
#   --device cpu|cuda    default cpu; cuda: all GPUs in turn, each part on one of them
#   --phase PHASE        forward, backward or both (default)
#   --jobs N             parts at a time; default: one for each CPU
#   --part N             problems of a part; default 25
#   --limit SECONDS      parts that run then are ended, and counted as not run; default 540
#
# ATTN_BUILD names the build folder (default build). The output of each part goes to OUT; a table, the failures with the commands that
# repeat them and what did not run come last. Exits with 1 where anything failed or did not run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
device=cpu phase=both jobs=$(nproc) part=25 limit=540
while [[ ${1:-} == --* ]]; do
  case $1 in
    --device) device=${2:-} ;;
    --phase) phase=${2:-} ;;
    --jobs) jobs=${2:-} ;;
    --part) part=${2:-} ;;
    --limit) limit=${2:-} ;;
    *) echo "random_problems.sh: $1 is no option; accepted are --device, --phase, --jobs, --part and --limit" >&2 && exit 2 ;;
  esac
  shift 2 || exit 2
done
number='^[1-9][0-9]*$'
if [[ $# -ne 3 || ! $2$3$jobs$part$limit =~ $number || ! $device =~ ^(cpu|cuda)$ ]]; then
  sed -n '2,14p' "$0"
  exit 2
fi
out=$1 count=$2 seed=$3
attn=${ATTN_BUILD:-build}/attn
gpus=0
[[ $device == cpu ]] || gpus=$(nvidia-smi -L | wc -l)
mkdir -p "$out" && rm -f "$out"/part.*

# One thread each, as there is a part for each CPU.
run_part() { # $1: number of the part
  local first=$((seed + $1 * part)) left=$((limit - SECONDS)) problems=$((count - $1 * part))
  ((left > 0)) || return 0
  ((problems < part)) || problems=$part
  local on=(--threads 1)
  [[ $device == cpu ]] || on=(--device cuda)
  [[ $device == cpu || $gpus -lt 2 ]] || export CUDA_VISIBLE_DEVICES=$(($1 % gpus))
  timeout "$left" "$attn" check --random "$problems" --seed "$first" --phase "$phase" "${on[@]}" > "$out/part.$first" 2>&1
}

parts=$(((count + part - 1) / part))
for ((i = 0; i < parts; ++i)); do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
  run_part "$i" &
done
wait

finished=$(cat "$out"/part.* | grep -E '^[0-9]+ cases, [0-9]+ checks: ')
read -r cases checks passed failed < <(awk '{ c += $1; n += $3; p += $5; f += $7 } END { print c + 0, n + 0, p + 0, f + 0 }' <<< "$finished")
grep -hE '^FAILED|^  (o|lse|d[a-z_0-9]*) +(error|times)|repeat with' "$out"/part.* | cut -c1-400 > "$out/failures.txt"
printf '%s, %s, seeds %d to %d: %d problems, %d checks, %d passed, %d failed, %d problems not run; %d s\n' \
  "$device" "$phase" "$seed" $((seed + count - 1)) "$cases" "$checks" "$passed" "$failed" $((count - cases)) "$SECONDS"
head -60 "$out/failures.txt"
((failed == 0 && cases == count))
