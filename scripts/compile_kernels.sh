#!/usr/bin/env bash
# Compiles the kernels of tests/cuda/kernels*.txt for the architectures of the support table:
#   scripts/compile_kernels.sh [BUILD]
# Needs no GPU. Fails when one does not compile, spills more than its tile shape is allowed, or
# serialises its products. Exits with 77 and says why where NVRTC is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
attn=${1:-build}/attn
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

info=$("$attn" info)
if ! grep -q '^NVRTC .* at ' <<<"$info"; then
  echo "compile_kernels: skipped: $(grep '^NVRTC' <<<"$info" || echo 'NVRTC is not found')"
  exit 77
fi

compile() { "$attn" compile --cache-dir "$cache" "$@"; }
hopper() {
  local code=0
  compile @tests/cuda/kernels.txt --arch sm_90a --strict || code=1
  compile @tests/cuda/kernels_backward.txt --phase backward --arch sm_90a --strict || code=1
  compile @tests/cuda/kernels_backward_sm90.txt --phase backward --kernel backward_sm90 \
    --arch sm_90a --strict || code=1
  compile @tests/cuda/kernels_backward_sm90.txt --phase backward --kernel backward_sm90 \
    --deterministic --arch sm_90a --strict || code=1
  return "$code"
}
others() {
  compile @tests/cuda/kernels.txt --strict --arch sm_80,sm_100,sm_120
  compile @tests/cuda/kernels_backward.txt --phase backward --strict --arch sm_80,sm_120
  compile @tests/cuda/kernels_backward.txt --phase backward --strict --deterministic \
    --arch sm_80,sm_120
  for kernel in backward_flash_attention backward_standard; do
    compile b1_n1024_h8_d64_f32 b1_n1024_h8_d128_causal_dropout0.1_bf16 --phase backward \
      --kernel "$kernel" --strict --arch sm_80 || return 1
  done
}

failed=0
hopper >"$cache/hopper.log" 2>&1 &
hopper=$!
others >"$cache/others.log" 2>&1 &
others=$!
wait "$hopper" || failed=1
wait "$others" || failed=1
cat "$cache/hopper.log" "$cache/others.log"
exit "$failed"
