#!/usr/bin/env bash
# Checks that a shared attn exports what include/attn declares, all of it and nothing else; of C, also what
# src/c/exports.txt lists, so that a function which programs were built with is not lost unseen.
#
#   scripts/check_exports.sh [--c] LIBRARY    LIBRARY: a libattn.so; --c: the functions of C alone
set -euo pipefail
only_c=
if [[ ${1:-} == --c ]]; then
  only_c=1
  shift
fi
library=$(realpath "${1:?usage: scripts/check_exports.sh [--c] LIBRARY}")
cd "$(dirname "$0")/.."

# Not attn/dist/mpi.hpp and nccl.hpp, which are parts of the programs that include them.
mapfile -t headers < <(find include/attn -name '*.hpp' ! -name mpi.hpp ! -name nccl.hpp)

failed=0
report() {  # report WHAT LINES: complains when LINES is not empty
  if [[ -n $2 ]]; then
    failed=1
    printf 'check_exports: %s\n%s\n' "$1" "$2"
  fi
}

# C functions have names alone, C++ ones arguments or a class.
all_symbols=$(nm --dynamic --defined-only --demangle "$library" | sed -E 's/^[0-9a-f]+ [A-Za-z] //')
c_names=$(grep -xE 'attn_[a-z0-9_]+' <<<"$all_symbols" | sort || true)
listed=$(sort src/c/exports.txt)
report 'of C, exported and not in src/c/exports.txt' "$(comm -23 <(echo "$c_names") <(echo "$listed"))"
report 'in src/c/exports.txt and not exported' "$(comm -13 <(echo "$c_names") <(echo "$listed"))"
report 'not the same in include/attn/attn.h and src/c/exports.txt' "$(
  sed 's|//.*||' include/attn/attn.h | grep -oE '\battn_[a-z0-9_]+\(' | tr -d '(' | sort -u | comm -3 - <(echo "$listed"))"
if [[ -n $only_c ]]; then
  ((failed == 0)) && echo "check_exports: $(wc -l <<<"$c_names") functions of C"
  exit $failed
fi

# Visibility comes from ATTN_API on the namespaces of the public headers, and from nowhere else. One
# without it may name a class that stays inside, which a public class points to.
report 'a namespace of a public header without ATTN_API' "$(
  awk '/^namespace attn/ {
         line = FILENAME ":" FNR ":" $0
         getline declaration
         getline end
         if (declaration !~ /^class [A-Za-z]+;$/ || end !~ /^}/) print line
       }' "${headers[@]}")"
report 'visibility is decided in include/attn alone' \
  "$(grep -rnE 'ATTN_API|\b_*visibility_* *\(' src tools verify tests || true)"

# Functions are compared by the last part of their name, `forward` for attn::forward(...). What a
# header declares ends in `;` and has no body; a pure virtual or defaulted function has no symbol.
declared=$(sed 's|//.*||; /^#/d' "${headers[@]}" |
  sed -z 's/{}//g; s/\n/ /g; s/[{};]/&\n/g; s/operator *[^ (]*(/operator(/g' |
  grep -E '\).*;$' | grep -vE '^ *(return|static_assert)|= (0|default);|std::function<' |
  grep -oE '[A-Za-z_0-9]+\(' | tr -d '(' | grep -vx requires | sort -u)

symbols=$(grep -vxF "$c_names" <<<"$all_symbols")
# Without arguments, ABI tags, template arguments and what stands before the last part; then the
# classes whose type information or table is exported.
functions=$(grep -v ' for attn::' <<<"$symbols" |
  sed -E 's/\(.*//; s/\[abi:[^]]*\]//g; s/<[^<>]*>//g; s/(^|.*[ :])operator.*/\1operator/; s/.*:://' |
  sort -u)
report 'declared in include/attn and not exported' "$(comm -13 <(echo "$functions") <(echo "$declared"))"
# What has a body in a header may be there too, where the compiler did not put it inline.
words=$(cat "${headers[@]}" | grep -oE '[A-Za-z_0-9]+' | sort -u)
report 'exported and not declared in include/attn' \
  "$(comm -23 <(tr -d '~' <<<"$functions" | sort -u) <(echo "$words"))"
report 'exported and not of attn' "$(grep -v '\battn::' <<<"$symbols" || true)"
report 'a class that include/attn does not declare' "$(
  sed -n 's/.* for attn::\(.*::\)\{0,1\}//p' <<<"$symbols" | sort -u |
    while read -r class; do
      grep -qE "^(class|struct) $class\b" "${headers[@]}" || echo "$class"
    done)"

((failed == 0)) && echo "check_exports: $(wc -l <<<"$symbols") symbols, those of include/attn"
exit $failed
