#!/usr/bin/env bash
# From an unpacked bundle: the suite and the benchmark for GPUs. No network, no root.
#
#   ./gpu.sh [suite | bench] [options of the benchmark]      both, unless told
#
# Without a GPU it says what is skipped. 0: nothing failed.
set -u
cd "$(dirname "$0")"
what=${1:-both}
[ $# -gt 0 ] && shift
if [ ! -x bin/ckpt_gpu ] || [ ! -x bin/ckpt_gpu_bench ]; then
  echo "skipped: this bundle was built without CUDA's headers"
  exit 0
fi
status=0
if [ "$what" != bench ]; then
  if [ -e /dev/nvidiactl ] || [ -n "${CKPT_CUDA_DRIVER:-}" ]; then
    bin/ckpt_gpu "[gpu]" || status=1
  else
    echo "gpu suite: $(bin/ckpt_gpu --list-test-names-only "[gpu]" | wc -l) tests skipped:" \
      "this machine has no NVIDIA device"
  fi
fi
if [ "$what" != suite ]; then
  bin/ckpt_gpu_bench "$@" || status=1
  # Against what people use, where they have it: with a torch of their own, and our package here.
  torch_figures=3
  if [ ! -e /dev/nvidiactl ]; then
    echo "gpu_torch: $torch_figures figures skipped: this machine has no NVIDIA device"
  elif PYTHONPATH=$PWD/python python3 -c 'import torch, libckpt' 2>/dev/null; then
    PYTHONPATH=$PWD/python python3 bench/gpu_torch_bench.py "$@" || status=1
  else
    echo "gpu_torch: $torch_figures figures skipped: python3 has no torch, or none that" \
      "this bundle has libckpt for"
  fi
fi
exit $status
