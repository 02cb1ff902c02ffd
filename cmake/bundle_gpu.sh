#!/usr/bin/env bash
# From an unpacked bundle: tests, benchmarks and a summary for a machine with a GPU, within ten
# minutes. No network, no root, no compiler.
#
#   ./gpu.sh [both | suite | bench | torch | example] [--budget SECONDS] [--results DIRECTORY]
#            [options of the benchmark]
#
# both (the default) is all of them: the tests, the G bars, trainings of PyTorch and JAX that are
# killed and go on, PyTorch's own saves beside ours (if python3 has torch), and the CUDA example,
# built by this machine's nvcc, killed and restarted.
# Each test and each part of the benchmark is a process of its own with a time limit. Each result
# is written down at once, in results/: summary.txt, figures.jsonl, log.txt. So a hang, a crash or
# the end of the budget (560 s) loses nothing that came before. Without a GPU it says what is
# skipped. Ends with "N passed, N failed, N skipped". 0: nothing failed.
set -u -o pipefail
cd "$(dirname "$0")"
root=$PWD
die() {
  echo "gpu.sh: $1 (see ./gpu.sh --help)" >&2
  exit 2
}
what=both
budget=560
results=$root/results/$(date -u +%Y%m%dT%H%M%SZ)
options=()
while [ $# -gt 0 ]; do
  option=${options[*]: -1}
  case "$1" in
    both | suite | bench | torch | example) what=$1 ;;
    --budget)
      budget=${2:?--budget wants seconds}
      [[ $budget =~ ^[1-9][0-9]*$ ]] || die "--budget wants a number of seconds, not $budget"
      shift
      ;;
    --results) results=${2:?--results wants a directory}; shift ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$root/gpu.sh"; exit 0 ;;
    --*) options+=("$1") ;;
    *)
      # The value of the benchmark's option before it.
      [[ $option == --?* && $option != --force ]] || die "there is no part $1"
      options+=("$1")
      ;;
  esac
  shift
done
if [ ! -x bin/ckpt_gpu ] || [ ! -x bin/ckpt_gpu_bench ]; then
  echo "skipped: this bundle was built without CUDA's headers"
  echo "0 passed, 0 failed, 2 skipped"
  exit 0
fi
mkdir -p "$results" || exit 2
figures=$results/figures.jsonl
summary=$results/summary.txt
log=$results/log.txt
passed=0
failed=0
skipped=0
has_gpu() { [ -e /dev/nvidiactl ] || [ -n "${CKPT_CUDA_DRIVER:-}" ]; }
wants() { [ "$what" = both ] || [ "$what" = "$1" ]; }
note() { echo "$*" | tee -a "$summary"; }
skip() { note "skipped  $*"; skipped=$((skipped + 1)); }

# run NAME SECONDS COMMAND...: within the time that is left; what came of it is noted at once.
run() {
  local name=$1 limit=$2 began=$SECONDS left=$((budget - SECONDS)) status
  shift 2
  if [ "$left" -lt 5 ]; then skip "$name: the budget of $budget s is spent"; return; fi
  [ "$limit" -le "$left" ] || limit=$left
  echo "== $name" | tee -a "$log"
  timeout -k 5 "$limit" "$@" 2>&1 | tee -a "$log"
  status=${PIPESTATUS[0]}
  if [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
    echo "passed   $name ($((SECONDS - began)) s)" >>"$summary"
    return
  fi
  failed=$((failed + 1))
  case $status in
    1) note "FAILED   $name: a test or a floor was not held" ;;
    124 | 137) note "FAILED   $name: it hung, or was killed, after $((SECONDS - began)) s" ;;
    *) note "FAILED   $name: exit code $status" ;;
  esac
}

# NCCL as PyTorch's wheels bring it; the loader does not look there.
find_nccl() {
  [ -z "${CKPT_NCCL_LIBRARY:-}" ] && [ -e /dev/nvidiactl ] || return
  local found
  found=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>>"$log")
  [ -z "$found" ] || [ ! -e "$found/lib/libnccl.so.2" ] ||
    export CKPT_NCCL_LIBRARY=$found/lib/libnccl.so.2
}

