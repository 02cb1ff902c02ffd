#!/usr/bin/env bash
# Goal:   the package installs and works with the frameworks that people have.
# Method: tests/python/run.sh BUILD [--quick | --deep] [--twice] makes environments below BUILD,
#         installs what is missing, and runs pytest, which prints "ok NAME" or "FAILED NAME" for
#         each test.
# JAX has an environment of its own, without torch. --quick leaves out what is marked as slow.
# --deep also runs the core's tests and those of DCP with the oldest torch, and a training by
# Levanter's own Trainer. --twice: what failed is run once more at the end, if it is no more than
# tests/suites.sh allows, and passes as "unsteady".
# A BUILD with g++'s address sanitizer (--preset asan) is tested with it in all processes.
# Arguments behind it go to pytest; with a path among them only that is run, one test at a time. All
# of them run several at once: most wait for processes that wait.
set -u
cd "$(dirname "$0")/../.."
. tests/suites.sh
. tests/python/environment.sh
build=$(realpath "${1:-build/dev}")
shift
arguments=()
is_deep=""
is_once=yes
workers_max=4  # Each has PyTorch twice in memory, and starts ranks besides.
while :; do
  case "${1:-}" in
    --quick) arguments=(-m "not slow") ;;
    --deep) is_deep=yes ;;
    --twice) is_once="" ;;
    *) break ;;
  esac
  shift
done
of_core=(tests/python/test_{arrays,blocks,capture,changes,copies,dcp,due}.py
  tests/python/test_{export,failures,guarded_memory,items,members,mutations,no_restore}.py
  tests/python/test_{odd_items,optimizers,pickles,prepared,progress,scalers,streams}.py
  tests/python/test_{tensors,torch_loop,trees,wrapped_optimizers}.py)
for_jax=(tests/python/test_jax*.py tests/python/test_levanter*.py)
workers=$(($(nproc) * 3 / 2))
at_once=(-n "$((workers < workers_max ? workers : workers_max))" --dist worksteal)
asan_options=detect_leaks=0:handle_segv=0:handle_sigbus=0:allocator_may_return_null=1
failed=0
is_broken=""  # Something else than a test has failed.
lists=$(mktemp -d)  # Of the tests that failed: a file for each environment.
trap 'rm -rf "$lists"' EXIT

# Python itself is not sanitized: the runtime is loaded before it, and before the frameworks, whose
# exceptions it takes from the C++ library. It leaves signals to Python and to the tests.
sanitized=()
if is_address_sanitized "$build"; then
  preloaded=$(for name in asan stdc++; do g++ -print-file-name="lib$name.so"; done | xargs realpath)
  sanitized=(env LD_PRELOAD="${preloaded//$'\n'/ }"
    ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}$asan_options")
fi

run_in() {  # run_in FRAMEWORKS ARGUMENTS...: pytest in the environment with them.
  make_environment "$build" "$1"
  case $? in
    0) ;;
    3) return ;;
    *) failed=1 is_broken=yes; return ;;
  esac
  CKPT_BUILD=$build CKPT_FAILED_TESTS=$lists/$1 HF_HUB_OFFLINE=1 "${sanitized[@]}" \
    "$python" -m pytest -q -p no:cacheprovider --tb=short --no-header --durations=25 \
    --durations-min=5 "${arguments[@]}" "${@:2}"
  case $? in
    0) ;;
    1) failed=1 ;;  # The list says which.
    *) failed=1 is_broken=yes ;;
  esac
}
run_again() {
  local list tests
  failed=0
  for list in "$lists"/*; do
    mapfile -t tests <"$list"
    echo "once more: ${tests[*]}"
    export CKPT_SECOND_TRY=yes
    run_in "$(basename "$list")" "${tests[@]}"
  done
}

case " $*" in
  *" tests/python/test_levanter_own"*) run_in levanter "$@" ;;
  *" tests/python/test_jax"* | *" tests/python/test_levanter"*) run_in jax "$@" ;;
  *" tests/python"*) run_in torch "$@" ;;
  *)
    run_in torch "${at_once[@]}" "${for_jax[@]/#/--ignore=}" tests/python "$@"
    run_in jax "${at_once[@]}" "${for_jax[@]}" tests/python/test_{guides,stubs}.py "$@"
    [ -z "$is_deep" ] || run_in old_torch "${at_once[@]}" "${of_core[@]}" "$@"
    [ -z "$is_deep" ] || run_in levanter tests/python/test_levanter_own.py "$@"
    ;;
esac
if [ -z "$is_broken" ] && may_try_again "$(cat "$lists"/* 2>/dev/null | wc -l)"; then
  run_again
fi
exit "$failed"
