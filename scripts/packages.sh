#!/usr/bin/env bash
# Makes packages of the library and builds tests/package/consumer with them.
#
#   scripts/packages.sh debian [BUILD]   Debian packages of a build folder; without one, of a shared library that is built from
#                                        a tarball of the sources
#   scripts/packages.sh conan [OPTION..] by packaging/conan, from a tarball; Conan 2 must be on PATH and gets the options
#   scripts/packages.sh vcpkg            by packaging/vcpkg, from a tarball; vcpkg must be on PATH. Without it the port's version
#                                        alone is checked
#
# Nothing is installed. Ends with 77 where what it needs is missing.
set -euo pipefail
what=${1:-}
build=${2:+$(realpath -m "$2")}
cd "$(dirname "$0")/.."
version=$(sed -n 's/^#define ATTN_VERSION_STRING "\(.*\)"$/\1/p' include/attn/version.hpp)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

need() {  # need COMMAND WHERE_FROM
  command -v "$1" >/dev/null && return
  echo "packages: $1 is missing ($2)"
  exit 77
}

unpack_tarball() {  # to $work/attn-VERSION
  git ls-files -z --cached --others --exclude-standard |
    tar --null --files-from=- --transform="s,^,attn-$version/," -czf "$work/attn-$version.tar.gz"
  tar -xzf "$work/attn-$version.tar.gz" -C "$work"
}

expect_files() {  # expect_files PACKAGE PATTERN...: the package has a path that matches each
  local paths pattern
  paths=$(dpkg-deb --fsys-tarfile "$1" | tar -t)
  for pattern in "${@:2}"; do
    grep -qE "^\./usr/$pattern\$" <<<"$paths" && continue
    printf '%s\n%s\n' "packages: $(basename "$1") has no usr/$pattern, but" "$paths"
    exit 1
  done
}

debian() {
  local package root=$work/root shared=0
  (cd "$build" && cpack -G DEB -B "$work/packages" >"$work/cpack.log" 2>&1) || { cat "$work/cpack.log"; exit 1; }
  grep -q 'BUILD_SHARED_LIBS:.*=ON' "$build/CMakeCache.txt" && shared=1
  for package in "$work"/packages/*.deb; do
    # shellcheck disable=SC2016  # dpkg-deb's
    dpkg-deb --show --showformat='${Package} ${Version} ${Architecture}, needs: ${Depends}\n' "$package"
    dpkg-deb --extract "$package" "$root"
    expect_files "$package" 'share/doc/[a-z0-9.-]+/copyright'
  done
  expect_files "$work"/packages/libattn-dev_*.deb include/attn/attn.hpp include/attn/attn.h \
    'lib/(.*/)?cmake/attn/attnConfig\.cmake' 'lib/(.*/)?pkgconfig/attn\.pc'
  if ((shared)); then
    expect_files "$work"/packages/libattn[0-9]*.deb "lib/(.*/)?libattn\.so\.${version%.*}" "lib/(.*/)?libattn\.so\.${version//./\\.}"
    expect_files "$work"/packages/libattn-dev_*.deb 'lib/(.*/)?libattn\.so'
  else
    expect_files "$work"/packages/libattn-dev_*.deb 'lib/(.*/)?libattn\.a'
  fi
  # Where the library lies in the scratch root.
  LD_LIBRARY_PATH=$(dirname "$(find "$root/usr/lib" -name 'libattn.*' | head -n 1)")
  export LD_LIBRARY_PATH
  if [[ -e $root/usr/bin/attn ]]; then "$root/usr/bin/attn" --version; fi
  cmake -S tests/package/consumer -B "$work/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$root/usr" \
    -DEXPECTED_VERSION="$version" >/dev/null
  cmake --build "$work/consumer" | tail -n 1
  grep -q "attn_DIR:PATH=$root/" "$work/consumer/CMakeCache.txt"
  "$work/consumer/consumer"
  "$work/consumer/consumer_c"
}

case $what in
  debian)
    need dpkg-deb dpkg
    need dpkg-shlibdeps dpkg-dev
    if [[ -z $build ]]; then
      unpack_tarball
      build=$work/build
      cmake -S "$work/attn-$version" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
        -DBUILD_SHARED_LIBS=ON -DATTN_BUILD_TOOLS=OFF -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF
      cmake --build "$build"
    fi
    debian
    ;;
  conan)
    need conan 'PyPI: conan'
    unpack_tarball
    export CONAN_HOME=$work/conan
    conan profile detect
    conan create "$work/attn-$version/packaging/conan" -s compiler.cppstd=20 "${@:2}"
    ;;
  vcpkg)
    grep -q "\"version\": \"$version\"" packaging/vcpkg/attn/vcpkg.json || {
      echo "packages: packaging/vcpkg/attn/vcpkg.json is not of version $version"
      exit 1
    }
    need vcpkg 'https://learn.microsoft.com/vcpkg'
    unpack_tarball
    vcpkg install attn --overlay-ports="$work/attn-$version/packaging/vcpkg" --x-install-root="$work/vcpkg"
    cmake -S tests/package/consumer -B "$work/consumer" -G Ninja -DEXPECTED_VERSION="$version" \
      -DCMAKE_PREFIX_PATH="$(find "$work/vcpkg" -mindepth 1 -maxdepth 1 -name '*-*')"
    cmake --build "$work/consumer"
    "$work/consumer/consumer"
    ;;
  *)
    sed -n 's/^#   //p' "$0"
    exit 2
    ;;
esac
