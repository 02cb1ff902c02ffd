#!/usr/bin/env bash
# Builds libckpt and runs its tests.
#
#   tests/run.sh [suite ...] [--preset P] [--seeds N] [--deep] [--quick] [--jobs N] [--tenth K]
#
# Suites: tidy unit contract sim crash cluster package python gpu fuzz mutation, or "build" for none
# of them. Default: all that this machine can run, but for mutation, which takes most of an hour,
# and fuzz, which wants a preset of clang; what was skipped is said, and why.
# --seeds: seeds of the simulator. --deep: clang-tidy, a wheel from a clone, and Python with an
# older torch, too. --quick: Python without its slow tests. --tenth: each tenth mutant from number K
# on, or "commit": K from the commit. Ends with a line "N passed, N failed", and with 1 if anything
# failed.
set -u -o pipefail
cd "$(dirname "$0")/.."
. tests/packages.sh

all_suites="tidy unit contract sim crash cluster package python gpu"
suites=""
preset=dev
deep=""
quick=""
tenth=""
jobs=$(nproc)
explicit=yes

usage() {
  sed -n '2,12s/^# \{0,1\}//p' tests/run.sh
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
    --tenth) tenth="--tenth ${2:?--tenth wants a number or \"commit\"}"; shift ;;
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
export ASAN_OPTIONS=${ASAN_OPTIONS:-log_path=$reports/report}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:log_path=$reports/report}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=1:log_path=$reports/report}
# Daemons of tests do not give way: tests have deadlines, and others use the machine.
export LIBCKPT_NICE=${LIBCKPT_NICE:-0}

count() {  # count SUITE PASSED FAILED
  passed=$((passed + $2))
  failed=$((failed + $3))
  summary="$summary$(printf '%-9s %4d passed %4d failed' "$1" "$2" "$3")"$'\n'
}
skip() {  # skip SUITE WHY
  skipped=$((skipped + 1))
  summary="$summary$(printf '%-9s skipped: %s' "$1" "$2")"$'\n'
}
title() {
  printf '\n== %s (%ss)\n' "$1" "$SECONDS"
}

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
  "$cmake" --build "$build" -j "$jobs"
}

# run_ctest SUITE JOBS: the tests of ctest that carry the suite's label.
run_ctest() {
  local suite=$1 output=$build/ctest-$1.xml listed
  listed=$("$ctest" --test-dir "$build" -L "^$suite\$" -N 2>/dev/null |
    sed -n 's/^Total Tests: //p')
  if [ "${listed:-0}" -eq 0 ]; then
    if [ -n "$explicit" ]; then
      echo "suite $suite has no tests in $build"
      count "$suite" 0 1
    else
      skip "$suite" "no tests are built"
    fi
    return
  fi
  title "$suite: $listed tests"
  rm -f "$output"
  "$ctest" --test-dir "$build" -L "^$suite\$" -j "$2" --output-on-failure --no-tests=error \
    --output-junit "$PWD/$output" 2>&1 | tee -a "$log" |
    grep -vE ' Passed +[0-9.]+ sec$|^ +Start '
  count_junit "$suite" "$output"
}
count_junit() {  # count_junit SUITE FILE
  local head tests failures skips
  head=$(grep -m 1 -A 8 '<testsuite' "$2" 2>/dev/null | tr -s '[:space:]' ' ')
  tests=$(sed -n 's/.* tests="\([0-9]*\)".*/\1/p' <<<"$head")
  failures=$(sed -n 's/.* failures="\([0-9]*\)".*/\1/p' <<<"$head")
  skips=$(sed -n 's/.* skipped="\([0-9]*\)".*/\1/p' <<<"$head")
  if [ -z "$tests" ]; then
    count "$1" 0 1
  else
    skipped=$((skipped + skips))
    count "$1" $((tests - failures - skips)) "$failures"
  fi
  # The parts that a test leaves out or shortens under a sanitizer, in its own words.
  while read -r head; do
    summary="$summary$(printf '%-9s %s' "$1" "$head")"$'\n'
  done < <(grep -o '^.*under a sanitizer.*' "$2" 2>/dev/null | sort -u)
}

# run_script SUITE COMMAND...: a program that prints "ok NAME" or "FAILED NAME" for each check.
run_script() {
  local suite=$1 output=$build/$1.log status good bad
  shift
  title "$suite"
  "$@" 2>&1 | tee "$output"
  status=${PIPESTATUS[0]}
  good=$(grep -c '^ok ' "$output")
  # Not the summary of pytest, which names what failed a second time, by file::test.
  bad=$(grep '^FAILED ' "$output" | grep -vc '::')
  [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
  count "$suite" "$good" "$bad"
}

package_tests() {  # package_tests BUILD
  local status=0
  bash tests/package/run.sh "$1" || status=1
  bash tests/package/bundle.sh "$1" || status=1
  bash tests/package/sdist.sh "$1" ${deep:+--deep} || status=1
  if [ -n "$deep" ]; then
    bash tests/package/wheel.sh || status=1
  fi
  return $status
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
  run_ctest unit "$jobs"
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
  run_script mutation "$python" -u tests/mutation/mutation.py "$build" --jobs "$jobs" $tenth
fi
wants crash && run_ctest crash 1
wants cluster && run_ctest cluster 1
if wants package; then
  run_script package package_tests "$build"
fi
if wants python; then
  wait  # For the frameworks.
  run_script python bash tests/python/run.sh "$build" $quick $deep
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
