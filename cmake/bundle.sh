#!/usr/bin/env bash
# Makes the archive of the target `bundle`.
#
#   cmake/bundle.sh BUILD NAME LIBDIR [PROGRAM ...]  ->  BUILD/NAME.tar.gz
#
# PROGRAM: goes beside what is installed. All find their libraries relative to themselves.
# CKPT_BUNDLE_PYTHON, in the environment: a Python that has nanobind; the bundle then brings the
# package for its version of Python, which needs nothing but that (`PYTHONPATH=NAME/python`). Where
# the package nanobind-backend can be had, it also brings a module for the other versions.
set -eu -o pipefail
build=$1
name=$2
libdir=$3
shift 3
here=$(cd "$(dirname "$0")/.." && pwd)
stage=$build/bundle/$name
rm -rf "$stage"
mkdir -p "$stage"
"$CKPT_CMAKE" --install "$build" --prefix "$stage" --strip >"$build/bundle.log"

for program in "$@"; do
  cp "$program" "$stage/bin/ckpt_$(basename "$program")"
  strip "$stage/bin/ckpt_$(basename "$program")"
done
cp "$here/cmake/bundle_gpu.sh" "$stage/gpu.sh"
mkdir "$stage/bench" "$stage/examples"
cp "$here/examples/gpu_trainer.cu" "$stage/examples"
cp "$here"/bench/{harness,torch_bench,gpu_torch_bench}.py "$stage/bench"
mkdir "$stage/tests"
cp "$here"/tests/gpu/torch_{graphs,suite,trainer}.py \
  "$here"/tests/python/trainers/{acc,doors,faults,fit,hf,jax_steps,ports}.py "$stage/tests"
cp "$here/LICENSE" "$stage"

build_module() {  # build_module FOLDER [OPTION ...]: FOLDER/installed/_native*.so
  local built=$1
  shift
  {
    "$CKPT_CMAKE" -S "$here/bindings/python" -B "$built" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DCKPT_BUILD_DIR="$build" "$@" \
      -DPython_EXECUTABLE="$CKPT_BUNDLE_PYTHON" \
      -Dnanobind_DIR="$("$CKPT_BUNDLE_PYTHON" -m nanobind --cmake_dir)" &&
      "$CKPT_CMAKE" --build "$built" &&
      "$CKPT_CMAKE" --install "$built" --prefix "$built/installed"
  } >>"$build/bundle.log" 2>&1 || { tail -n 30 "$build/bundle.log"; return 1; }
}
# nanobind's runtime for other versions of Python, side by side in one package. A version that
# cannot be had is left out.
bring_backends() {
  local version wheels=$build/bundle_backends
  rm -rf "$wheels"
  for version in 3.10 3.11 3.12 3.13 3.14; do
    "$CKPT_BUNDLE_PYTHON" -m pip download -q --no-deps --only-binary=:all: \
      --python-version "$version" -d "$wheels/$version" 'nanobind-backend>=1,<2' \
      >>"$build/bundle.log" 2>&1 || continue
    "$CKPT_BUNDLE_PYTHON" -m zipfile -e "$wheels/$version"/*.whl "$stage/python"
  done
  [ -d "$stage/python/nanobind_backend" ]
}
# The package as it is installed, but with the library and the programs of the bundle.
bring_python() {
  local package=$stage/python/libckpt
  build_module "$build/bundle_python" -DCKPT_PYTHON_SPLIT=OFF || return 1
  mkdir -p "$package"
  tar -C "$here/bindings/python/libckpt" --exclude=__pycache__ -cf - . | tar -C "$package" -xf -
  cp "$build"/bundle_python/installed/_native*.so "$package"
  if bring_backends; then
    build_module "$build/bundle_python_abi3" -DCKPT_PYTHON_SPLIT=ON || return 1
    cp "$build"/bundle_python_abi3/installed/_native.abi3.so "$package"
  fi
  strip "$package"/_native*.so
  ln -s ../../bin "$package/bin"
  ln -s "../../$libdir" "$package/lib"
}
[ -z "${CKPT_BUNDLE_PYTHON:-}" ] || bring_python

# glibc and its loader are the machine's own: the two belong together.
is_of_glibc() {
  case "$1" in
    ld-linux* | linux-vdso* | libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.*) ;;
    libresolv.so.* | libutil.so.* | libanl.so.* | libnss_*) ;;
    *) return 1 ;;
  esac
}
# "libfoo.so.1 /usr/lib/libfoo.so.1" for all that a file loads, directly or not.
libraries_of() {
  ldd "$1" | awk '/=> \// {print $1, $3}'
}
# The runtime of C++ is for our programs only. A trainer, and Python, load the machine's: it is as
# new as their other libraries want, and ours may be older.
is_runtime() {
  case "$1" in libstdc++.so.* | libgcc_s.so.*) ;; *) return 1 ;; esac
}
mkdir "$stage/$libdir/runtime"
for file in "$stage"/bin/* "$stage/$libdir"/*.so "$stage"/python/libckpt/_native*.so; do
  [ -e "$file" ] || continue
  case "$(head -c 4 "$file" | tr -d '\0')" in *ELF) ;; *) continue ;; esac
  libraries_of "$file" | while read -r library path; do
    is_of_glibc "$library" && continue
    target=$stage/$libdir/$library
    if is_runtime "$library"; then target=$stage/$libdir/runtime/$library; fi
    [ -e "$target" ] || cp -L "$path" "$target"
  done
done
tar -C "$build/bundle" --sort=name --owner=0 --group=0 --numeric-owner -czf \
  "$build/$name.tar.gz" "$name"
echo "$build/$name.tar.gz: $(du -m "$build/$name.tar.gz" | cut -f 1) MiB"
