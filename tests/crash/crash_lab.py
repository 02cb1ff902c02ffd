"""CrashLab: a fresh runtime directory and checkpoint directory, and the processes that use them.

Every wait has a deadline. A lab that failed keeps its files; one that did not is removed.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

BUDGET_BYTES = 96 << 20
TRAINER_SECONDS = 90.0
READY_SECONDS = 60.0
END_SECONDS = 60.0  # A killed process ends only when its fsync does, which a busy disk delays.
STALL_MS_MAX = 4000  # No step may be held longer: on a busy machine with two cores.


class Failure(Exception):
    """A promise of the library that was broken, in words."""


class Events:
    """A trainer's output, line by line."""

    def __init__(self, path):
        self.path = path
        self.read = []
        self.bytes_read = 0

    def lines(self):
        """Whole ones; only what is new since the last look is read."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.bytes_read)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[:new.rfind(b"\n") + 1]
        self.bytes_read += len(whole)
        self.read += whole.decode().splitlines()
        return self.read

    def values(self, name):
        found = [line.split() for line in self.lines()]
        return [int(words[1]) for words in found if len(words) > 1 and words[0] == name]

    def newest(self, name, otherwise=0):
        return max(self.values(name), default=otherwise)

    def has(self, name):
        return any(line.split()[0] == name for line in self.lines())

    def texts(self, name):
        return [line for line in self.lines() if line.startswith(name)]


class Lab:
    def __init__(self, tools, name):
        self.tools = tools
        self.daemon = tools.daemon  # Which trainers start.
        self.path = tempfile.mkdtemp(prefix=f"crash-{name[:24]}-")
        self.dir = os.path.join(self.path, "checkpoints")
        os.mkdir(self.dir)
        self.processes = []
        self.started = 0
        self.settings = {}  # More of the environment of all programs.
        self.gpu = None  # Settings of the next trainers' stand-in driver; None: no GPU.

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.end_all()
        if kind is None and not self.tools.must_keep:
            shutil.rmtree(self.path, ignore_errors=True)
        elif kind is Failure:
            raise Failure(f"{error}\n    logs: {self.path}") from None

    def runtime(self, node=""):
        path = os.path.join(self.path, "runtime" + node)
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    def environment(self, points="", node=""):
        given = {k: v for k, v in os.environ.items() if not k.startswith("LIBCKPT_")}
        given["LIBCKPT_DAEMON_PATH"] = self.daemon
        given["LIBCKPT_MEMORY_BUDGET"] = str(BUDGET_BYTES)
        given["LIBCKPT_RUNTIME_DIR"] = self.runtime(node)
        given["LIBCKPT_POINTS_LOG"] = self.tools.points_log
        if points:
            given["LIBCKPT_POINTS"] = points
        given.update(self.settings)
        return given

    def spawn(self, command, environment, name):
        self.started += 1
        path = os.path.join(self.path, f"{self.started:02d}-{name}.log")
        with open(path, "wb") as log:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, start_new_session=True)
        process.log_path = path
        process.log = lambda: read_text(path)
        self.processes.append(process)
        return process

    # --- daemon ---

    def start_daemon(self, points="", node="", must_be_ready=True):
        ready = os.path.join(self.runtime(node), "ckptd.json")
        process = self.spawn([self.tools.daemon, "--runtime-dir", self.runtime(node)],
                             self.environment(points, node), "ckptd" + node)
        wait_until(lambda: process.poll() is not None or self.daemon_pid(node) == process.pid,
                   READY_SECONDS, f"the daemon to be ready ({ready})")
        if must_be_ready and process.poll() is not None:
            raise Failure(f"the daemon ended with {process.returncode} at its start")
        return process

    def daemon_log(self, node=""):
        return read_text(os.path.join(self.runtime(node), "ckptd.log"))

    def daemon_pid(self, node=""):
        """The process id of the daemon that serves now; 0: none."""
        try:
            with open(os.path.join(self.runtime(node), "ckptd.json"), encoding="utf-8") as file:
                pid = json.load(file)["pid"]
        except (OSError, ValueError):
            return 0
        return pid if is_running(pid) else 0

    def kill_daemon(self, node=""):
        pid = self.daemon_pid(node)
        if pid:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not is_running(pid), END_SECONDS, "the killed daemon to end")

    # --- trainer ---

    def start_trainer(self, *arguments, points="", node=""):
        events = Events(os.path.join(self.path, f"{self.started + 1:02d}-events{node}"))
        command = [self.tools.trainer, "--runtime", self.runtime(node), "--dir", self.dir,
                   "--events", events.path, *[str(a) for a in arguments]]
        environment = self.environment(points, node)
        if self.gpu is not None:
            command.append("--gpu")
            environment["CKPT_CUDA_DRIVER"] = self.tools.stand_in
            environment["CKPT_CUDA_STAND_IN"] = self.gpu
        process = self.spawn(command, environment, "trainer" + node)
        process.events = events
        return process

    def finish(self, trainer, expected=0):
        code = self.wait(trainer)
        said = trainer.events.texts("failed") or trainer.events.lines()[-2:]
        if code != expected:
            raise Failure(f"a trainer ended with {code}, not {expected}: {said} "
                          f"({trainer.events.path})")
        return trainer.events

    def wait(self, process, seconds=TRAINER_SECONDS):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"a process did not end in {seconds:.0f} s: "
                          f"{getattr(process, 'events', None) and process.events.lines()[-3:]}"
                          ) from None

    def check_directory(self, rank=0, world=1):
        """Every checkpoint that is visible is whole: looked at while nobody tidies up."""
        process = self.start_trainer("--check", self.dir, "--rank", rank, "--world", world)
        self.finish(process)
        return process.events.values("whole")

    # --- the end ---

    def end_all(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait(END_SECONDS)
        # Daemons that trainers have started are no children of ours; they name our directory.
        for pid in processes_with(self.path):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def read_text(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def processes_with(text):
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace")
        except OSError:
            continue
        if text in words:
            found.append(int(name))
    return found


def is_running(pid):
    """A process whose first thread has ended still has its locks while another one is to end."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            has_first = file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
        return has_first or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def wait_until(is_true, seconds, what):
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise Failure(f"waited {seconds} s in vain for {what}")
        time.sleep(0.002)


def labels_in(sources):
    """{(label, process)} of all CKPT_POINTs: those of captures are the trainer's."""
    found = set()
    for folder, _, names in os.walk(sources):
        for name in names:
            if not name.endswith(".cpp"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                labels = re.findall(r'CKPT_POINT\("([^"]+)"\)', file.read())
            module = os.path.relpath(folder, sources).split(os.sep)[0]
            process = "trainer" if module in ("client", "device", "snapshot") else "daemon"
            found.update((label, process) for label in labels)
    return sorted(found)
