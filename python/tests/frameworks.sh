#!/usr/bin/env bash
# The tests of the Python package with PyTorch, transformers and JAX, all from PyPI, on the CPU; its types by mypy and
# pyright; and its source distribution, installed to be edited. Says by name what it cannot do without a network.
#
#   python/tests/frameworks.sh BUILD        BUILD: a folder with libattn.a; the environment is BUILD/python/frameworks
#   python/tests/frameworks.sh BUILD jax    ruff and the tests with JAX alone, in BUILD/python/jax: PyTorch for Linux comes
#                                           from PyPI with CUDA, 6.4 GB instead of 0.7
#
# ATTN_FRAMEWORKS_ENV names another environment, which is left as it is: tools that it lacks are said and left out, and
# nothing is installed there to be edited.
set -euo pipefail
build=$(realpath "${1:?usage: python/tests/frameworks.sh BUILD [jax]}")
which=${2:-all}
[[ $which == all || $which == jax ]] || { echo "frameworks.sh: '$which'; accepted is jax, or nothing" >&2; exit 2; }
cd "$(dirname "$0")/../.."

environment=${ATTN_FRAMEWORKS_ENV:-$build/python/frameworks}
packages=('jax<0.13' 'nanobind>=3.1,<4' 'nanobind-backend>=1,<2' numpy ml_dtypes pytest pytest-xdist 'ruff>=0.17,<0.18')
if [[ $which == jax ]]; then
  [[ -n ${ATTN_FRAMEWORKS_ENV:-} ]] || environment=$build/python/jax
  tests=jax
  needs='jax, xdist'
  limit=300  # seconds to install
else
  packages+=(torch transformers psutil einops 'scikit-build-core>=0.11' mypy 'pyright[nodejs]')
  tests='torch or flex or flash or hf or jax or sdpa or coming_from or dist'
  needs='jax, torch, transformers, xdist'
  limit=600
fi

skip() {  # 77: .ci/run counts the stage as skipped
  echo "not tested, $which of PyTorch, transformers and JAX: $1"
  exit 77
}

python=$environment/bin/python
if ! "$python" -c "import $needs" 2>/dev/null; then
  [[ -z ${ATTN_FRAMEWORKS_ENV:-} ]] || skip "$environment lacks one of $needs"
  base=${PYTHON:-python3}
  command -v "$base" >/dev/null || skip "there is no $base"
  rm -rf "$environment"
  mkdir -p "$build/python"
  "$base" -m venv "$environment" >/dev/null 2>&1 || skip "$base has no venv (Debian: python3-venv)"
  timeout "$limit" "$python" -m pip install --quiet --disable-pip-version-check --retries 1 \
    "${packages[@]}" >"$build/python/frameworks.log" 2>&1 ||
    skip "pip could not install ${packages[*]} ($(tail -n 1 "$build/python/frameworks.log" | cut -c 1-200))"
fi
export PATH=$environment/bin:$PATH OMP_NUM_THREADS=2

echo '--- ruff, mypy, pyright'
has() {  # has TOOL: in the environment
  [[ -x $environment/bin/$1 ]] || { echo "$1 does not run: $environment lacks it"; return 1; }
}
if has ruff; then
  ruff check --quiet
  ruff format --quiet --check python experiments
fi
# Their types are PyTorch's too.
if [[ $which == all ]] && has mypy; then mypy; fi
if [[ $which == all ]] && has pyright; then pyright --level error --pythonpath "$python"; fi

# From its source distribution, in this environment.
install_to_edit() {
  local source=$build/python/source
  rm -rf "$source"
  mkdir -p "$source"
  "$python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$source" \
    >/dev/null
  tar -xzf "$source"/attn-*.tar.gz -C "$source" --strip-components=1
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    -Ceditable.rebuild=true -e "$source"
  (cd "$build" && "$python" -c '
import attn, numpy
q = numpy.ones((1, 3, 2, 8), numpy.float32)
assert (attn.attention(q, q, q, causal=True) == 1).all()
assert "/source/" in attn.__file__, attn.__file__' && attn info >/dev/null)
  "$python" -m pip uninstall --quiet --yes attn
}
if [[ -z ${ATTN_FRAMEWORKS_ENV:-} && $which == all ]]; then
  echo '--- the source distribution, installed to be edited'
  install_to_edit
fi

echo '--- tests'
ATTN_TEST_PROBLEMS=${ATTN_TEST_PROBLEMS:-30} PYTHON_ENVIRONMENT=$environment bash python/tests/run.sh "$build" \
  -n "$(nproc)" -k "$tests"
