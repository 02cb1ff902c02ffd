"""Goal: what a person sees: one line for each save; one that shows how far a long restore is, on a
terminal, on rank 0, and nothing elsewhere.

Method: the bar by itself, with a clock and a stream of the test's; then restores with a terminal of
the test's own, or none, as standard error.
"""

import io
import os
import pty
import shutil
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import libckpt  # noqa: E402
from libckpt.core import _progress  # noqa: E402

MARK = "<read until here>"


@pytest.fixture
def terminal(monkeypatch):
    """Makes a terminal standard error; then what is written to it is what read() returns."""
    ours, theirs = pty.openpty()
    stream = os.fdopen(theirs, "w", buffering=1)
    monkeypatch.setattr(_progress, "SECONDS_BEFORE", 0.0)

    def read():
        """Down to the mark: what is written to a terminal arrives in pieces, and later."""
        stream.write(MARK)
        stream.flush()
        text = ""
        while not text.endswith(MARK):
            text += os.read(ours, 1 << 16).decode()
        return text.removesuffix(MARK)

    def become():  # Not before the test's body: pytest has a stream of its own for each phase.
        monkeypatch.setattr(sys, "stderr", stream)
        return read

    yield become
    stream.close()
    os.close(ours)


def saved(job, **options):
    session = job("progress", **options)
    session.save(1, {"weight": torch.full((1000,), 1.0)})
    session.wait(1, "committed")
    session.abandon()


def restored(job, **options):
    target = torch.zeros(1000)
    job("progress", **options).restore({"weight": target})
    assert torch.equal(target, torch.full((1000,), 1.0))


def test_a_restore_on_a_terminal_shows_how_far_it_is_and_cleans_up(job, terminal):
    read = terminal()
    saved(job)
    assert read() == ""
    restored(job)
    written = read()
    assert "libckpt: restore from own memory [........................]  0% of 12.0 KiB" in written
    assert written.endswith(_progress.ERASE)
    assert "\n" not in written


def test_a_restore_that_is_over_at_once_shows_nothing(job, terminal, monkeypatch):
    monkeypatch.setattr(_progress, "SECONDS_BEFORE", 3600.0)
    read = terminal()
    saved(job)
    restored(job)
    assert read() == ""


def test_nothing_is_written_where_no_terminal_is(job, monkeypatch):
    monkeypatch.setattr(_progress, "SECONDS_BEFORE", 0.0)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    saved(job)
    restored(job)
    assert stream.getvalue() == ""


def test_without_a_terminal_each_cause_of_a_long_wait_is_logged_once(caplog):
    now = [0.0]
    waits = _progress.Waits(clock=lambda: now[0])
    waits("waiting", 0, 0, "", "rank 1 is not attached")
    assert not caplog.records
    for now[0], waiting in [(6, "rank 1 is not attached"), (7, "rank 1 is not attached"), (8, "x")]:
        waits("waiting", 0, 0, "", waiting)
    waits("filling", 3, 5, "storage", "")
    waits("ended", 0, 0, "", "")
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [
        "libckpt: restore: it waits: rank 1 is not attached", "libckpt: restore: it waits: x"
    ]  # fmt: skip


def test_other_ranks_write_nothing(terminal):
    class Client:
        def watch_restores(self, watch):
            raise AssertionError("rank 1 watches")

    read = terminal()
    with _progress.shown(Client(), rank=1):
        pass
    assert read() == ""


def test_an_error_of_the_bar_is_raised_when_all_bytes_are_there(job, terminal, monkeypatch):
    """As when somebody presses ^C while it is drawn."""

    def interrupt(_, phase, *__):
        if phase != "waiting":  # That ends a restore, on a busy machine.
            raise KeyboardInterrupt

    monkeypatch.setattr(_progress.Bar, "__call__", interrupt)
    terminal()
    saved(job)
    target = torch.zeros(1000)
    with pytest.raises(KeyboardInterrupt):
        job("progress").restore({"weight": target})
    assert torch.equal(target, torch.full((1000,), 1.0))


# Another process, which has no part in who holds the interpreter's lock.
INTERRUPT_ITS_SLEEP = """
import os, pathlib, signal, sys, time
process, asleep = int(sys.argv[1]), 0
while asleep < 8:
    state = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
    asleep = asleep + 1 if state == "S" else 0
    time.sleep(0.005)
os.kill(process, signal.SIGINT)
"""


def interrupted(call):
    """Its answer to ^C. Had it not heard that, its deadline would have come first."""
    command = [sys.executable, "-S", "-c", INTERRUPT_ITS_SLEEP, str(os.getpid())]
    # A process that a shell starts in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with subprocess.Popen(command) as other, pytest.raises(KeyboardInterrupt) as caught:
            call()
    finally:
        signal.signal(signal.SIGINT, before)
    assert other.returncode == 0
    assert caught.value.__context__ is None


def test_an_interrupt_ends_a_restore_that_waits_for_another_rank(job):
    alone = job("interrupted", rank=0, world_size=2, restore_deadline=30)
    interrupted(lambda: alone.restore({"weight": torch.zeros(1000)}))


