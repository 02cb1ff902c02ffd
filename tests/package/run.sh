#!/usr/bin/env bash
# Goal:   whoever installs libckpt can use it from a project of their own, in C++ and in C.
# Method: tests/package/run.sh BUILD installs BUILD below a new prefix, builds examples/consumer
#         with find_package(ckpt 0.1) in an empty directory, runs its programs, and asks for a
#         version that is not there. The same programs are built by pkg-config alone. Every public
#         header must compile alone, and the library shows no names but its own.
set -u
cd "$(dirname "$0")/../.."
. tests/packages.sh
build=${1:-build/dev}
subject=
. tests/package/check.sh

prefix=$scratch/prefix
fails() {
  ! "$@"
}
configure() {  # configure VERSION DIRECTORY
  mkdir -p "$2"
  cp -r examples/consumer "$2/source"
  sed -i "s/find_package(ckpt [0-9.]*/find_package(ckpt $1/" "$2/source/CMakeLists.txt"
  "$cmake" -S "$2/source" -B "$2/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$prefix"
}
by_pkg_config() {  # by_pkg_config COMPILER SOURCE: builds and runs it, after the prefix has moved.
  local moved=$scratch/moved folder flags
  [ -e "$moved" ] || cp -r "$prefix" "$moved" || return
  folder=$(dirname "$(find "$moved" -name ckpt.pc)")
  flags=$(PKG_CONFIG_PATH=$folder pkg-config --cflags --libs 'ckpt >= 0.1') || return
  $1 "examples/consumer/$2" $flags "-Wl,-rpath,${folder%/*}" -o "$scratch/$2.out" || return
  "$scratch/$2.out" "$scratch/run"
}
installed_programs() {
  "$prefix/bin/ckpt" --help && "$prefix/bin/ckptd" --help
}
no_foreign_header() {  # The installed headers include the standard library and each other only.
  ! grep -rnE '#include [<"](boost|fmt|nlohmann|cuda|liburing)' "$prefix/include"
}
shows_its_own_names_only() {
  local names
  names=$(nm -D --defined-only --format=just-symbols --demangle "$prefix"/lib*/libckpt.so) || return
  grep -q '^ckpt_open$' <<<"$names" && grep -q '^ckpt::Checkpointer::open(' <<<"$names" &&
    ! grep -vE '^(ckpt_|ckpt::)' <<<"$names"
}

check "every public header compiles alone" \
  "$cmake" --build "$build" --target all_verify_interface_header_sets
check "it installs" "$cmake" --install "$build" --prefix "$prefix"
check "the installed headers include nothing foreign" no_foreign_header
check "the library shows its own names only" shows_its_own_names_only
check "another project finds it" configure 0.1 "$scratch/consumer"
check "another project builds with it" "$cmake" --build "$scratch/consumer/build"
check "its C++ program runs" "$scratch/consumer/build/consumer" "$scratch/run"
check "its C program runs" "$scratch/consumer/build/consumer_c" "$scratch/run"
check "its C++ program is built by pkg-config" by_pkg_config "g++ -std=c++20" consumer.cpp
check "its C program is built by pkg-config" by_pkg_config gcc consumer.c
check "a version that is not there is refused" fails configure 99.0 "$scratch/other"
check "ckpt and ckptd are installed and run" installed_programs
exit $status
