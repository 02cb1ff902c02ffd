#!/usr/bin/env bash
# Goal:   a second try hides nothing: what failed by chance passes and is named, and all else fails.
# Method: tests/suites_test.sh runs tests/suites.sh on suites of its own: tests of ctest and scripts
#         that fail once, twice or each time.
set -u -o pipefail
cd "$(dirname "$0")/.."
. tests/packages.sh
. tests/suites.sh
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
build=build
mkdir build
log=build/tests.log
explicit=yes
status=0

begin() {  # Each case counts from nothing.
  passed=0
  failed=0
  skipped=0
  summary=""
  is_once=""
  programs=""
  rm -rf build/met*
}
expect() {  # expect CASE PASSED FAILED SUMMARY...: and what the summary names as unsteady
  local found
  found=$(sed -n 's/^unsteady: \(.*\) failed once, passed when run again$/\1/p' <<<"$summary")
  if [ "$passed/$failed/$found" = "$2/$3/$(printf '%s\n' "${@:4}")" ]; then
    echo "ok runner: $1"
  else
    echo "FAILED runner: $1: $passed passed, $failed failed, unsteady: $found"
    cat build/output
    status=1
  fi
}

# A test fails as often as its second argument says.
cat >fails.sh <<'END'
echo "$1 was run"
printf x >>"build/met-$1"
[ "$(wc -c <"build/met-$1")" -gt "$2" ]
END
suite_of() {  # suite_of NAME TIMES...: one test of ctest for each number
  local suite=$1 number=0 times
  for times in "${@:2}"; do
    number=$((number + 1))
    echo "add_test($suite$number bash fails.sh $suite$number $times)"
    echo "set_tests_properties($suite$number PROPERTIES LABELS $suite WORKING_DIRECTORY $scratch)"
  done >>build/CTestTestfile.cmake
}
suite_of steady 0 0
suite_of once 0 1 0 1
suite_of always 1 9 0
suite_of many 1 1 1 1

begin
run_ctest steady 1 again >build/output
expect "what passes passes" 2 0
begin
run_ctest once 2 again >build/output
expect "tests that fail once pass, and are named" 4 0 once2 once4
[ "$(grep -c '^once2 was run' build/output)" -eq 1 ] || {
  echo "FAILED runner: the output of the first failure is not shown"
  status=1
}
begin
run_ctest always 1 again >build/output
expect "a test that fails twice fails" 2 1 always1
begin
run_ctest many 1 again >build/output
expect "four failures are no chance" 0 4
begin
run_ctest once 1 >build/output
expect "other suites have no second try" 2 2
begin
is_once=yes
run_ctest once 1 again >build/output
expect "--once is without a second try" 2 2

# Scripts of checks, of which the last one's verdict may change.
cat >checks.sh <<'END'
echo "ok $1: first"
if bash fails.sh "$1" "$2" >/dev/null; then
  echo "ok $1: last"
else
  echo "FAILED $1: last"
  exit 1
fi
END
begin
run_script package run_all "checks.sh a 0" "checks.sh b 1" >build/output
expect "a script that fails once passes" 4 0 "b: last"
begin
run_script package run_all "checks.sh a 1" "checks.sh b 2" >build/output
expect "a script that fails twice fails" 3 1 "a: last"
begin
is_once=yes
run_script package run_all "checks.sh a 1" >build/output
expect "--once is without a second try for scripts" 1 1
begin
run_script package run_all "checks.sh "{a,b,c,d}" 1" >build/output
expect "four failed scripts are no chance" 4 4
begin
run_script package run_all "fails.sh silent 1" >build/output
expect "a script that fails without a word is named, too" 1 0 "fails.sh silent 1"
begin
run_script package run_all "fails.sh silent 2" >build/output
expect "a script that fails without a word twice fails" 0 1
begin
run_script tidy bash checks.sh a 1 >build/output
expect "other scripts have no second try" 1 1
exit "$status"
