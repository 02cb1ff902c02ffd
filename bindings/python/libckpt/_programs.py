"""The programs that the package brings along: `ckptd`, the daemon, and `ckpt`, the command line."""

import os
import pathlib
import subprocess
import sys

DIRECTORY = pathlib.Path(__file__).resolve().parent / "bin"


def daemon_path():
    """The daemon to start when none runs; empty: beside the library."""
    program = DIRECTORY / "ckptd"
    return str(program) if program.exists() else ""


def run(name, *arguments):
    """Runs a program to its end, and answers what subprocess.run does."""
    command = [DIRECTORY / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _become(name):
    program = str(DIRECTORY / name)
    os.execv(program, [program, *sys.argv[1:]])


def ckpt():
    _become("ckpt")


def ckptd():
    _become("ckptd")
