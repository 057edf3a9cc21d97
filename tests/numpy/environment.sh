# Sourced: numpy_python BUILD sets `python` to an interpreter that has NumPy, in an environment of its
# own inside the build folder, made at the first run. Where that cannot be, it says why and exits with
# 77, which CTest counts as skipped.
# shellcheck shell=bash
numpy_python() {
  local environment=$1/numpy
  skip() {
    echo "not compared with NumPy: $1"
    exit 77
  }
  python=$environment/bin/python
  exec 9>"$1/numpy.lock"
  flock 9  # tests that run at the same time
  if ! "$python" -c 'import numpy' 2>/dev/null; then
    command -v python3 >/dev/null || skip 'there is no python3'
    rm -rf "$environment"
    python3 -m venv "$environment" >/dev/null 2>&1 || skip 'python3 has no venv (Debian: python3-venv)'
    "$python" -m pip install --quiet --disable-pip-version-check --retries 1 'numpy>=1.24' >/dev/null 2>&1 ||
      skip 'pip could not install numpy'
  fi
  exec 9>&-
}
