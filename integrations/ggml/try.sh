#!/usr/bin/env bash
# Builds llama.cpp's programs from its sources, and the backend, then runs what is asked for:
#   integrations/ggml/try.sh build LLAMA_CPP FOLDER        # the folder of llama.cpp's sources; a new or old build folder
#   integrations/ggml/try.sh test FOLDER [PARAMETERS]      # test-backend-ops; PARAMETERS is a regular expression
#   integrations/ggml/try.sh times FOLDER [THREADS]        # processor time of single operations, beside ggml's CPU backend
#   integrations/ggml/try.sh tokens FOLDER MODEL.gguf [CACHE]    # tokens a second of processor time, with and without; f16 or q8_0
#   integrations/ggml/try.sh bench FOLDER MODEL.gguf [THREADS]   # the same by llama-bench, of wall time: for an idle machine
set -euo pipefail

usage() {
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

build() {  # build LLAMA_CPP FOLDER
  local here
  here=$(cd "$(dirname "$0")" && pwd)
  cmake -S "$1" -B "$2/llama" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF
  cmake --build "$2/llama" --target llama-bench test-backend-ops
  cmake -S "$here" -B "$2/attn" -G Ninja -DGGML_SOURCE_DIR="$1/ggml" \
    -DGGML_LIBRARY_DIR="$2/llama/bin"
  cmake --build "$2/attn"
}

with_attn() {  # with_attn FOLDER COMMAND...
  GGML_BACKEND_PATH=$1/attn/libggml-attn.so "${@:2}"
}

# Counts, and cases that failed.
run_tests() {  # run_tests FOLDER PARAMETERS
  local log
  log=$(mktemp)
  with_attn "$1" "$1/llama/bin/test-backend-ops" test -b attn -o FLASH_ATTN_EXT -p "$2" >"$log" 2>&1 || true
  printf 'passed %s, failed %s, not supported %s\n' "$(grep -c '): .*OK' "$log")" "$(grep -c '): .*FAIL' "$log")" \
    "$(grep -c '): not supported' "$log")"
  sed -nE 's/.*(type_K=[a-z0-9_]+,type_V=[a-z0-9_]+).*\): not supported.*/not supported: \1/p' "$log" | sort | uniq -c
  ! grep -E '\): .*FAIL' "$log" && grep -q 'backends passed' "$log"
}

# REPEATS: how often (2). llama-bench reads the prompt to the depth before it decodes.
run_bench() {  # run_bench FOLDER MODEL THREADS
  local bench=("$1/llama/bin/llama-bench" -m "$2" -fa 1 -t "$3" -r "${REPEATS:-2}" -o csv) who
  for tokens in 512 2048 8192; do
    for who in ggml attn; do
      for work in "-p $tokens -n 0" "-p 0 -n 32 -d $tokens"; do
        printf '%s, %s threads, load %s: %s: ' "$who" "$3" "$(cut -d ' ' -f 1 /proc/loadavg)" "$work"
        # shellcheck disable=SC2086  # words of options
        if [[ $who == attn ]]; then with_attn "$1" "${bench[@]}" $work; else "${bench[@]}" $work; fi 2>/dev/null |
          python3 -c 'import csv, sys; print(*(f"{float(row["avg_ts"]):.1f} tokens/s" for row in csv.DictReader(sys.stdin)))'
      done
    done
  done
}

case ${1:-} in
  build) [[ $# -eq 3 ]] || usage; build "$2" "$3" ;;
  test) [[ $# -ge 2 ]] || usage; run_tests "$2" "${3:-.}" ;;
  times) [[ $# -ge 2 ]] || usage; with_attn "$2" "$2/attn/ggml-attn-times" "${3:-1}" ;;
  tokens)
    [[ $# -ge 3 ]] || usage
    "$2/attn/ggml-attn-tokens" "$3" "${4:-f16}"
    with_attn "$2" "$2/attn/ggml-attn-tokens" "$3" "${4:-f16}" ;;
  bench) [[ $# -ge 3 ]] || usage; run_bench "$2" "$3" "${4:-1}" ;;
  *) usage ;;
esac
