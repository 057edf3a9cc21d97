#!/usr/bin/env bash
# Mutations of the library, each of which a test must catch (docs/mutations.md). Works in copies of the committed tree.
#   scripts/mutate.sh [--jobs N] [NAME...]       rows of tests/mutations/table.txt; default: all, one at a time
#   scripts/mutate.sh --check                    only whether every row still changes its file; make test does this
#   ATTN_MUTATE_COPY=FOLDER scripts/mutate.sh    where the copies are; default build/mutate, kept for the next time
# Each of N workers has a copy and a build of its own, so that the first time takes N builds (ccache makes it one). First all tests
# must pass in an unchanged copy. Prints a Markdown table, in the order of the rows; exits with 1 where a mutation survives or
# could not be tried: rows of Python need PYTHON_ENVIRONMENT, an environment with what python/tests/run.sh asks for and PyTorch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
if [[ ${1:-} == --check ]]; then
  stale=0
  while IFS='|' read -r name file change _; do
    if ! changed=$(perl -0pe "$change" "$file") || [[ $changed == "$(< "$file")" ]]; then
      echo "mutate.sh: $name changes nothing in $file" >&2
      stale=1
    fi
  done < <(grep -v '^#\|^$' tests/mutations/table.txt)
  exit "$stale"
fi
workers=1
if [[ ${1:-} == --jobs ]]; then
  [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "mutate.sh: --jobs '${2:-}'; accepted are 1 and more" >&2; exit 2; }
  workers=$2
  shift 2
fi
folder=$(realpath -m "${ATTN_MUTATE_COPY:-build/mutate}")
cores=$(($(nproc) / workers > 0 ? $(nproc) / workers : 1)) # of a worker
rm -rf "$folder/results"
mkdir -p "$folder/results"

mapfile -t rows < <(grep -v '^#\|^$' tests/mutations/table.txt)
if [[ $# -gt 0 ]]; then
  rows=()
  for name in "$@"; do
    row=$(grep "^$name|" tests/mutations/table.txt) || { echo "mutate.sh: no row is called '$name'" >&2; exit 2; }
    rows+=("$row")
  done
fi
field() { cut -d'|' -f"$2" <<< "${rows[$1]}"; } # of a row; the test is the rest of the line, as a filter may have a |

# ---- a copy and its build

committed() { # the tree; where there is no repository, as on a machine for tests, the files that are here
  if git rev-parse -q --verify HEAD > /dev/null 2>&1; then
    git archive HEAD
  else
    tar -c --exclude='./build*' --exclude=./.git --exclude=./shared .
  fi
}
prepare() { # $1: worker. Only files that differ are written, so that nothing else is built again.
  local copy=$folder/$1 new=$folder/new.$1
  rm -rf "$new"
  mkdir -p "$copy" "$new"
  committed | tar -x -C "$new"
  while IFS= read -r -d '' file; do
    cmp -s "$new/$file" "$copy/$file" || install -D "$new/$file" "$copy/$file"
  done < <(cd "$new" && find . -type f -print0)
  rm -rf "$new"
  cd "$copy"
  [[ -f build/build.ninja ]] || cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=Release -DATTN_BUILD_TESTS=ON -DATTN_BUILD_EXAMPLES=OFF > configure.log 2>&1
}
build() { cmake --build build -j "$cores" --target attn_command attn_emulated_gpu "$@" > build.log 2>&1; }

# ---- tests: cpu, gpu, gpu16 (attn check), test, emulated (a test program and a filter), python (a filter); then their arguments

emulator=build/tests/cuda/emulator/driver
on_emulator=(env "LD_LIBRARY_PATH=$emulator" "ATTN_NVRTC=$emulator/libcuda.so.1" ATTN_CACHE_DIR=)
program() { find build/tests -name "$1" -type f -perm -u+x -print -quit; }
target_of() { case $1 in test* | emulated*) read -r _ name _ <<< "$1" && echo "$name" ;; esac; }
run_python() { # $@: words of a filter. 77: the environment lacks what the test needs, so that it was skipped or not found.
  local status=0
  local log=build/python.log # one at a time, as run.sh makes the package anew
  exec 9> build/python.lock
  flock 9
  timeout 600 bash python/tests/run.sh build -k "$*" > "$log" 2>&1 || status=$?
  cat "$log"
  [[ $status -ne 5 ]] || status=77
  [[ $status -ne 0 || $(tail -1 "$log") == *passed* ]] || status=77
  exec 9>&-
  return "$status"
}
run_test() { # 77: not run
  local words
  read -ra words <<< "$1"
  local kind=${words[0]} arguments=("${words[@]:1}")
  case $kind in
    cpu) timeout 600 build/attn check "${arguments[@]}" ;;
    gpu) timeout 600 "${on_emulator[@]}" build/attn check --device cuda "${arguments[@]}" ;;
    gpu16) timeout 600 "${on_emulator[@]}" ATTN_EMULATED_MULTIPROCESSORS=16 build/attn check --device cuda "${arguments[@]}" ;;
    test) timeout 600 "$(program "${arguments[0]}")" --gtest_filter="${arguments[1]:-*}" ;;
    emulated) timeout 600 "${on_emulator[@]}" "$(program "${arguments[0]}")" --gtest_filter="${arguments[1]:-*}" ;;
    python) run_python "${arguments[@]}" ;;
    *) echo "no kind of test is called $kind" ;;
  esac
}

