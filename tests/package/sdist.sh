#!/usr/bin/env bash
# Goal:   a source distribution of the Python package has all that a wheel is made of.
# Method: tests/package/sdist.sh BUILD [--deep] makes one, compares the C++ sources in it with the
#         tree's, makes a wheel of it with the library of BUILD, far from the tree, installs that
#         and saves and restores a tensor of numpy, which pip must have brought. With --deep, the
#         library is built of the archive's own sources, too.
set -u
cd "$(dirname "$0")/../.."
subject="sdist: "
. tests/package/check.sh
build=$(realpath "${1:-build/dev}")
deep=${2:-}

export PATH=/usr/bin:/bin LIBCKPT_RUNTIME_DIR=$scratch/runtime
pip() {
  "$scratch/venv/bin/python" -m pip --disable-pip-version-check "$@"
}
make_sdist() {  # As a front end does: in the project's folder, by the hook of its backend.
  pip install -q --target "$scratch/backend" "scikit-build-core>=0.11" &&
    (cd bindings/python && PYTHONPATH=$scratch/backend:backend "$scratch/venv/bin/python" -c '
import sys, ckpt_backend
print(ckpt_backend.build_sdist(sys.argv[1]))' "$scratch") &&
    mkdir "$scratch/unpacked" && tar -xzf "$scratch"/libckpt-*.tar.gz -C "$scratch/unpacked"
}
has_the_sources() {
  git ls-files --cached --others --exclude-standard CMakeLists.txt LICENSE bindings/c cmake \
    libckpt ":!libckpt/docs" | sort >"$scratch/wanted"
  (cd "$scratch"/unpacked/libckpt-*/native && find . -type f -printf '%P\n') |
    sort >"$scratch/found"
  diff "$scratch/wanted" "$scratch/found" && [ "$(wc -l <"$scratch/found")" -gt 300 ]
}
has_no_build() {
  ! find "$scratch"/unpacked -name '*.o' -o -name '*.so*' -o -name CMakeCache.txt | grep .
}
make_wheel() {  # make_wheel FOLDER [OPTION...]
  local folder=$1
  shift
  (cd / && pip wheel -q --no-deps -w "$scratch/$folder" "$@" "$scratch"/libckpt-*.tar.gz)
}
saves_and_restores() {
  (cd "$scratch" && "$scratch/venv/bin/python" - <<'PYTHON'
import libckpt
import numpy

session = libckpt.init("sdist", raise_on_error=True)
items = {"w": numpy.arange(5)}
session.save(1, items).committed.result(60)
items["w"][:] = 0
assert session.restore(items).step == 1
assert items["w"].tolist() == [0, 1, 2, 3, 4]
session.abandon()
PYTHON
  )
}

if ! /usr/bin/python3 -m venv "$scratch/venv" >/dev/null; then
  echo "skipped package: a source distribution: there is no python3-venv"
  exit 0
fi
if ! pip download -q --no-deps -d "$scratch/index" "scikit-build-core>=0.11"; then
  echo "skipped package: a source distribution: no index of Python packages can be reached"
  exit 0
fi
check "it is made" make_sdist
check "it has the C++ sources, and no others" has_the_sources
check "it has nothing that was built" has_no_build
check "it becomes a wheel" make_wheel quick --config-settings "cmake.define.CKPT_BUILD_DIR=$build"
check "the wheel installs" pip install -q "$scratch"/quick/libckpt-*.whl
check "what it needs to save and restore arrays comes with it" saves_and_restores
"$scratch/venv/bin/ckpt" stop --no-flush >/dev/null 2>&1
[ -z "$deep" ] || check "it becomes a wheel without any build tree" make_wheel whole
exit $status
