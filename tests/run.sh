#!/usr/bin/env bash
# Builds libckpt and runs its tests.
#
#   tests/run.sh [suite ...] [--preset P] [--seeds N] [--deep] [--quick] [--jobs N] [--share K/N]
#                [--programs "NAME ..."] [--once]
#
# Suites: tidy unit contract sim crash cluster package python gpu fuzz mutation, or "build" for none
# of them. Default: all that this machine can run, but for mutation, which takes most of an hour,
# and fuzz, which wants a preset of clang; what was skipped is said, and why.
# --seeds: seeds of the simulator. --deep: clang-tidy, a wheel from a clone, and Python with an
# older torch, too. --quick: Python without its slow tests. --share: each N-th mutant from number K
# on, or commit/N: K from the commit. --programs: unit means these, such as unit_node, and build
# makes no others. --once: no second try (see tests/suites.sh) for what fails.
# Ends with a line "N passed, N failed", and with 1 if anything failed.
set -u -o pipefail
cd "$(dirname "$0")/.."
. tests/packages.sh
. tests/suites.sh

all_suites="tidy unit contract sim crash cluster package python gpu"
suites=""
preset=dev
deep=""
quick=""
share=""
programs=""
is_once=""
twice=--twice
jobs=$(nproc)
explicit=yes

usage() {
  sed -n '2,14s/^# \{0,1\}//p' tests/run.sh
}
die() {
  echo "tests/run.sh: $1" >&2
  exit 2
}
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset=${2:?--preset wants a name of CMakePresets.json}; shift ;;
    --seeds) export CKPT_SIM_SEEDS=${2:?--seeds wants a number}; shift ;;
    --jobs) jobs=${2:?--jobs wants a number}; shift ;;
    --deep) deep=--deep ;;
    --quick) quick=--quick ;;
    --programs) programs=${2:?--programs wants names of programs}; shift ;;
    --once) is_once=yes twice="" ;;
    --share) share="--share ${2:?--share wants K/N or commit/N}"; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) die "there is no option $1" ;;
    *)
      case " $all_suites build fuzz mutation " in
        *" $1 "*) suites="$suites $1" ;;
        *) die "there is no suite $1 (there are: $all_suites build fuzz mutation)" ;;
      esac
      ;;
  esac
  shift
done
if [ -z "$suites" ]; then
  suites=$all_suites
  explicit=""
fi

passed=0
failed=0
skipped=0
summary=""
build=build/$preset
mkdir -p "$build"
log=$build/tests.log
: >"$log"
# A sanitizer's finding is a failure with a stack, also in a daemon whose end no test looks at: they
# all write to files, which are shown and counted at the end.
reports=$PWD/$build/sanitizer
rm -rf "$reports"
mkdir "$reports"
# Sanitizers name functions by it; they would look for a program without a version.
export ASAN_SYMBOLIZER_PATH=${ASAN_SYMBOLIZER_PATH:-/usr/bin/llvm-symbolizer-19}
export UBSAN_SYMBOLIZER_PATH=$ASAN_SYMBOLIZER_PATH
export ASAN_OPTIONS=${ASAN_OPTIONS:-log_path=$reports/report}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:log_path=$reports/report}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:die_after_fork=0:log_path=$reports/report}
# Daemons of tests do not give way: tests have deadlines, and others use the machine.
export LIBCKPT_NICE=${LIBCKPT_NICE:-0}

wants() {
  case " $suites " in *" $1 "*) return 0 ;; esac
  return 1
}

build_tree() {
  title "build, preset $preset"
  "$cmake" --preset "$preset" >"$build/configure.log" 2>&1 || {
    cat "$build/configure.log"
    return 1
  }
  "$cmake" --build "$build" -j "$jobs" --target $(targets)
}
targets() {  # Those that the wanted suites need.
  local suite targets=""
  for suite in $suites; do
    case $suite in
      unit | build) targets="$targets ${programs:-all}" ;;
      contract) targets="$targets contract" ;;
      sim | fuzz) targets="$targets tests/$suite/all" ;;
      *) targets="$targets all" ;;
    esac
  done
  echo "$targets"
}

count_reports() {
  local report
  for report in "$reports"/*; do
    [ -s "$report" ] || continue
    title "a sanitizer's finding: $report"
    head -n 60 "$report"
    count sanitizer 0 1
  done
}
finish() {
  wait  # For downloads, too, where the build failed: half a package would be taken for a whole one.
  count_reports
  printf '\n%s' "$summary"
  local tail=""
  [ "$skipped" -gt 0 ] && tail=", $skipped skipped"
  echo "$passed passed, $failed failed$tail"
  [ "$failed" -eq 0 ]
  exit
}

lists="$packages_build $packages_test"
case $preset in clang*) lists="$lists $packages_clang" ;; esac
[ -n "$deep" ] && lists="$lists $packages_clang $packages_deep"
wants python && lists="$lists $packages_python"
need_packages $lists || exit 2

if wants tidy; then
  run_script tidy "$python" tests/tidy/tidy.py $deep
fi
if wants python; then
  # They need the network and the disk while the build needs the processors.
  (. tests/python/environment.sh && get_frameworks "$build" torch; get_frameworks "$build" jax) \
    >"$build/frameworks.log" 2>&1 &
fi
for suite in build unit contract sim crash cluster package python gpu fuzz mutation; do
  wants "$suite" && needs_build=yes
done
if [ -n "${needs_build:-}" ] && ! build_tree; then
  count build 0 1
  finish
fi
if wants unit; then
  why=$(sed -n 's/^-- GPU captures: no, //p' "$build/configure.log" 2>/dev/null)
  [ -n "$why" ] && skip capture "$why"
  run_ctest unit $((jobs + jobs / 2))  # Those on the stand-in for the driver wait a lot.
fi
wants contract && run_ctest contract "$jobs"
wants sim && run_ctest sim "$jobs"
if wants fuzz; then
  if [ -d "$build/fuzz" ]; then
    run_script fuzz bash tests/fuzz/run.sh "$build"
  else
    echo "suite fuzz has no programs in $build: it wants --preset clang"
    count fuzz 0 1
  fi
fi
if wants mutation; then
  run_script mutation "$python" -u tests/mutation/mutation.py "$build" --jobs "$jobs" $share
fi
wants crash && run_ctest crash 1 again
wants cluster && run_ctest cluster 1 again
if wants package; then
  run_script package run_all "tests/package/run.sh $build" "tests/package/bundle.sh $build" \
    "tests/package/sdist.sh $build $deep" ${deep:+tests/package/wheel.sh}
fi
if wants python; then
  wait  # For the frameworks.
  run_script python bash tests/python/run.sh "$build" $quick $deep $twice
fi
if wants gpu; then
  if [ ! -e /dev/nvidiactl ]; then
    listed=$("$ctest" --test-dir "$build" -L "^gpu\$" -N 2>/dev/null | sed -n "s/^Total Tests: //p")
    skip gpu "this machine has no NVIDIA device (${listed:-0} tests)"
  else
    run_ctest gpu 1
  fi
fi
finish
