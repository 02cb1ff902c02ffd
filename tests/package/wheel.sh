#!/usr/bin/env bash
# Goal:   `pip install ./bindings/python` works for who has nothing but a clone and Debian's tools.
# Method: tests/package/wheel.sh [CLONE] clones the tree, makes a wheel of it in a new environment,
#         without any build tree, installs that, and saves and restores from an empty directory with
#         the daemon and the command line of the wheel. Takes a quarter of an hour of processor
#         time where ccache has nothing, so only `tests/run.sh --deep package` runs it.
set -u
cd "$(dirname "$0")/../.."
subject=
. tests/package/check.sh

clone=${1:-$scratch/clone}
export PATH=/usr/bin:/bin LIBCKPT_RUNTIME_DIR=$scratch/runtime
make_wheel() {
  { [ -d "$clone" ] || git clone -q . "$clone"; } &&
    (cd "$clone" && "$scratch/venv/bin/pip" wheel -q --no-deps -w "$scratch" ./bindings/python)
}
is_for_every_python() {
  ls "$scratch"/libckpt-*-cp310-abi3-linux_*.whl
}
saves_and_restores() {
  mkdir -p "$scratch/empty" && cd "$scratch/empty" && "$scratch/venv/bin/python" - <<'PYTHON'
import sys

import libckpt

session = libckpt.init("wheel", dir="checkpoints", save_storage_interval=1, raise_on_error=True)
progress = {"epoch": 3, "losses": [0.5]}
session.save(1, {"progress": progress}).durable.result(60)
progress.clear()
assert session.restore({"progress": progress}).step == 1
assert progress == {"epoch": 3, "losses": [0.5]}
assert not {"torch", "numpy", "transformers"} & set(sys.modules)
session.abandon()
PYTHON
}
has_the_programs() {
  "$scratch/venv/bin/ckpt" status | grep -q "job wheel" &&
    grep -rq "libckpt/bin/ckptd" "/proc/$(pgrep -f "$scratch/venv/.*ckptd" | head -n 1)/cmdline"
}
extra_resolves() {  # extra_resolves NAME
  "$scratch/venv/bin/pip" install -q --dry-run "$(echo "$scratch"/libckpt-*.whl)[$1]"
}

/usr/bin/python3 -m venv "$scratch/venv" || exit 1
backend='nanobind-backend>=1,<2'
if ! "$scratch/venv/bin/pip" download -q --no-deps -d "$scratch/index" "$backend"; then
  echo "skipped package: a wheel from a clone: no index of Python packages can be reached"
  exit 0
fi
check "a clone becomes a wheel" make_wheel
check "one wheel is for every Python" is_for_every_python
check "the wheel installs" "$scratch/venv/bin/pip" install -q "$scratch"/libckpt-*.whl
check "it saves and restores with nothing beside it" saves_and_restores
check "the daemon and the command line are those of the wheel" has_the_programs
"$scratch/venv/bin/ckpt" stop >/dev/null 2>&1
check "the extra torch resolves" extra_resolves torch
check "the extra transformers resolves" extra_resolves transformers
exit $status
