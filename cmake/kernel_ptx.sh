#!/bin/bash
# Compiles the kernels libckpt/device/cuda_*.cu into a .ptx beside each. With --check it compares
# instead, and lets the assembler read the results for each generation of GPUs that it knows. The
# exit status is 77 where there is no nvcc.
set -euo pipefail
cd "$(dirname "$0")/../libckpt"
export PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo "kernel_ptx.sh: no nvcc on this machine"; exit 77; }
made=$(mktemp --suffix=.ptx)
trap 'rm -f "$made" "$made.cubin"' EXIT
release() { sed -n 's/^.*Cuda compilation tools, //p' "$1"; }
for source in device/cuda_*.cu; do
  target=${source%.cu}.ptx
  nvcc -std=c++17 -O3 -I. -ptx -arch=compute_75 "$source" -o "$made"
  # A driver refuses PTX of a newer version than its own, and GPUs older than the target. The
  # kernels use nothing that the PTX of CUDA 10.0 does not have.
  sed -i 's/^\.version .*/.version 6.3/; s/^\.target .*/.target sm_60/' "$made"
  if [ "${1-}" != --check ]; then
    cp "$made" "$target"
    continue
  fi
  for gpu in sm_75 sm_80 sm_90 sm_100 sm_120; do
    ptxas -arch=$gpu "$target" -o "$made.cubin"
  done
  if [ "$(release "$made")" = "$(release "$target")" ]; then
    diff -u "$target" "$made" || { echo "run cmake/kernel_ptx.sh and commit $target"; exit 1; }
  fi
done
