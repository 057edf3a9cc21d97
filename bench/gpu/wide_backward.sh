#!/usr/bin/env bash
# The backward pass of head sizes above 256 on one GPU: checks, compute-sanitizer where it is there, then times
# (wide_backward.py). Needs PyTorch and Triton for the times.
#
#   bench/gpu/wide_backward.sh OUT
#
# ATTN_BUILD names the build folder (default build-gpu, as scripts/gpu.sh makes it). All output goes to OUT/*.txt.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
out=${1:?OUT}
mkdir -p "$out"
build=${ATTN_BUILD:-build-gpu}
failed=0
# part NAME COMMAND...: OUT/NAME.txt has its output, whose last lines are shown.
part() {
  local name=$1 verdict=ok
  shift
  "$@" >"$out/$name.txt" 2>&1 || verdict=FAILED failed=1
  echo "$name: $verdict"
  tail -n 2 "$out/$name.txt"
}
check() { part "$1" "$build/attn" check --device cuda --phase backward "${@:2}"; }

list=()
for sizes in 264 320_dv512 512_dv264 512 576_dv512; do
  while read -r problem; do list+=("$problem"); done < <(grep -v '^#' tests/cuda/emulator/backward_sm80.txt |
    sed -E "s/_d[0-9]+(_dv[0-9]+)?_/_d${sizes}_/")
done
list+=(b2_n1000_hq4_hk2_d512_causal_bf16 b1_n2000_h2_d320_dropout0.1_seed3_f16 b1_sq300_sk1500_h2_d576_dv512_window200x0_bf16)
for shape in '' /m32_x2_q1 /m32_x2_q1_s2 /m16_x1_q1; do
  check "checks${shape//\//-}" --kernel "backward_sm80$shape" "${list[@]}"
done
check random --random 200 --seed 36000
for tool in memcheck racecheck; do
  command -v compute-sanitizer >/dev/null || { echo "$tool: skipped: no compute-sanitizer" && continue; }
  part "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/attn" check --device cuda --phase backward \
    --kernel backward_sm80 @tests/cuda/emulator/backward_wide.txt b1_n100_h1_d320_causal_bf16
done
c++ -O2 -std=c++20 -shared -fPIC -Iinclude bench/gpu/attn_c.cpp "$build/libattn.a" -lfmt -ldl -lpthread \
  -o "$out/attn_c.so" || exit
part times python3 bench/gpu/wide_backward.py --library "$out/attn_c.so" --out "$out/wide-backward.json"
cat "$out/times.txt"
exit $failed
