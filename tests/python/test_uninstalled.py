"""Goal: a run of a stock framework in these tests has no libckpt, not even through a pickle.

Method: a process that had imported it, as the trainers' server has for others, takes it away, and
opens a pickle that wants it.
"""

import pathlib
import pickle
import subprocess
import sys

import libckpt

PROGRAM = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import doors, libckpt.errors
made = bytes.fromhex(sys.argv[2])
assert pickle.loads(made) is libckpt.errors.NotFound
doors.uninstall()
for statement in ("import libckpt", "import libckpt.errors", "pickle.loads(made)"):
    try:
        exec(statement)
    except ImportError:
        print("refused", statement)
"""


def test_where_libckpt_is_taken_away_no_import_and_no_pickle_finds_it():
    trainers = pathlib.Path(__file__).parent / "trainers"
    made = pickle.dumps(libckpt.NotFound).hex()
    done = subprocess.run([sys.executable, "-c", PROGRAM, trainers, made], capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "refused import libckpt", "refused import libckpt.errors", "refused pickle.loads(made)",
    ]  # fmt: skip
