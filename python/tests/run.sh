#!/usr/bin/env bash
# The tests of the Python package that need no framework but NumPy. Links the extension module to the library
# of a build folder, in an environment of its own there, made at the first run.
#
#   python/tests/run.sh BUILD [PYTEST ARGUMENT...]    BUILD: a folder with libattn.a
#
# PYTHON names another interpreter. With an environment that has torch or jax their tests run too:
#   PYTHON_ENVIRONMENT=~/env python/tests/run.sh build      (needs nanobind, nanobind-backend, pytest)
set -euo pipefail
build=$(realpath "${1:?usage: python/tests/run.sh BUILD [PYTEST ARGUMENT...]}")
shift
cd "$(dirname "$0")/.."

skip() {  # 77: CTest counts the test as skipped
  echo "the Python package is not tested: $1"
  exit 77
}

folder=$build/python
mkdir -p "$folder"
environment=${PYTHON_ENVIRONMENT:-$folder/environment}
python=$environment/bin/python
if ! "$python" -c 'import nanobind, nanobind_backend, numpy, pytest' 2>/dev/null; then
  [[ -z ${PYTHON_ENVIRONMENT:-} ]] || skip "$environment lacks nanobind, nanobind-backend, numpy or pytest"
  base=${PYTHON:-python3}
  command -v "$base" >/dev/null || skip "there is no $base"
  rm -rf "$environment"
  "$base" -m venv "$environment" >/dev/null 2>&1 || skip "$base has no venv (Debian: python3-venv)"
  "$python" -m pip install --quiet --disable-pip-version-check --retries 1 \
    'nanobind>=3.1,<4' 'nanobind-backend>=1,<2' 'numpy>=1.24' ml_dtypes pytest >/dev/null 2>&1 ||
    skip 'pip could not install nanobind, numpy, ml_dtypes and pytest'
fi
include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
[[ -f $include/Python.h ]] || skip "$include/Python.h is missing (Debian: python3-dev)"

# -U: the interpreter may be another one than last time.
cmake -S . -B "$folder/extension" -G Ninja -U '*Python*' -U 'nanobind*' -DCMAKE_BUILD_TYPE=Release \
  -DATTN_BUILD="$build" -DPython_EXECUTABLE="$python" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  >"$folder/configure.log" || { cat "$folder/configure.log"; exit 1; }
cmake --build "$folder/extension"
# The package as it is installed: links to the sources beside the module.
rm -rf "$folder/package"
mkdir -p "$folder/package"
cp -rs "$PWD/attn" "$folder/package/attn"
ln -s "$folder"/extension/_attn.*so "$folder/package/attn/"
cd ..
PYTHONPATH=$folder/package${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 exec "$python" -m pytest -p no:cacheprovider \
  -q python/tests "$@"
