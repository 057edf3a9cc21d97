#!/usr/bin/env bash
# All of the Python package that needs a GPU, on a machine with PyTorch, transformers and JAX and without a network.
#
#   python/tests/gpu.sh [OPTION...] BUILD OUT [PART...]      BUILD: a folder with libattn.a; results go to OUT
#
#   --wheels FOLDER   of wheels to install first: nanobind, nanobind-backend, and what else that machine lacks
#   --suite FILE      tests/test_flash_attn.py of Dao-AILab/flash-attention; without it the part suite is left out
#   --limit SECONDS   no part starts after that, and what runs then is ended; default: no limit
#   PART              layers jax tests suite peers; default: all, in this order
#
# Each part also has a limit of its own, PART_SECONDS in the environment: LAYERS_SECONDS=90, JAX_SECONDS=45, TESTS_SECONDS=110,
# SUITE_SECONDS=150, PEERS_SECONDS=95. All output goes to OUT/PART.txt; last comes a table: part, verdict, seconds, last line.
# PYTHON names the interpreter (python3).
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

usage() { sed -n '2,13p' "$0" >&2 && exit 2; }
wheels='' suite='' limit=0 given=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --wheels) wheels=${2:?} && shift ;;
    --suite) suite=${2:?} && shift ;;
    --limit) limit=${2:?} && shift ;;
    --*) usage ;;
    *) given+=("$1") ;;
  esac
  shift
done
[[ ${#given[@]} -ge 2 && $limit =~ ^[0-9]+$ ]] || usage
build=$(realpath "${given[0]}")
out=${given[1]}
parts=("${given[@]:2}")
[[ ${#parts[@]} -gt 0 ]] || parts=(layers jax tests suite peers)
for part in "${parts[@]}"; do
  case $part in
    layers | jax | tests | suite | peers) ;;
    *) echo "gpu.sh: part '$part' is not known; accepted are layers, jax, tests, suite and peers" >&2 && exit 2 ;;
  esac
done
mkdir -p "$out"
out=$(realpath "$out")
python=$(command -v "${PYTHON:-python3}") || exit
cores=$(nproc)
# More processes of the suite than so many find no memory on a GPU of 140 GB: its largest case takes 12 GB.
suite_jobs=$((cores + 4 < 20 ? cores + 4 : 20))
table=()
failed=0

# Of so many seconds, those that --limit leaves.
at_most() {
  local left=$((limit - SECONDS))
  if ((limit > 0 && left < $1)); then echo "$left"; else echo "$1"; fi
}

# time_part NAME SECONDS COMMAND...: the end of its output goes into the table.
time_part() {
  local name=$1 most=$2 start=$SECONDS code=0
  shift 2
  most=$(at_most "$most")
  if ((most <= 0)); then
    table+=("$(printf '%-7s %-10s' "$name" 'not run')")
    failed=1
    return 1
  fi
  timeout --signal=INT --kill-after=10 "$most" "$@" >"$out/$name.txt" 2>&1 || code=$?
  local verdict=ok
  ((code == 0)) || verdict="FAILED ($code)"
  ((code != 124 && code != 137)) || verdict=ended
  ((code == 0)) || failed=1
  table+=("$(printf '%-7s %-10s %4d s  %s' "$name" "$verdict" $((SECONDS - start)) "$(tail -n 1 "$out/$name.txt" | cut -c 1-130)")")
  return "$code"
}

# The package as python/tests/run.sh makes it, in a folder of its own. bash -c calls it, below.
# shellcheck disable=SC2317
install() {
  set -e
  if [[ -n $wheels ]]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" "$wheels"/*.whl
  fi
  cmake -S python -B "$folder/extension" -G Ninja -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD="$build" -DPython_EXECUTABLE="$python"
  cmake --build "$folder/extension"
  rm -rf "$folder/package"
  mkdir -p "$folder/package"
  cp -rs "$PWD/python/attn" "$folder/package/attn"
  ln -s "$folder"/extension/_attn.*so "$folder/package/attn/"
  "$python" -c '
import attn, torch
for name in ("torch", "transformers", "jax", "triton", "einops", "cupy", "psutil", "xdist"):
    try:
        print(name, getattr(__import__(name), "__version__", ""))
    except ImportError as error:
        print(error)
q = torch.ones(1, 3, 2, 64, device="cuda" if torch.cuda.is_available() else "cpu")
assert (attn.attention(q, q, q, causal=True) == 1).all()
print(attn.info())
print("installed; attends on", q.device)'
}

folder=$build/python-gpu
site=$folder/site
mkdir -p "$site"
export PYTHONPATH=$folder/package:$site${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
export ATTN_CACHE_DIR=${ATTN_CACHE_DIR:-$folder/kernels}
# Processes share a GPU: JAX takes memory as it needs it.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
# pytest's own plugins alone: others that are installed there may warn, and warnings are errors.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export -f install
export python wheels build folder site

if time_part install 120 bash -c install; then
  for part in "${parts[@]}"; do
    case $part in
      layers) time_part layers "${LAYERS_SECONDS:-90}" "$python" bench/python/torch_layers.py --device cuda --json "$out/h200-torch-layers.json" ;;
      jax) time_part jax "${JAX_SECONDS:-45}" "$python" bench/python/jax_overhead.py --json "$out/h200-jax-overhead.json" ;;
      tests)
        OMP_NUM_THREADS=2 ATTN_TEST_PROBLEMS=${ATTN_TEST_PROBLEMS:-30} time_part tests "${TESTS_SECONDS:-110}" \
          "$python" -m pytest -p no:cacheprovider -p xdist.plugin -n "$cores" -q python/tests --durations=15
        ;;
      suite)
        if [[ -z $suite ]]; then
          table+=("suite   left out: --suite is not given")
          continue
        fi
        seconds=$(at_most "${SUITE_SECONDS:-150}")
        # 20,436 cases of 88 groups: what compiles does not fit into the time of more.
        time_part suite "$seconds" "$python" python/tests/run_flash_attn_suite.py "$suite" --sample 28000 --kernels 0.001 \
          --fewest 20 --jobs "$suite_jobs" --seconds "$((seconds - 15))" --json "$out/flash-attn-suite.json"
        ;;
      peers)
        seconds=$(at_most "${PEERS_SECONDS:-95}")
        time_part peers "$((seconds + 8))" "$python" bench/python/torch_peers.py --seconds "$seconds" --json "$out/h200-torch-peers.json"
        ;;
    esac
  done
else
  cat "$out/install.txt"
fi
printf '%s\n' "${table[@]}" | tee "$out/gpu.txt"
exit "$failed"
