#!/usr/bin/env bash
# Experiments on a machine with a GPU, PyTorch and no network, for as long as one has it.
#
#   experiments/on_card.sh [OPTION...] DATA OUT PART...      DATA: has gpt2_merges.txt.xz; results go to OUT/results.tar.gz,
#                                                            checkpoints of what was cut off to OUT/checkpoints.tar.gz
#
#   --package FOLDER  has attn, built elsewhere, and shared libraries that it needs; where it does not run, or is not
#                     given, the library is built here
#   --wheels FOLDER   of wheels to install first: nanobind, nanobind-backend
#   --limit SECONDS   all ends then; 560
#   --checkpoints MB  how much of checkpoints goes there together, the smallest first; 15
#   --from FILE       results.tar.gz that came back, and once more checkpoints.tar.gz: what is missing goes on from there
#   PART              gpt2 gpt2_dropout gpt2_350M attention_share training_throughput gpt2_context bert flash_decoding
#                     long_range_arena path_x long_documents, run in the given order; long: the last three, each for
#                     a share of what is left. These three go on where the call stopped whose file --from names
#
# EXTRA in the environment has more arguments for all, as --toy.
# PART or PART@SECONDS, after which that part ends, with what it has. A cut-off loses the measurement that runs, no other.
set -uo pipefail
shopt -s extglob
script=$(realpath "$0")
usage() { sed -n '2,/^set/{/^#/p}' "$script" >&2 && exit 2; }
cd "$(dirname "$0")/.." || exit
package='' wheels='' limit=560 megabytes=15 earlier=() given=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --package) package=$(realpath "${2:?}") && shift ;;
    --wheels) wheels=${2:?} && shift ;;
    --limit) limit=${2:?} && shift ;;
    --checkpoints) megabytes=${2:?} && shift ;;
    --from) earlier+=("$(realpath "${2:?}")") && shift ;;
    --*) usage ;;
    *) given+=("$1") ;;
  esac
  shift
