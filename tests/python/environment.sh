# An environment of Python with the frameworks and the package, below a build tree; sourced by
# tests/python/run.sh and bench/run.sh, which call make_environment BUILD in the repository's root.
# Sets python, the interpreter in it, and have_torch, which is empty when torch cannot be had.

# make_environment BUILD: 1 when the package cannot be installed; 3 when what it needs cannot be had
# here, which it says.
make_environment() {
  local environment=$1/python log=$1/python/install.log interpreter sources
  interpreter=$(command -v python3.11 || command -v python3)
  if ! [ -x "$environment/bin/python" ]; then
    "$interpreter" -m venv "$environment" || return 1
  fi
  python=$environment/bin/python

  # Torch first, and by its exact version: what comes after it must not fetch another build of it.
  has numpy safetensors pytest || install numpy==2.4.6 safetensors==0.8.0 pytest || {
    tail -n 5 "$log"
    echo "skipped python: numpy, safetensors and pytest cannot be installed here"
    return 3
  }
  has torch || install torch==2.13.0 || echo "skipped python: torch cannot be installed here"
  have_torch=""
  if has torch; then
    have_torch=yes
    has transformers accelerate || install transformers==5.23.0 accelerate==1.15.0 ||
      echo "skipped python: transformers cannot be installed here"
  fi

  # The package itself, with the library and the programs of BUILD in it, when one of them changed.
  sources=$(find bindings/python \( -name '*.py*' -o -name '*.?pp' -o -name '*.t*t' \) -print0 |
    sort -z | xargs -0 sha256sum
    stat -L -c '%s %Y' "$1"/lib/libckpt.so "$1"/bin/ckptd "$1"/bin/ckpt)
  if [ "$(cat "$environment/installed" 2>/dev/null)" != "$sources" ]; then
    install --force-reinstall --no-deps ./bindings/python \
      --config-settings "cmake.define.CKPT_BUILD_DIR=$1" \
      --config-settings "build-dir=$1/python-module" && install 'nanobind-backend>=1,<2' || {
      tail -n 20 "$log"
      echo "FAILED python: the package cannot be installed"
      return 1
    }
    echo "$sources" >"$environment/installed"
  fi
}
install() {
  "$python" -m pip install --quiet --disable-pip-version-check "$@" \
    >>"${python%/bin/*}/install.log" 2>&1
}
has() {  # has MODULE...: whether all can be found
  "$python" -c 'import importlib.util, sys
sys.exit(not all(importlib.util.find_spec(name) for name in sys.argv[1:]))' "$@"
}
