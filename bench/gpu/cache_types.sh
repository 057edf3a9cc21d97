#!/usr/bin/env bash
# Caches in types of their own on one GPU: checks, then times beside bf16 (cache_types.py). Needs PyTorch for the times.
#
#   bench/gpu/cache_types.sh OUT [--fa3 fa3_fwd/_C.abi3.so]
#
# ATTN_BUILD names the build folder (default build-gpu, as scripts/gpu.sh makes it). All output goes to OUT/*.txt.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
out=${1:?OUT} && shift
mkdir -p "$out"
build=${ATTN_BUILD:-build-gpu}
check() { "$build/attn" check --device cuda --phase forward "$@"; }
failed=0
check @tests/cuda/emulator/cache_types.txt >"$out/few-rows.txt" 2>&1 || failed=1
check @tests/cuda/emulator/cache_types_others.txt >"$out/others.txt" 2>&1 || failed=1
check --random 200 --seed 37000 >"$out/random.txt" 2>&1 || failed=1
for part in few-rows others random; do tail -n 2 "$out/$part.txt"; done
c++ -O2 -std=c++20 -shared -fPIC -Iinclude bench/gpu/attn_c.cpp "$build/libattn.a" -lfmt -ldl -lpthread \
  -o "$out/attn_c.so" || exit
python3 bench/gpu/cache_types.py --library "$out/attn_c.so" --out "$out/cache-types.json" "$@" >"$out/times.txt" 2>&1 ||
  failed=1
tail -n 12 "$out/times.txt"
exit $failed
