#!/usr/bin/env bash
# Goal:   the package installs and works with the frameworks that people have.
# Method: tests/python/run.sh BUILD [--quick | --deep] makes environments below BUILD, installs what
#         is missing, and runs pytest, which prints "ok NAME" or "FAILED NAME" for each test.
# JAX has an environment of its own, without torch. --quick leaves out what is marked as slow.
# --deep also runs the core's tests and those of DCP with the oldest torch.
# Arguments behind it go to pytest; with a path among them only that is run.
set -u
cd "$(dirname "$0")/../.."
. tests/python/environment.sh
build=$(realpath "${1:-build/dev}")
shift
arguments=()
if [ "${1:-}" = --quick ]; then
  arguments=(-m "not slow")
  shift
fi
is_deep=""
if [ "${1:-}" = --deep ]; then
  is_deep=yes
  shift
fi
of_core=(tests/python/test_{arrays,blocks,capture,changes,copies,dcp,due}.py
  tests/python/test_{export,failures,guarded_memory,items,members,mutations,no_restore}.py
  tests/python/test_{odd_items,optimizers,pickles,prepared,progress,scalers,streams}.py
  tests/python/test_{tensors,torch_loop,trees,wrapped_optimizers}.py)
for_jax=(tests/python/test_jax*.py tests/python/test_levanter*.py)
failed=0

run_in() {  # run_in FRAMEWORKS ARGUMENTS...: pytest in the environment with them.
  make_environment "$build" "$1"
  case $? in
    0) ;;
    3) return ;;
    *) failed=1; return ;;
  esac
  shift
  CKPT_BUILD=$build HF_HUB_OFFLINE=1 "$python" -m pytest -q -p no:cacheprovider --tb=short \
    --no-header "${arguments[@]}" "$@" || failed=1
}

case " $*" in
  *" tests/python/test_jax"* | *" tests/python/test_levanter"*) run_in jax "$@" ;;
  *" tests/python"*) run_in torch "$@" ;;
  *)
    run_in torch "${for_jax[@]/#/--ignore=}" tests/python "$@"
    run_in jax "${for_jax[@]}" tests/python/test_{guides,stubs}.py "$@"
    [ -z "$is_deep" ] || run_in old_torch "${of_core[@]}" "$@"
    ;;
esac
exit "$failed"
