#!/usr/bin/env bash
# Builds and runs the benchmarks, prints each as a table with its bar, and appends the figures to
# bench/results/NAME.jsonl.
#
#   bench/run.sh [bench ...] [--pairs N] [--size MiB] [--force]
#
# Default: all. It waits for the load of the build to go; --force neither waits nor refuses to
# judge. Ends with 1 when a floor was not held.
set -u -o pipefail
cd "$(dirname "$0")/.."
. tests/packages.sh

build=build/bench
load_wait_seconds=240
benches=""
arguments=()
force=""
while [ $# -gt 0 ]; do
  case "$1" in
    --pairs | --size) arguments+=("$1" "${2:?$1 wants a number}"); shift ;;
    --force) force=yes; arguments+=(--force) ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' bench/run.sh; exit 0 ;;
    -*) echo "bench/run.sh: there is no option $1" >&2; exit 2 ;;
    *)
      [ -f "bench/$1_bench.cpp" ] || {
        echo "bench/run.sh: there is no bench $1 (there are:" \
          "$(cd bench && ls ./*_bench.cpp | sed 's|./||; s|_bench.cpp||' | tr '\n' ' '))" >&2
        exit 2
      }
      benches="$benches $1"
      ;;
  esac
  shift
done

need_packages $packages_build $packages_bench || exit 2
echo "== build, preset bench"
mkdir -p "$build" bench/results
"$cmake" --preset bench >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 2; }
"$cmake" --build "$build" --target ckpt_benches || exit 2

quiet() {
  awk '{exit !($1 <= 0.5)}' /proc/loadavg
}
waited=0
while [ -z "$force" ] && ! quiet && [ "$waited" -lt "$load_wait_seconds" ]; do
  [ "$waited" -eq 0 ] && echo "waiting for the load to fall below 0.5 ..."
  sleep 5
  waited=$((waited + 5))
done

CKPT_BENCH_COMMIT=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
git diff --quiet HEAD -- ':!bench/results' 2>/dev/null || CKPT_BENCH_COMMIT=$CKPT_BENCH_COMMIT+
export CKPT_BENCH_COMMIT
status=0
[ -n "$benches" ] || benches=$(cd bench && ls ./*_bench.cpp | sed 's|./||; s|_bench.cpp||')
for name in $benches; do
  "$build/bin/${name}_bench" "${arguments[@]}" --results "bench/results/$name.jsonl" || status=1
done
exit $status