done
[[ ${#given[@]} -ge 3 ]] || usage
mkdir -p "${given[0]}" "${given[1]}"
data=$(realpath "${given[0]}")
outside=$(realpath "${given[1]}")
parts=("${given[@]:2}")
python=${PYTHON:-python3}
work=${WORK:-$(mktemp -d)} # stays while the machine does: kernels, compiled graphs, the build
out=$work/results
rm -rf "$out" && mkdir -p "$out"
for file in "${earlier[@]}"; do tar -xzf "$file" -C "$work"; done
read -ra extra <<<"${EXTRA:-}"
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true
export ATTN_CACHE_DIR=$work/kernels TORCHINDUCTOR_CACHE_DIR=$work/inductor TRITON_CACHE_DIR=$work/triton

# Two files, as a machine may give back only a few and none that is large: of results nothing is lost to checkpoints.
pack() {
  tar -czf "$outside/new.tar.gz" --exclude='*.checkpoint.pt' -C "$work" results && mv "$outside/new.tar.gz" "$outside/results.tar.gz"
  local size file total=0 small=()
  while read -r size file; do
    total=$((total + size))
    if ((total <= megabytes * 1000000)); then small+=("$file"); fi
  done < <(cd "$work" && find results -name '*.checkpoint.pt' -printf '%s %p\n' | sort -n)
  rm -f "$outside/checkpoints.tar.gz"
  if [[ ${#small[@]} -gt 0 ]]; then tar -czf "$outside/checkpoints.tar.gz" -C "$work" "${small[@]}"; fi
}
preparing=()
trap 'kill $watching "${preparing[@]}" 2>/dev/null; pack' EXIT

# What the card did meanwhile.
nvidia-smi --query-gpu=timestamp,clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active,utilization.gpu \
  --format=csv -l 2 >"$out/clocks.csv" 2>/dev/null &
watching=$!

say() { echo "[$SECONDS s] $*" | tee -a "$out/on_card.txt"; }

works() { # works FOLDER: attn of FOLDER attends on the device
  local said
  said=$(PYTHONPATH=$1:$work/site LD_LIBRARY_PATH=$1:${LD_LIBRARY_PATH:-} "$python" -c '
import torch, attn, attn.torch
device = "cuda" if torch.cuda.is_available() else "cpu"
q = torch.ones(1, 128, 2, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
o = attn.torch.attention(q, q, q, causal=True)
o.sum().backward()
assert (o == 1).all()
print("attends on", device, torch.__version__, attn.__file__)' 2>&1 | tail -n 5)
  echo "$said" >>"$out/on_card.txt"
  grep -q '^attends' <<<"$said"
}

build() {
  cmake -G Ninja -S . -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD_TOOLS=OFF -DATTN_BUILD_TESTS=OFF \
    -DATTN_BUILD_EXAMPLES=OFF -DATTN_FMT_COMPILED_IN=ON && cmake --build "$work/build" &&
    PYTHONPATH=$work/site cmake -S python -B "$work/extension" -G Ninja -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD="$work/build" \
      -DPython_EXECUTABLE="$(command -v "$python")" && cmake --build "$work/extension" &&
    mkdir -p "$work/package" && cp -rs "$PWD/python/attn" "$work/package/" && ln -s "$work"/extension/_attn.*so "$work/package/attn/"
}

if [[ -n $wheels ]]; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$work/site" "$wheels"/*.whl
fi
# What takes a CPU a while, beside the build and what runs before it is asked for.
for name in long_range_arena long_documents; do
  if [[ " ${parts[*]} " =~ \ (long|$name)[\ @] && ${EXTRA:-} != *--toy* ]]; then
    nice "$python" -m experiments prepare "$name" --data "$data" >"$out/prepare_$name.txt" 2>&1 &
    preparing+=($!)
  fi
done
if [[ " ${parts[*]} " =~ \ (gpt2|training_throughput) && ! -f $data/python_train.bin ]]; then
  "$python" -m experiments data --data "$data" --tokens "${TOKENS:-6e7}" >"$out/data.txt" 2>&1 &
  reading=$!
fi
if [[ -z $package ]] || ! works "$package"; then
  say 'building the library'
  build >"$out/build.txt" 2>&1
  package=$work/package
  works "$package" || say 'attn does not work here'
fi
export PYTHONPATH=$package:$work/site LD_LIBRARY_PATH=$package:${LD_LIBRARY_PATH:-}
if [[ -n ${reading:-} ]]; then wait "$reading"; fi
say "data: $(tail -n 1 "$out/data.txt" 2>/dev/null)"

# Their models are small, and so are their checkpoints: a call of ten minutes after the other goes on.
goes_on() { [[ $1 == long_range_arena || $1 == path_x || $1 == long_documents ]]; }

run() { # run FOLDER NAME SECONDS ARGUMENT...: into OUT/FOLDER
  local folder=$1 name=$2 most=$3 left=$((limit - SECONDS))
  shift 3
  if ((most == 0 || most > left)); then most=$left; fi
  local keeps=(--no-checkpoint) ending=15
  if goes_on "$name"; then keeps=(--resume) && ending=30; fi # they test what was learnt, after their time is over
  if ((most <= ending + 10)); then say "$folder: no time left" && return; fi
  say "$folder: at most $most s"
  timeout --signal=INT --kill-after=5 "$most" "$python" -m experiments run "$name" --device cuda --data "$data" --out "$out/$folder" \
    --minutes "$(awk "BEGIN { print ($most - $ending) / 60 }")" "${keeps[@]}" "${extra[@]}" "$@" >>"$out/$folder.txt" 2>&1
  say "$folder: exit $?: $(tail -n 1 "$out/$folder.txt" | cut -c 1-200)"
  pack
}

# What is compiled takes less time beside each other; the runs then find it on disk.
compile_gpt2() { # compile_gpt2 STEPS ARGUMENTS RUN...
  local steps=$1 given of
  local waited=()
  read -ra given <<<"$2"
  shift 2
  for of in "$@"; do
    timeout 150 "$python" -m experiments run gpt2 --device cuda --data "$data" --out "$work/compile_$of" --steps "$steps" --runs "$of:2" "${given[@]}" "${extra[@]}" \
      >"$out/compile_$of.txt" 2>&1 &
    waited+=($!)
  done
  wait "${waited[@]}"
  say "compiled: $*"
}

for part in "${parts[@]}"; do
  IFS=@ read -r name most <<<"$part@0"
  most=${most%@0}
  arguments=()
  case $name in
    gpt2)
      compile_gpt2 "${STEPS:-300}" '' sdpa_cudnn attn sdpa_flash
      arguments=(--steps "${STEPS:-300}" --runs "${RUNS:-attn,sdpa_cudnn,attn_again,repeat,sdpa_flash,eager:80}")
      ;;
    gpt2_dropout) # shorter: masks differ between libraries, so that means are compared
      compile_gpt2 100 '--dropout 0.1' attn sdpa_flash sdpa_cudnn
      arguments=(--steps 100 --runs "attn,sdpa_flash,sdpa_cudnn" --dropout 0.1)
      ;;
    gpt2_350M) # speed and memory alone
      compile_gpt2 40 '--size 350M --micro-batches 4' attn sdpa_cudnn sdpa_flash
      arguments=(--size 350M --steps 40 --runs "attn,sdpa_cudnn,sdpa_flash,eager:8" --micro-batches 4)
      ;;
    long) # in the order of worth
      left=$((limit - SECONDS))
      run long_range_arena long_range_arena $((left * 45 / 100))
      run path_x path_x $((left * 35 / 100))
      run long_documents long_documents 0
      continue
      ;;
    *) ;;
  esac
  run "$name" "${name%_@(dropout|350M)}" "$most" "${arguments[@]}"
done
say 'end'
