#!/usr/bin/env bash
# All that bench/results has of a GPU, timed in one go on a machine with PyTorch and Triton: one GPU, nothing beside it.
#
#   bench/gpu/round.sh OUT [--fa3 LIBRARY] [--limit SECONDS] [--prefix NAME] [PART...]
#
#   --fa3      flash_attn_3/_C.so of the wheel xformers, FlashAttention-3; default: without it
#   --limit    no part starts after that, and what runs then is ended; default: no limit
#   --prefix   of the results' names; default: h200
#   PART       forward backward features deterministic layers peers papers; default: all, in this order
#
# ATTN_BUILD names the build folder (default build-gpu, as scripts/gpu.sh makes it), ATTN_COMMIT the commit where the folder
# is no checkout. layers and peers need the Python package, installed or as python/tests/run.sh makes it there. Results go to
# OUT/NAME-*.json, all output to OUT/*.txt; last comes a table: part, verdict, seconds, the last line of the output.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

usage() { sed -n '2,14p' "$0" >&2 && exit 2; }
out='' fa3='' limit=0 prefix=h200 parts=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --fa3) fa3=$(realpath "${2:?}") && shift ;;
    --limit) limit=${2:?} && shift ;;
    --prefix) prefix=${2:?} && shift ;;
    --*) usage ;;
    *) if [[ -z $out ]]; then out=$1; else parts+=("$1"); fi ;;
  esac
  shift
done
[[ -n $out && $limit =~ ^[0-9]+$ ]] || usage
[[ ${#parts[@]} -gt 0 ]] || parts=(forward backward features deterministic layers peers papers)
mkdir -p "$out"
out=$(realpath "$out")
build=$(realpath "${ATTN_BUILD:-build-gpu}")
commit=${ATTN_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null)}
export PYTHONPATH=$build/python/package${PYTHONPATH:+:$PYTHONPATH}
table=()

c++ -O2 -std=c++20 -shared -fPIC -Iinclude bench/gpu/attn_c.cpp "$build/libattn.a" -lfmt -ldl -lpthread \
  -o "$out/attn_c.so" || exit

# time_part NAME COMMAND...: OUT/NAME.txt has its output; its last line goes into the table.
time_part() {
  local name=$1 start=$SECONDS code=0 left=86400
  shift
  if ((limit > 0)); then left=$((limit - SECONDS)); fi
  if ((left <= 0)); then
    table+=("$(printf '%-22s %-10s' "$name" 'not run')")
    return
  fi
  timeout "$left" "$@" >"$out/$name.txt" 2>&1 || code=$?
  local verdict=ok
  ((code == 0)) || verdict="FAILED ($code)"
  ((code != 124)) || verdict="ended"
  ((code == 0)) || failed=1
  table+=("$(printf '%-22s %-10s %4d s  %s' "$name" "$verdict" $((SECONDS - start)) "$(tail -n 1 "$out/$name.txt" | cut -c 1-110)")")
}

# A script of bench/gpu that takes --library, --out and --commit.
gpu() {
  local name=$1 script=$2
  shift 2
  time_part "$name" python3 "bench/gpu/$script.py" --library "$out/attn_c.so" --out "$out/$prefix-$name.json" --commit "$commit" "$@"
}

with_fa3=()
[[ -z $fa3 ]] || with_fa3=(--fa3 "$fa3")
failed=0
for part in "${parts[@]}"; do
  case $part in
    forward) gpu forward forward_peers --peers cudnn --rep 12 "${with_fa3[@]}" ;;
    backward) gpu backward backward_peers --rep 12 "${with_fa3[@]}" ;;
    features)
      gpu backward-features backward_features --rep 10 "${with_fa3[@]}"
      gpu forward-features forward_features --rep 10
      ;;
    deterministic) gpu backward-deterministic backward_deterministic --rep 10 --repeats 50 ;;
    layers) time_part torch-layers python3 bench/python/torch_layers.py --device cuda --json "$out/$prefix-torch-layers.json" ;;
    peers) time_part torch-peers python3 bench/python/torch_peers.py --json "$out/$prefix-torch-peers.json" ;;
    papers)
      time_part figure2 python3 bench/papers/figure2_gpu.py --attn "$build/attn" --library "$out/attn_c.so" --out "$out/$prefix-figure2"
      time_part appendix-e python3 bench/papers/tables_gpu.py --attn "$build/attn" --library "$out/attn_c.so" --out "$out/$prefix-appendix-e.json"
      ;;
    *) echo "round.sh: part '$part' is not known; accepted are forward, backward, features, deterministic, layers, peers and papers" >&2 && exit 2 ;;
  esac
done
printf '%s\n' "${table[@]}" | tee "$out/round.txt"
exit "$failed"