run_suite() {
  local tests name
  find_nccl
  mapfile -t tests < <(bin/ckpt_gpu --list-test-names-only "[gpu]")
  if ! has_gpu; then
    skip "gpu suite: ${#tests[@]} tests: this machine has no NVIDIA device"
    return
  fi
  for name in "${tests[@]}"; do
    run "$name" 60 bin/ckpt_gpu "${name//,/\\,}"
  done
}

# The parts in the order of their weight, with what each may take.
parts=(copies:90 saves:60 calls:120 steps:90 restore:30 memory:40 fingerprint:30 unchanged:60
  nccl:60 collectives:60 gaps:60 overlap:90 training:60)
run_bench() {
  local part bench=("$root/bin/ckpt_gpu_bench" "${options[@]}" --results "$figures" --only)
  if ! has_gpu; then
    skip "gpu bench: ${#parts[@]} parts: this machine has no NVIDIA device"
    return
  fi
  find_nccl
  for part in "${parts[@]}"; do
    run "bench ${part%:*}" "${part#*:}" "${bench[@]}" "${part%:*}"
  done
  run "bench overlap, one connection" 90 \
    env CUDA_DEVICE_MAX_CONNECTIONS=1 "${bench[@]}" overlap
}

# Against what people use, where they have it: a torch of their own, and our package from here.
run_torch() {
  if [ ! -e /dev/nvidiactl ]; then
    skip "trainings of PyTorch, and gpu_torch (G7): this machine has no NVIDIA device"
  elif ! PYTHONPATH=$root/python python3 -c 'import torch, libckpt' 2>>"$log"; then
    skip "trainings of PyTorch, and gpu_torch (G7): python3 has no torch, or none that this" \
      "bundle has libckpt for"
  else
    run "trainings of PyTorch and JAX are killed, and go on to the same weights" 240 \
      env PYTHONPATH="$root/python" python3 tests/torch_suite.py
    run "bench torch (G7)" 120 env PYTHONPATH="$root/python" \
      python3 bench/gpu_torch_bench.py "${options[@]}" --results "$figures"
  fi
}

# Killed in the middle and started again, it must end with the weights of a run without a break.
run_example() {
  local nvcc work=$results/example
  nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
  if [ ! -e /dev/nvidiactl ] || [ -z "$nvcc" ]; then
    skip "the CUDA example: this machine has no NVIDIA device, or no nvcc"
    return
  fi
  mkdir -p "$work"
  run "nvcc builds the CUDA example" 90 "$nvcc" -std=c++20 -O2 -I"$root/include" \
    examples/gpu_trainer.cu -o "$work/trainer" -L"$root/lib" -lckpt \
    -Xlinker -rpath="$root/lib" -Xlinker --allow-shlib-undefined
  [ -x "$work/trainer" ] || return
  export LIBCKPT_RUNTIME_DIR=$work/run
  run "the CUDA example is killed, and goes on to the same weights" 90 bash -c '
    timeout -s KILL 6 "$0/trainer" 1000000 "$0/steps"
    [ $? -eq 137 ] || { echo "it ended before it was killed"; exit 1; }
    newest=$("$1" status --json | grep -oE "\"step\": ?[0-9]+" | grep -oE "[0-9]+" |
      sort -n | tail -n 1)
    "$0/trainer" $((newest + 200)) "$0/steps"' "$work" "$root/bin/ckpt"
  bin/ckpt stop >>"$log" 2>&1
}

# "id median unit verdict" of each figure: of lines of JSON, whichever program wrote them.
print_figures() {
  [ -s "$figures" ] || return
  local id='"id": ?"([^"]*)"' median='"median": ?([0-9.e+-]+)'
  local unit='"unit": ?"([^"]*)"' verdict='"verdict": ?"([^"]*)"'
  sed -nE "s/.*$id.*$median.*$unit.*$verdict.*/\\1|\\2|\\3|\\4/p" "$figures" |
    while IFS='|' read -r id median unit verdict; do
    printf '%-34s %12.4f %-6s %s\n' "$id" "$median" "$unit" "$verdict"
  done
}

! wants suite || run_suite
! wants bench || run_bench
! wants torch || run_torch
! wants example || run_example
print_figures | tee -a "$summary"
note "took $SECONDS s of $budget; everything lies in $results"
note "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