def test_a_rank_that_variables_of_a_shell_made_is_told_where_others_are_missing(job, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    text = "rank 0 is not attached; this process is rank 1 of 2 by .* RANK and WORLD_SIZE: .*unset"
    with pytest.raises(libckpt.Unavailable, match=text):
        job("left-over", restore_deadline=1).restore({"weight": torch.zeros(2)})
    with pytest.raises(libckpt.Unavailable, match="is not attached$"):
        job("meant", rank=1, world_size=2, restore_deadline=1).restore({"weight": torch.zeros(2)})


def test_an_interrupt_ends_a_wait(held_up):
    interrupted(lambda: held_up.wait(2, "committed", 30))


def test_a_terminal_that_is_gone_stops_no_restore(job, monkeypatch):
    tried = []

    class Gone(io.StringIO):
        def isatty(self):
            return True

        def write(self, text):
            tried.append(text)
            raise OSError("gone")

    monkeypatch.setattr(_progress, "SECONDS_BEFORE", 0.0)
    monkeypatch.setattr(sys, "stderr", Gone())
    saved(job)
    restored(job)
    assert tried


def drawn(monkeypatch, columns, *calls):
    """The last line that is drawn by calls of (seconds, progress)."""
    monkeypatch.setenv("COLUMNS", str(columns))
    times = iter([0.0, *(seconds for seconds, _ in calls)])
    stream = io.StringIO()
    bar = _progress.Bar(stream, clock=lambda: next(times))
    for _, progress in calls:
        bar(*progress)
    return stream.getvalue().rpartition(_progress.ERASE)[2]


def test_the_line_tells_source_share_rate_and_what_is_left(monkeypatch):
    half = ("filling", 5 << 30, 10 << 30, "node B", "")
    line = drawn(monkeypatch, 200, (1.0, ("filling", 0, 10 << 30, "node B", "")), (6.0, half))
    assert line == (
        "libckpt: restore from node B [############............] 50% of 10.0 GiB, 1.0 GiB/s, "
        "5 s left"
    )


def test_each_phase_has_its_own_rate(monkeypatch):
    line = drawn(
        monkeypatch, 200,
        (1.0, ("filling", 1 << 30, 10 << 30, "storage", "")),
        (101.0, ("copying", 0, 10 << 30, "own memory", "")),
        (102.0, ("copying", 1 << 30, 10 << 30, "own memory", "")),
    )  # fmt: skip
    assert line.endswith(" 10% of 10.0 GiB, 1.0 GiB/s, 9 s left")


@pytest.mark.parametrize("columns", [20, 66, 67, 75, 76, 200])
def test_a_narrow_terminal_has_the_line_in_one_row(monkeypatch, columns):
    calls = [(seconds, ("filling", done, 10 << 30, "storage", ""))
             for seconds, done in ((1.0, 0), (2.0, 1 << 30))]  # fmt: skip
    line = drawn(monkeypatch, columns, *calls)
    assert len(line) < columns
    assert (" [" in line) == (columns >= 76)
    assert line.endswith("10% of 10.0 GiB, 1.0 GiB/s, 9 s left") == (columns >= 67)


def test_a_wait_names_the_ranks_that_it_waits_for(monkeypatch):
    line = drawn(monkeypatch, 200, (2.0, ("waiting", 0, 0, "", "rank 1 is not attached")))
    assert line == "libckpt: restore: rank 1 is not attached"


def test_each_save_is_one_line_with_what_it_cost(job, capfd):
    session = job("lines")
    steps = range(7001, 7006)  # No other session's, whose end may fall into this test.
    for step in steps:
        assert session.save(step, {"weight": torch.ones(1000)}, wait=30)
        session.finish_capture()
    session.close()
    told = capfd.readouterr().err
    lines = [line for line in told.splitlines() if " step 700" in line and " captured in " in line]
    assert [int(line.split(" step ")[1].split()[0]) for line in lines] == list(steps), told
    assert all(" ms, held " in line and " KiB, " in line for line in lines)


def test_a_job_that_begins_anew_says_so_and_why(job, tmp_path, capfd):
    items = {"weight": torch.ones(10)}
    options = {"dir": str(tmp_path / "run"), "save_storage_interval": 1}
    (tmp_path / "run").mkdir()
    first = job("anew", **options)
    assert first.restore_or(items, default=0) == 0
    for step in (1, 2):
        assert first.save(step, items, wait=30)
        first.wait(step, "durable")
    first.restore(items, step=1)
    first.close()
    shutil.rmtree(tmp_path / "run" / "step-000000001")
    assert job("anew", **options).restore_or(items, default=0) == 0
    lines = capfd.readouterr().err.splitlines()
    told = [line for line in lines if " libckpt job anew begins anew" in line]
    assert len(told) == 2, lines
    assert " info " in told[0] and f"no checkpoint in memory or in {tmp_path}/run" in told[0]
    assert " warning libckpt " in told[1]
    assert "newest seen: timeline 1 step 2, rejected: abandoned by a restore" in told[1]


def test_a_first_start_names_its_directory_and_its_origin(job, tmp_path, monkeypatch, capfd):
    items = {"weight": torch.ones(10)}
    made, there = tmp_path / "made", tmp_path / "there"
    there.mkdir()
    assert job("made", dir=str(made)).restore_or(items, default=0) == 0
    monkeypatch.setenv("LIBCKPT_DIR", str(there))
    assert job("there").restore_or(items, default=0) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if " begins anew: " in line]
    assert len(lines) == 2, lines
    assert " info libckpt job made begins anew: " in lines[0]
    assert f"(option dir: code); {made} did not exist, and was made at " in lines[0]
    assert lines[1].endswith(f"or in {there} (option dir: environment LIBCKPT_DIR)")
    assert " info libckpt " in lines[1]
