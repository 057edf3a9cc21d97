#!/usr/bin/env bash
# Whether two builds compile the kernels of tests/cuda/kernels.txt to the same machine code:
#   scripts/compare_kernels.sh [--phase backward] BEFORE AFTER [PROBLEM...]
# BEFORE and AFTER are build folders; PROBLEMs, descriptors as `attn compile` takes them, replace the
# list, which is that of tests/cuda/kernels_backward.txt for the backward pass. Example: a change of
# src/cuda that only moves code about, checked against the build of the commit before it. Needs NVRTC
# and no GPU. Names the problems whose kernels differ and exits with 1.
set -euo pipefail
cd "$(dirname "$0")/.."
phase=forward list=tests/cuda/kernels.txt
if [[ ${1:-} == --phase ]]; then
  phase=$2
  [[ $phase == forward ]] || list=tests/cuda/kernels_$phase.txt
  shift 2
fi
if (($# < 2)); then
  sed -n '2,7s/^# \{0,1\}//p' "$0"
  exit 2
fi
before=$(realpath "$1")
after=$(realpath "$2")
shift 2
problems=("$@")
if ((${#problems[@]} == 0)); then
  mapfile -t problems < <(grep -v '^#' "$list")
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The address of a variable comes from bank 4 (LDC, ULDC, MOV, IMAD.MOV, IADD3, LEA), at an offset that depends on
# how many constants the text has: 0 here.
without_addresses() {
  perl -e 'binmode STDIN; binmode STDOUT; local $/; my $code = <STDIN>;
    for (my $i = 0; $i + 16 <= length $code; $i += 16) {
      my $word = unpack("Q<", substr($code, $i, 8));
      my $op = $word & 0xfff;
      next unless grep { $op == $_ } 0xb82, 0xab9, 0xa02, 0x624, 0xa10, 0xa11;
      next unless ($word >> 54 & 31) == 4;
      substr($code, $i, 8) = pack("Q<", $word & ~(0xffff << 38));
    }
    print $code;'
}

# Hashes of all kernels of a problem. Both builds have the same cache, in which a kernel has its
# source text for a name: what did not change as text is compiled once.
kernels() {
  local build=$1 problem=$2
  rm -rf "$work/dump"
  ATTN_DUMP=cubin ATTN_DUMP_DIR=$work/dump "$build/attn" compile "$problem" --phase "$phase" \
    --arch sm_80,sm_90a --cache-dir "$work/cache" >"$work/log" || {
    cat "$work/log" >&2
    exit 1
  }
  for file in "$work"/dump/*.cubin; do
    # Names end with a part of that key. Of a cubin the code counts, not names of constants.
    local name=${file##*/} offset size
    read -r offset size < <(readelf -SW "$file" 2>/dev/null |
      sed -n 's/^.* \.text\.[^ ]* *PROGBITS *[0-9a-f]* \([0-9a-f]*\) \([0-9a-f]*\) .*/\1 \2/p')
    printf '%s %s\n' "${name%-*}" \
      "$(tail -c "+$((16#$offset + 1))" "$file" | head -c "$((16#$size))" | without_addresses |
        sha256sum)"
  done | sort
}

differ=0
for problem in "${problems[@]}"; do
  kernels "$before" "$problem" >"$work/before"
  kernels "$after" "$problem" >"$work/after"
  if ! diff "$work/before" "$work/after" >"$work/difference"; then
    differ=1
    echo "differ: $problem: $(sed -n 's/^> \([^ ]*\).*/\1/p' "$work/difference" | tr '\n' ' ')"
  fi
done
((differ)) || echo "the same: ${#problems[@]} problems"
exit "$differ"
