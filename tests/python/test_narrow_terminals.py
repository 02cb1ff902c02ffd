"""Goal: on a narrow terminal the tables of the commands fit, also with long names and many steps; a
pipe gets whole lines.

Method: a job with a long name saves some steps; each command runs with COLUMNS set, and without.
"""

import os
import pty
import re
import subprocess

import numpy
import pytest

JOB = "a-job-with-quite-a-long-name-as-sweeps-make-them-lr3e-4-bs4096-warmup-seed17"
STEPS = 9


@pytest.fixture
def lines(programs):
    """The output of a command on a terminal of so many columns; 0: into a pipe."""

    def run(columns, *arguments, status=0):
        environment = {**os.environ, "COLUMNS": str(columns)}
        if columns == 0:
            del environment["COLUMNS"]
        done = subprocess.run([programs / "ckpt", *map(str, arguments)], env=environment, text=True,
                              capture_output=True, timeout=120, check=False)  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run


@pytest.fixture
def stored(job, tmp_path):
    session = job(JOB, dir=str(tmp_path / JOB), save_storage_interval=1)
    weights = {f"model.layers.{n}.attention.query_key_value.weight": numpy.ones((8, 8), "float32")
               for n in range(3)}  # fmt: skip
    for step in range(1, STEPS + 1):
        session.save(step, weights, wait=30)
        session.wait(step, "durable")
    return tmp_path / JOB


def test_a_list_says_the_job_once_and_fits(stored, lines):
    for columns in (80, 200, 0):
        listed = lines(columns, "ls", stored)
        assert listed[0] == f"job {JOB}"
        assert len(listed) == 2 + STEPS
        assert max(map(len, listed[1:])) <= 80
        assert all("published" in line for line in listed[2:])


def test_steps_of_several_jobs_have_their_names(stored, lines, job, ckpt):
    other = job("other", dir=str(stored.parent / "other"))
    other.save(1, {"a": numpy.ones(3)}, wait=30)
    other.wait(1, "committed")
    other.close()
    assert lines(0, "ls", stored.parent / "other")[0] == "job other"
    assert f"job {JOB}" in ckpt("ls", str(stored.parent))


def test_the_status_shows_the_newest_of_many_steps(stored, lines):
    told = lines(80, "status")
    assert any(f"and {STEPS - 4} older steps on storage" in line for line in told)
    assert sum("durable" in line for line in told) == 4  # The one in memory, and three more.
    assert any("2 of these" in line for line in told)


def test_other_commands_fit_too(stored, lines, monkeypatch):
    monkeypatch.chdir(stored)
    for arguments in (["inspect", "."], ["verify", "."], ["gc", ".", "--keep", "2", "--dry-run"]):
        told = [line for line in lines(80, *arguments) if JOB not in line]
        if arguments[0] == "gc":  # Its table; a sentence is folded on terminals alone.
            told = [line for line in told if line.startswith(("NAME", "step-"))]
        assert len(told) > 1
        assert max(map(len, told)) <= 80


def test_a_long_error_is_folded_on_a_terminal_alone(programs, tmp_path):
    path = tmp_path / "has" / "no" / "checkpoint"
    reader, writer = pty.openpty()
    environment = {**os.environ, "COLUMNS": "60"}
    command = [programs / "ckpt", "verify", path]
    done = subprocess.run(command, env=environment, stderr=writer, timeout=120, check=False)
    os.close(writer)
    shown = os.read(reader, 1 << 16).decode().splitlines()
    os.close(reader)
    assert done.returncode != 0 and len(shown) > 1
    assert all(len(line) <= 60 or len(line.split()) == 1 for line in shown), shown
    piped = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True,
                           timeout=120, check=False).stderr  # fmt: skip
    assert piped.count("\n") == 1 and piped.split() == " ".join(shown).split()


def test_a_copy_counts_up_to_what_it_copies(stored, tmp_path, programs):
    reader, writer = pty.openpty()  # Progress is shown on a terminal alone.
    command = [programs / "ckpt", "cp", stored, tmp_path / "copy"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, timeout=120,
                          check=True)  # fmt: skip
    os.close(writer)
    shown = os.read(reader, 1 << 16).decode()
    os.close(reader)
    copied = re.search(r"([\d.]+ \w+) copied", done.stdout)[1]
    assert set(re.findall(r" of ([\d.]+ \w+)", shown)) == {copied}
