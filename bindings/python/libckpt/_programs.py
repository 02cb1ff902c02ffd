"""The programs that the package brings along: `ckptd`, the daemon, and `ckpt`, the command line."""

import os
import pathlib
import sys

DIRECTORY = pathlib.Path(__file__).resolve().parent / "bin"


def daemon_path():
    """The daemon to start when none runs; empty: beside the library."""
    program = DIRECTORY / "ckptd"
    return str(program) if program.exists() else ""


def _become(name):
    program = str(DIRECTORY / name)
    os.execv(program, [program, *sys.argv[1:]])


def ckpt():
    _become("ckpt")


def ckptd():
    _become("ckptd")
