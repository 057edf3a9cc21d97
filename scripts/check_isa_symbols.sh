#!/usr/bin/env bash
# Checks that no code built for a newer instruction set can run on a CPU without it.
#
# Each object of src/cpu/isa is built with flags of its own. If it defined a weak symbol that other
# objects define too (an inline function of a header, a std:: template), the linker might keep its
# copy for the whole program, and an older CPU would meet an unknown instruction. The same holds for
# static constructors, which run on every CPU. So an object may define
#   - symbols whose name lies in, or mentions, its own namespace attn::cpu::<isa>, and
#   - one entry point, the constant table attn::cpu::k<Isa>Ops,
# and nothing else that other objects could see, and no static constructor.
#
#   scripts/check_isa_symbols.sh BUILD
set -euo pipefail

build=${1:?usage: scripts/check_isa_symbols.sh BUILD}
mapfile -t objects < <(find "$build" -path '*/attn.dir/src/cpu/isa/*.o' | sort)
if ((${#objects[@]} == 0)); then
  echo "check_isa_symbols: no object of src/cpu/isa under $build" >&2
  exit 1
fi

failed=0
for object in "${objects[@]}"; do
  isa=$(basename "$object" .cpp.o)
  # nm prints "address type name"; capital letters, u, v and w are visible to other objects.
  # DW.ref.* only names an address and holds no code.
  visible=$(nm --defined-only --demangle "$object" |
    sed -nE 's/^[0-9a-f]+ [ABCDGRSTVWuvw] //p' |
    grep -vE "attn::cpu::${isa}::|^DW\.ref\." || true)
  entries=$(grep -E '^attn::cpu::k[A-Za-z0-9]+Ops$' <<<"$visible" || true)
  offenders=$(grep -vE '^attn::cpu::k[A-Za-z0-9]+Ops$' <<<"$visible" | grep . || true)
  constructors=$(nm "$object" | grep -o '_GLOBAL__sub_I_.*' || true)
  if [[ -n $offenders || -n $constructors || $(grep -c . <<<"$entries") -ne 1 ]]; then
    failed=1
    echo "$isa: entry points: ${entries:-none} (one expected)"
    if [[ -n $offenders ]]; then printf 'visible to other objects:\n%s\n' "$offenders"; fi
    if [[ -n $constructors ]]; then printf 'static constructors:\n%s\n' "$constructors"; fi
  fi
done
((failed == 0)) && echo "check_isa_symbols: ${#objects[@]} objects, nothing leaks"
exit $failed
