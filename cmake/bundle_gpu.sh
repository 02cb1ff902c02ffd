#!/usr/bin/env bash
# From an unpacked bundle: the suite and the benchmark for GPUs. No network, no root.
#
#   ./gpu.sh [suite | bench] [options of the benchmark]      both, unless told
#
# Without a GPU it says what is skipped. Each test is a process of its own, so that one that dies
# takes no other along. Ends with a line "N passed, N failed, N skipped": tests, and the programs of
# the benchmark. 0: nothing failed.
set -u
cd "$(dirname "$0")"
what=${1:-both}
[ $# -gt 0 ] && shift
if [ ! -x bin/ckpt_gpu ] || [ ! -x bin/ckpt_gpu_bench ]; then
  echo "skipped: this bundle was built without CUDA's headers"
  echo "0 passed, 0 failed, 2 skipped"
  exit 0
fi
passed=0
failed=0
skipped=0
has_gpu() {
  [ -e /dev/nvidiactl ] || [ -n "${CKPT_CUDA_DRIVER:-}" ]
}
count() {  # count COMMAND...
  if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
if [ "$what" != bench ]; then
  mapfile -t tests < <(bin/ckpt_gpu --list-test-names-only "[gpu]")
  if has_gpu; then
    for name in "${tests[@]}"; do
      echo "== $name"
      count timeout 120 bin/ckpt_gpu "${name//,/\\,}"
    done
  else
    echo "gpu suite: ${#tests[@]} tests skipped: this machine has no NVIDIA device"
    skipped=$((skipped + ${#tests[@]}))
  fi
fi
if [ "$what" != suite ]; then
  if has_gpu; then
    count bin/ckpt_gpu_bench "$@"
  else
    bin/ckpt_gpu_bench "$@"
    skipped=$((skipped + 1))
  fi
  # Against what people use, where they have it: with a torch of their own, and our package here.
  torch_figures=3
  if [ ! -e /dev/nvidiactl ]; then
    echo "gpu_torch: $torch_figures figures skipped: this machine has no NVIDIA device"
    skipped=$((skipped + 1))
  elif PYTHONPATH=$PWD/python python3 -c 'import torch, libckpt' 2>/dev/null; then
    count env PYTHONPATH="$PWD/python" python3 bench/gpu_torch_bench.py "$@"
  else
    echo "gpu_torch: $torch_figures figures skipped: python3 has no torch, or none that" \
      "this bundle has libckpt for"
    skipped=$((skipped + 1))
  fi
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
