# How tests/run.sh runs a suite and counts its verdicts; sourced by it in the tree's root, and by
# tests/suites_test.sh. It wants ctest, build, log, explicit, programs and is_once, and it adds to
# passed, failed, skipped and summary.
#
# Tests of real processes fail by chance on a busy machine. So what fails in a suite of them is run
# once more, alone, when the suite has ended. A test that passes then counts as passed, and the
# summary names it as unsteady.

second_tries_max=3  # More failures than these in one suite are no chance.

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
unsteady() {  # unsteady NAME
  summary="${summary}unsteady: $1 failed once, passed when run again"$'\n'
}
may_try_again() {  # may_try_again FAILURES
  [ -z "$is_once" ] && [ "$1" -gt 0 ] && [ "$1" -le "$second_tries_max" ]
}

# run_ctest SUITE JOBS [again]: the tests of ctest that carry the suite's label. again: what fails
# has a second try.
run_ctest() {
  local suite=$1 output=$build/ctest-$1.xml selected=(-L "^$1\$") listed tests failures skips
  [ "$suite" != unit ] || [ -z "$programs" ] || selected+=(-R "^(${programs// /|})/")
  listed=$("$ctest" --test-dir "$build" "${selected[@]}" -N 2>/dev/null |
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
  call_ctest "$output" "${selected[@]}" -j "$2" --no-tests=error
  read_junit "$output"
  if [ -z "$tests" ]; then
    count "$suite" 0 1
    return
  fi
  [ "${3:-}" = again ] && may_try_again "$failures" && try_ctest_again "$suite"
  skipped=$((skipped + skips))
  count "$suite" $((tests - failures - skips)) "$failures"
  count_shortened "$suite" "$output"
}
call_ctest() {  # call_ctest OUTPUT ARGUMENTS...
  rm -f "$1"
  "$ctest" --test-dir "$build" --output-junit "$PWD/$1" --output-on-failure "${@:2}" 2>&1 |
    tee -a "$log" | grep -vE ' Passed +[0-9.]+ sec$|^ +Start '
}
read_junit() {  # read_junit FILE: sets tests, failures and skips
  local head
  head=$(grep -m 1 -A 8 '<testsuite' "$1" 2>/dev/null | tr -s '[:space:]' ' ')
  tests=$(sed -n 's/.* tests="\([0-9]*\)".*/\1/p' <<<"$head")
  failures=$(sed -n 's/.* failures="\([0-9]*\)".*/\1/p' <<<"$head")
  skips=$(sed -n 's/.* skipped="\([0-9]*\)".*/\1/p' <<<"$head")
}
try_ctest_again() {  # try_ctest_again SUITE: takes from failures what passes now
  local output=$build/ctest-$1-again.xml name
  title "$1: once more, alone, what failed"
  call_ctest "$output" -L "^$1\$" -j 1 --rerun-failed
  while read -r name; do
    failures=$((failures - 1))
    unsteady "$name"
  done < <(sed -n 's/.*<testcase name="\([^"]*\)".* status="run".*/\1/p' "$output" 2>/dev/null)
}
count_shortened() {  # Counts tests that leave out or shorten something under a sanitizer.
  local line
  while read -r line; do
    summary="$summary$(printf '%-9s %s' "$1" "$line")"$'\n'
  done < <(grep -o '^.*under a sanitizer.*' "$2" 2>/dev/null | sort -u)
}

# run_script SUITE COMMAND...: a program that prints "ok NAME" or "FAILED NAME" for each check, and
# "unsteady NAME" for one that failed before and passes now.
run_script() {
  local suite=$1 output=$build/$1.log status good bad name
  shift
  title "$suite"
  "$@" 2>&1 | tee "$output"
  status=${PIPESTATUS[0]}
  good=$(grep -c '^ok ' "$output")
  # Not the summary of pytest, which names what failed a second time, by file::test.
  bad=$(grep '^FAILED ' "$output" | grep -vc '::')
  while read -r name; do
    good=$((good + 1))
    bad=$((bad - 1))
    unsteady "$name"
  done < <(sed -n 's/^unsteady //p' "$output")
  [ "$status" -ne 0 ] && [ "$bad" -le 0 ] && bad=1
  count "$suite" "$good" "$bad"
}

# run_all SCRIPT...: scripts with their arguments, one after another. One that fails is run again as
# a whole, since its checks need those before them.
run_all() {
  local script output=$build/script.log status=0 failures=0 again=() names=() found
  for script in "$@"; do
    bash $script 2>&1 | tee "$output"
    [ "${PIPESTATUS[0]}" -ne 0 ] || continue
    status=1
    found=$(sed -n 's/^FAILED //p' "$output")
    if [ -z "$found" ]; then
      found=$script
      echo "FAILED $script"
    fi
    failures=$((failures + $(wc -l <<<"$found")))
    again+=("$script")
    names+=("$found")
  done
  may_try_again "$failures" || return "$status"
  status=0
  for script in "${!again[@]}"; do
    echo "once more: ${again[script]}"
    bash ${again[script]} 2>&1 | sed 's/^ok /passed again: /; s/^FAILED /failed again: /'
    if [ "${PIPESTATUS[0]}" -eq 0 ]; then
      sed 's/^/unsteady /' <<<"${names[script]}"
    else
      status=1
    fi
  done
  return "$status"
}
