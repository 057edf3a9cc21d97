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

# Every second problem of a list, from its first or second one on: what runs the kernels of sm_80 on sm_100 and sm_120 differs
# in the size of shared memory alone, so that each of these takes half.
half() { grep -v '^#' "$2" | sed -n "$1~2p" >"$cache/half$1.txt"; }
half 1 tests/cuda/kernels.txt
half 2 tests/cuda/kernels.txt

# Compiles what the words of $1 name; as many of these run at once as there are processors.
compile() {
  local log
  log=$(mktemp "$cache/log.XXXXXX")
  # shellcheck disable=SC2086  # words of $1
  "$attn" compile --cache-dir "$cache" --strict $1 >"$log" 2>&1 || { cat "$log"; return 1; }
  cat "$log"
}
export -f compile
export attn cache
backward='@tests/cuda/kernels_backward.txt --phase backward'
sm90='@tests/cuda/kernels_backward_sm90.txt --phase backward --kernel backward_sm90 --arch sm_90a'
papers='b1_n1024_h8_d64_f32 b1_n1024_h8_d128_causal_dropout0.1_bf16 --phase backward --arch sm_80'
lists='b1_n4096_hq32_hk4_d128_causal_list2048_bf16 b1_n4096_hq16_hk1_d576_dv512_list2048_bf16 --phase backward'
ranks='b1_n1024_h4_d64_causal_bf16 b1_n1024_h4_d128_causal_bf16 b1_n1024_h4_d256_causal_bf16 --phase backward --float-sums'
# shellcheck disable=SC2016  # bash -c expands it
xargs --null --max-args 1 --max-procs "$(nproc)" bash -c 'compile "$1"' compile < <(
  printf '%s\0' '@tests/cuda/kernels.txt --arch sm_90a' '@tests/cuda/kernels.txt --arch sm_80' \
    "@$cache/half1.txt --arch sm_100" "@$cache/half2.txt --arch sm_120" \
    "$backward --arch sm_90a" "$backward --arch sm_80" "$backward --arch sm_120" \
    "$backward --deterministic --arch sm_80" "$backward --deterministic --arch sm_120" \
    "$sm90" "$sm90 --deterministic" "$ranks --arch sm_90a,sm_80" "$lists --arch sm_90a,sm_80" \
    "$papers --kernel backward_flash_attention" "$papers --kernel backward_standard"
)
