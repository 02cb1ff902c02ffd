#!/usr/bin/env bash
# Goal:   the package installs and works with the frameworks that people have.
# Method: tests/python/run.sh BUILD [--quick] makes an environment below BUILD, installs what is
#         missing, and runs pytest, which prints "ok NAME" or "FAILED NAME" for each test.
# --quick leaves out what is marked as slow. Arguments behind it go to pytest; with a path among
# them only that is run.
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
case " $*" in
  *" tests/python"*) ;;
  *) arguments+=(tests/python) ;;
esac

make_environment "$build"
case $? in
  0) ;;
  3) exit 0 ;;
  *) exit 1 ;;
esac
CKPT_BUILD=$build HF_HUB_OFFLINE=1 exec "$python" -m pytest -q -p no:cacheprovider --tb=short \
  --no-header "${arguments[@]}" "$@"
