#!/usr/bin/env bash
# Compiles the kernels of tests/cuda/kernels.txt for the architectures of the support table, without a GPU:
#   scripts/compile_kernels.sh [BUILD]
# Fails when one does not compile, spills more than its tile shape is allowed, or serialises its products. Exits with 77 and says
# why where NVRTC is not installed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
attn=${1:-build}/attn
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT

if ! "$attn" info | grep -q '^NVRTC .* at '; then
  echo "compile_kernels: skipped: $("$attn" info | grep '^NVRTC' || echo 'NVRTC is not found')"
  exit 77
fi
failed=0
pids=()
for arch in sm_90a sm_80,sm_120; do
  "$attn" compile @tests/cuda/kernels.txt --arch "$arch" --cache-dir "$cache" --strict \
    >"$cache/$arch.log" 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
cat "$cache"/*.log
exit "$failed"
