#!/usr/bin/env bash
# Installs what is missing from Debian's packages; prints nothing when all is there.
#
#   scripts/setup.sh GROUP...     build: to build the library and the command
#                                 test:  to build the tests
#                                 check: formatting, clang-tidy, a browser and the rest of .ci/run
#
# A command counts as present when it is on PATH, a library when its Debian package is installed or
# CMake finds it (CMAKE_PREFIX_PATH is honoured), so machines without apt or network work too.
set -euo pipefail

declare -A package=()  # what is needed -> the Debian package that brings it
commands=()
libraries=()
optional=()  # Debian packages that are installed where they can be
need_command() { commands+=("$1"); package[$1]=$2; }
need_library() { libraries+=("$1"); package[$1]=$2; }

for group in "$@"; do
  case $group in
    build)
      need_command "${CXX:-c++}" g++
      need_command cmake cmake
      need_command ninja ninja-build
      need_command make make
      need_library fmt libfmt-dev
      need_library CLI11 libcli11-dev
      need_library nlohmann_json nlohmann-json3-dev
      ;;
    test)
      need_library GTest libgtest-dev
      # Without them the tests in Python, a comparison with DLPack's header, and those of MPI are skipped.
      optional+=(python3-dev python3-venv libdlpack-dev libopenmpi-dev openmpi-bin)
      ;;
    check)
      need_command git git
      need_command clang-format clang-format
      need_command clang-tidy clang-tidy
      need_command pkg-config pkgconf
      need_command clang++-19 clang-19
      need_command chromium chromium
      # Without them the test in Rust, and the other systems of scripts/cross.sh, are skipped.
      command -v rustc >/dev/null || optional+=(rustc)
      optional+=(g++-mingw-w64-x86-64-posix g++-aarch64-linux-gnu qemu-user)
      ;;
    *)
      echo "setup: unknown group '$group'; groups are build, test and check" >&2
      exit 2
      ;;
  esac
done

# Prints those of the libraries "$@" that CMake finds; none while CMake or a compiler is missing.
found_by_cmake() {
  local probe
  probe=$(mktemp -d)
  cat >"$probe/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
foreach(name IN LISTS NAMES)
  find_package(${name} QUIET)
  if(${name}_FOUND)
    message(STATUS "found ${name}")
  endif()
endforeach()
CMAKE
  local IFS=';'
  cmake -S "$probe" -B "$probe/build" -DNAMES="$*" 2>/dev/null | sed -n 's/^-- found //p' || true
  rm -rf "$probe"
}

missing=()
for name in "${commands[@]}"; do
  command -v "$name" >/dev/null || missing+=("$name")
done

is_installed() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null || true) == installed* ]]
}
not_packaged=()
for name in "${libraries[@]}"; do
  is_installed "${package[$name]}" || not_packaged+=("$name")
done
if ((${#not_packaged[@]})); then
  found=$(found_by_cmake "${not_packaged[@]}")
  for name in "${not_packaged[@]}"; do
    grep -qxF "$name" <<<"$found" || missing+=("$name")
  done
fi
wanted=()
for name in "${optional[@]}"; do
  is_installed "$name" || wanted+=("$name")
done
((${#missing[@]} + ${#wanted[@]})) || exit 0

packages=()
for name in "${missing[@]}"; do packages+=("${package[$name]}"); done

apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
if ((EUID != 0)); then apt=(sudo "${apt[@]}"); fi
if ! command -v "${apt[0]}" >/dev/null || ! command -v apt-get >/dev/null; then
  ((${#missing[@]})) || exit 0
  echo "setup: not found: ${missing[*]}; on Debian 12, as root: apt-get install ${packages[*]}" >&2
  exit 1
fi

echo "setup: installing from Debian's packages: ${packages[*]} ${wanted[*]}"
"${apt[@]}" update </dev/null || echo "setup: apt-get update failed; using the lists at hand" >&2
install() { "${apt[@]}" install -y --no-install-recommends "$@" </dev/null >/dev/null; }
if ((${#packages[@]})); then install "${packages[@]}"; fi
if ((${#wanted[@]})); then
  install "${wanted[@]}" || echo "setup: not installed: ${wanted[*]}; tests that need them are skipped" >&2
fi
