#!/bin/bash
# Compiles the kernel libckpt/device/cuda_gather.cu into cuda_gather.ptx beside it. With --check it
# compares instead, and lets the assembler read the result for each generation of GPUs that it
# knows. The exit status is 77 where there is no nvcc.
set -euo pipefail
cd "$(dirname "$0")/../libckpt"
export PATH=$PATH:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo "gather_ptx.sh: no nvcc on this machine"; exit 77; }
target=device/cuda_gather.ptx
made=$(mktemp --suffix=.ptx)
trap 'rm -f "$made" "$made.cubin"' EXIT
nvcc -std=c++17 -O3 -I. -ptx -arch=compute_75 device/cuda_gather.cu -o "$made"
# A driver refuses PTX of a newer version than its own, and GPUs older than the target. The kernel
# uses nothing that the PTX of CUDA 10.0 does not have.
sed -i 's/^\.version .*/.version 6.3/; s/^\.target .*/.target sm_60/' "$made"
if [ "${1-}" != --check ]; then
  cp "$made" "$target"
  exit
fi
for gpu in sm_75 sm_80 sm_90 sm_100 sm_120; do
  ptxas -arch=$gpu "$target" -o "$made.cubin"
done
release() { sed -n 's/^.*Cuda compilation tools, //p' "$1"; }
if [ "$(release "$made")" = "$(release "$target")" ]; then
  diff -u "$target" "$made" || { echo "run cmake/gather_ptx.sh and commit $target"; exit 1; }
fi