# ---- one row in a worker's copy

mutate() { # $1: row
  local name file change test verdict=caught target status=0
  name=$(field "$1" 1) file=$(field "$1" 2) change=$(field "$1" 3) test=$(field "$1" 4-)
  target=$(target_of "$test")
  cp "$file" unchanged
  perl -0pi -e "$change" "$file"
  if cmp -s unchanged "$file"; then
    verdict="**changes nothing**"
  elif ! build ${target:+"$target"}; then
    verdict="**does not compile**"
  else
    run_test "$test" > test.log 2>&1 || status=$?
    [[ $status -ne 0 ]] || verdict="**survives**"
    [[ $status -ne 77 ]] || verdict="**left out**"
  fi
  cp unchanged "$file"
  echo "| $name | \`$file\` | \`${test//|/\\|}\` | $verdict |" > "$folder/results/$1"
}
work() { # $1: worker
  cd "$folder/$1"
  local row
  for row in "${!rows[@]}"; do
    mkdir "$folder/results/taken.$row" 2> /dev/null || continue # another worker has it
    mutate "$row"
    echo "$((row + 1)) of ${#rows[@]}: $(cut -d'|' -f2,5- "$folder/results/$row")" >&2
  done
}

mapfile -t tests < <(for i in "${!rows[@]}"; do field "$i" 4-; done | sort -u)
mapfile -t targets < <(for test in "${tests[@]}"; do target_of "$test"; done | sort -u)
for ((i = 0; i < workers; ++i)); do
  (prepare "$i" && build "${targets[@]}") &
done
wait
for ((i = 0; i < workers; ++i)); do
  (cd "$folder/$i" && build "${targets[@]}") || { tail -20 "$folder/$i/build.log"; exit 2; }
done
echo "built after $SECONDS s" >&2

cd "$folder/0"
for i in "${!tests[@]}"; do
  while (($(jobs -rp | wc -l) >= workers * cores)); do sleep 0.1; done
  { run_test "${tests[i]}" > "$folder/results/test.$i" 2>&1 || echo $? > "$folder/results/failed.$i"; } &
done
wait
for i in "${!tests[@]}"; do
  [[ -f $folder/results/failed.$i ]] || continue
  if [[ $(< "$folder/results/failed.$i") == 77 ]]; then
    echo "left out, as no environment of Python was found that has what it needs: ${tests[i]}" >&2
    continue
  fi
  echo "fails without a mutation: ${tests[i]}"
  tail -5 "$folder/results/test.$i"
  exit 2
done
echo "${#tests[@]} tests pass or are left out unchanged after $SECONDS s" >&2

for ((i = 0; i < workers; ++i)); do work "$i" & done
wait
cd "$root"
for i in "${!rows[@]}"; do cat "$folder/results/$i"; done
echo "${#rows[@]} rows in $SECONDS s" >&2
! cat "$folder"/results/[0-9]* | grep -qv '| caught |$'
