#!/usr/bin/env bash
# Goal:   the package installs and works with the frameworks that people have.
# Method: tests/python/run.sh BUILD [--quick] makes an environment below BUILD, installs what is
#         missing, and runs pytest, which prints "ok NAME" or "FAILED NAME" for each test.
# --quick leaves out what is marked as slow. Arguments behind it go to pytest.
set -u
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build/dev}")
shift
selection=()
if [ "${1:-}" = --quick ]; then
  selection=(-m "not slow")
  shift
fi
environment=$build/python
log=$environment/install.log

interpreter=$(command -v python3.11 || command -v python3)
if ! [ -x "$environment/bin/python" ]; then
  "$interpreter" -m venv "$environment" || exit 1
fi
python=$environment/bin/python
install() {
  "$python" -m pip install --quiet --disable-pip-version-check "$@" >>"$log" 2>&1
}
has() {  # has MODULE...: whether all can be found
  "$python" -c 'import importlib.util, sys
sys.exit(not all(importlib.util.find_spec(name) for name in sys.argv[1:]))' "$@"
}

# Torch first, and by its exact version: what comes after it must not fetch another build of it.
has numpy safetensors pytest || install numpy==2.4.6 safetensors==0.8.0 pytest || {
  tail -n 5 "$log"
  echo "skipped python: numpy, safetensors and pytest cannot be installed here"
  exit 0
}
has torch || install torch==2.13.0 || echo "skipped python: torch cannot be installed here"
if has torch; then
  has transformers accelerate || install transformers==5.23.0 accelerate==1.15.0 ||
    echo "skipped python: transformers cannot be installed here"
fi

# The package itself, with the library and the programs of BUILD in it, when one of them changed.
sources=$(find bindings/python \( -name '*.py*' -o -name '*.?pp' -o -name '*.t*t' \) -print0 |
  sort -z | xargs -0 sha256sum
  stat -L -c '%s %Y' "$build"/lib/libckpt.so "$build"/bin/ckptd "$build"/bin/ckpt)
if [ "$(cat "$environment/installed" 2>/dev/null)" != "$sources" ]; then
  install --force-reinstall --no-deps ./bindings/python -C "cmake.define.CKPT_BUILD_DIR=$build" \
    -C "build-dir=$build/python-module" && install 'nanobind-backend>=1,<2' || {
    tail -n 20 "$log"
    echo "FAILED python: the package cannot be installed"
    exit 1
  }
  echo "$sources" >"$environment/installed"
fi

CKPT_BUILD=$build HF_HUB_OFFLINE=1 exec "$python" -m pytest tests/python -q -p no:cacheprovider \
  --tb=short --no-header "${selection[@]}" "$@"
