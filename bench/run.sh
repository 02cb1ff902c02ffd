#!/usr/bin/env bash
# Builds and runs the benchmarks, prints each as a table with its bar, and appends the figures to
# bench/results/NAME.jsonl.
#
#   bench/run.sh [bench ...] [--pairs N] [--size MiB] [--dir DIRECTORY] [--force]
#
# Default: all. Each bench waits a while for the machine to be quiet; --force neither waits nor
# refuses to judge. --dir is a directory on the disk to measure (default: /var/tmp/ckpt-bench).
# Ends with 1 when a floor was not held.
set -u -o pipefail
cd "$(dirname "$0")/.."
. tests/packages.sh
. tests/python/environment.sh

build=build/bench
all_benches=$(cd bench && ls ./*_bench.cpp ./*_bench.py | sed 's|./||; s|_bench\..*||' | sort |
  tr '\n' ' ')
quiet_wait_seconds=60
benches=""
arguments=()
force=""
while [ $# -gt 0 ]; do
  case "$1" in
    --pairs | --size | --dir) arguments+=("$1" "${2:?$1 wants a value}"); shift ;;
    --force) force=yes; arguments+=(--force) ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' bench/run.sh; exit 0 ;;
    -*) echo "bench/run.sh: there is no option $1" >&2; exit 2 ;;
    *)
      case " $all_benches " in
        *" $1 "*) ;;
        *) echo "bench/run.sh: there is no bench $1 (there are: $all_benches)" >&2; exit 2 ;;
      esac
      benches="$benches $1"
      # Against what people use, where that is installed.
      [ "$1" != gpu ] || benches="$benches gpu_torch"
      ;;
  esac
  shift
done

need_packages $packages_build $packages_bench || exit 2
echo "== build, preset bench"
mkdir -p "$build" bench/results
"$cmake" --preset bench >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 2; }
"$cmake" --build "$build" --target ckpt_benches || exit 2

busy_ticks() {  # All cores: not idle, not waiting for a disk.
  awk '/^cpu /{print $2 + $3 + $4 + $7 + $8 + $9}' /proc/stat
}
is_quiet() {  # During one second, others used less than half a core.
  local before
  before=$(busy_ticks)
  sleep 1
  [ $((($(busy_ticks) - before) * 2)) -le "$(getconf CLK_TCK)" ]
}
wait_for_quiet() {
  local waited
  for ((waited = 0; waited < quiet_wait_seconds; waited += 2)); do
    is_quiet && return
    [ "$waited" -gt 0 ] || echo "waiting for the machine to be quiet ..."
    sleep 1
  done
}

have_peers_of() {  # have_peers_of BENCH: whether what it is measured against is there
  case "$1" in
    local) has nvidia_resiliency_ext ;;
    *) [ "$frameworks" = jax ] || [ -n "$have_torch" ] ;;
  esac
}

CKPT_BENCH_COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
git diff --quiet HEAD -- ':!bench/results' 2>/dev/null || CKPT_BENCH_COMMIT=$CKPT_BENCH_COMMIT+
export CKPT_BENCH_COMMIT
export LIBCKPT_LOG_LEVEL=${LIBCKPT_LOG_LEVEL:-warning}  # Between the rows of a table.
status=0
for name in ${benches:-$all_benches}; do
  if [ "$name" = gpu_torch ] && ! [ -e /dev/nvidiactl ]; then
    echo "gpu_torch: 7 figures skipped: this machine has no NVIDIA device"
    continue
  fi
  program=("$build/bin/${name}_bench")
  if [ -f "bench/${name}_bench.py" ]; then
    frameworks=torch
    [ "$name" != jax ] || frameworks=jax
    make_environment "$PWD/$build" "$frameworks" && have_peers_of "$name" || {
      echo "$name: skipped, as what it measures or libckpt cannot be had"
      continue
    }
    program=("$python" "bench/${name}_bench.py")
  fi
  [ -x "${program[0]}" ] || {
    echo "$name: skipped, it is not built here (see $build/configure.log)"
    continue
  }
  [ -n "$force" ] || wait_for_quiet
  "${program[@]}" "${arguments[@]}" --results "bench/results/$name.jsonl" || status=1
done
exit $status
