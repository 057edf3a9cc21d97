#!/usr/bin/env bash
# Runs the scripts of bench/papers and bench/gpu as far as a machine without a GPU can, at small sizes: pictures and sentences
# of the recorded results, a table, a page of the gallery. Where NumPy or PyTorch is missing, what needs it is named and left out.
#
#   tests/papers/run.sh BUILD [LIBRARY]    BUILD: a folder with the attn command; LIBRARY: libattn, default BUILD/libattn.a
#
# ATTN_FRAMEWORKS_ENV names an environment with PyTorch; default: that of python3. With PyTorch it takes some minutes of one core,
# without it seconds.
set -euo pipefail
build=$(realpath "${1:?usage: tests/papers/run.sh BUILD [LIBRARY]}")
library=${2:-$build/libattn.a}
cd "$(dirname "$0")/../.."
export PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# run COMMAND...: its output is shown where it fails.
run() {
  local start=$SECONDS
  if ! "$@" >"$out/output" 2>&1; then
    tail -n 25 "$out/output"
    echo "FAILED: $*"
    exit 1
  fi
  printf '%3d s  %s\n' $((SECONDS - start)) "${*//$out/OUT}"
}

# said TEXT: the last command printed it.
said() {
  grep -qF -- "$1" "$out/output" || { cat "$out/output" && echo "FAILED: it did not say: $1" && exit 1; }
}

# ---- Python alone
run find bench tests/papers -name '*.py' -exec python3 -c 'import ast, sys; [ast.parse(open(name).read(), name) for name in sys.argv[1:]]' {} +
run python3 tests/papers/crossovers.py
run python3 tests/papers/figure2.py
run python3 bench/papers/speedups.py bench/results/h200-appendix-e.json --out "$out/speedups"
said 'Linformer from n 1024 on' # the paper's table 20
said 'BigBird from n 16384 on'
run grep -q 'over cuDNN, causal' "$out/speedups.svg"
run python3 tests/papers/samples.py
run python3 bench/papers/figure2_draw.py bench/results/h200-figure2.json --out "$out/figure2"
said 'Middle, bf16: from B_c 64 to 512'
said 'Theorem 2: exponents of model (16 problems), plan (16 problems), l2 (16 problems)'
run cmp "$out/figure2.svg" bench/results/h200-figure2.svg
run python3 bench/papers/figure2_draw.py bench/results/h200-figure2-backward.json --out "$out/figure2"
said 'Left, backward: FlashAttention (B_c 64)'
run cmp "$out/figure2.svg" bench/results/h200-figure2-backward.svg
run "$build/attn" explain b1_n256_h1_d32_causal_bf16 -o "$out/page.html"
run test "$(wc -c <"$out/page.html")" -le 307200
run grep -q '</html>' "$out/page.html"

# ---- with NumPy: the environment of tests/numpy, where that has run
numpy=$build/numpy/bin/python
if [[ -x $numpy ]] && "$numpy" -c 'import numpy' 2>/dev/null; then
  run "$numpy" bench/papers/numerical_error.py --attn "$build/attn" --n 128 --seeds 1
  said 'attn flash_attention_2'
  run "$numpy" bench/papers/figure2.py --help
else
  echo 'left out, no NumPy: numerical_error.py, figure2.py'
fi

# ---- with PyTorch
python=${ATTN_FRAMEWORKS_ENV:+$ATTN_FRAMEWORKS_ENV/bin/}python3
small=(--attn "$build/attn" --batch 1 --heads 4 --lengths 128 --seconds 0.01 --threads 1)
if ! "$python" -c 'import torch' 2>/dev/null; then
  run python3 bench/papers/appendix_e.py --table 18 "${small[@]}" # attn's rows
  said 'attn flash_attention_2'
  echo 'left out, no PyTorch: cell_check.py, approximations.py, kernel_regression.py, tables_gpu.py, figure2_gpu.py, io_gpu.py, bench/gpu'
  exit
fi
for table in 11 18 21; do
  run "$python" bench/papers/appendix_e.py --table "$table" "${small[@]}"
  said 'PyTorch SDPA'
done
run "$python" bench/papers/cell_check.py
run "$python" bench/papers/approximations.py
run "$python" bench/papers/kernel_regression.py --attn "$build/attn" --n 600,300 --threads 1 --seconds 0.02 --rounds 1 --json "$out/regression.json"
run grep -q '"torch_both_ms"' "$out/regression.json"
report=("$python" tests/papers/figure2_report.py "$build/attn" "$out/figure2")
run "${report[@]}" forward
said 'Left: FlashAttention moves'
said 'Middle, bf16: from B_c 64 to 512'
said 'Theorem 2: exponents of model (16 problems), plan (16 problems), l2 (16 problems)'
run "${report[@]}" backward
said 'Left, both passes: FlashAttention (B_c 64)'
said 'Theorem 5: exponents of model (18 problems), plan (18 problems), l2 (18 problems)'
run grep -q 'b2 n1024 h16 d64 f32, both passes' "$out/figure2.svg"
# Programs of a GPU, on the CPU.
run "${CXX:-c++}" -std=c++20 -shared -fPIC -DATTN_C_ON_CPU -Iinclude bench/gpu/attn_c.cpp "$library" -lfmt -ldl -lpthread -o "$out/attn_c.so"
on_cpu() {
  local script=$1
  shift
  run "$python" tests/papers/on_cpu.py "$script" --library "$out/attn_c.so" "$@"
}
on_cpu bench/papers/tables_gpu.py --lengths 512 --parts mask_dropout,plain --methods 'attn;attn, block-sparse;PyTorch eager;Local' --small --most 1000 --out "$out/tables.json"
said 'plain, both passes'
on_cpu bench/papers/tables_gpu.py --lengths 256,512 --parts heads --dims 32 --methods 'attn;PyTorch eager' --small --most 1000 --out "$out/tables.json"
run grep -q 'over standard, mask, dropout' "$out/tables-heads.svg"
on_cpu bench/gpu/forward_peers.py --dtype f16 --peers cudnn --lengths 512 --dims 256 --out "$out/forward.json"
run grep -q '"dtype": "f16"' "$out/forward.json"
run cp "$out/attn_c.so" "$out/attn_c_2.so"
for phase in forward backward; do
  run "$python" tests/papers/on_cpu.py bench/gpu/builds.py --libraries "$out/attn_c.so,$out/attn_c_2.so" --phase "$phase" --lengths 64 --dims 256
  said 'attn_c_2.so, d 256:'
done
for script in bench/papers/{figure2_gpu,io_gpu}.py bench/gpu/{backward_peers,forward_features,backward_features,backward_deterministic,matmul_peers}.py; do
  run "$python" tests/papers/on_cpu.py "$script" --help
done
