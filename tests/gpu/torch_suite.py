"""Goal: trainings of PyTorch and JAX on a GPU are killed, go on, and end as if nothing had been.

Method: torch_suite.py [KIND ...] runs those of torch_trainer.py and of the frameworks that are
installed, several at once, as they share the GPU: each to its end without libckpt, and killed and
started again with it. Each loss and, at the end, each weight must be the same, bit for bit. Prints
"ok KIND: ..." or "FAILED KIND: ..." and leaves with 1 after a failure. Without a GPU they train on
processors.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback

HERE = pathlib.Path(__file__).resolve().parent
STEPS, KILL_AFTER = 40, 25
SECONDS_MAX = 150.0
AT_ONCE = 8

# The trainers of the Python suite, by name: the arguments of each, without those of all.
FRAMEWORKS = {
    "transformers": ("hf", {"use_cpu": False, "max_steps": 40, "save_steps": 10}),
    "lightning": ("fit", {"gpu": True, "steps": 40, "every": 10}),
    "accelerate": ("acc", {"gpu": True, "steps": 40, "every": 10}),
}


class Life:
    """One process, until it ends or has said a line."""

    def __init__(self, command, environment):
        self.lines = []
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
        self.timer = threading.Timer(SECONDS_MAX, self.kill)
        self.timer.start()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)  # Its forked workers live on for a while.

    def run(self, kill_at=None):
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if kill_at is not None and kill_at(self.lines[-1]):
                self.kill()
                break
        status = self.process.wait()
        self.timer.cancel()
        self.process.stdout.close()
        wanted = -signal.SIGKILL if kill_at else 0
        assert status == wanted, f"it ended with {status}:\n" + "\n".join(self.lines[-30:])
        return self

    def said(self, word):
        return [line.split()[1:] for line in self.lines if line.startswith(word + " ")]


def programs():
    """The program of each kind, without importing torch."""
    found = {}
    for path in (HERE / "torch_trainer.py", HERE / "torch_graphs.py"):
        kinds = path.read_text().partition("\nKINDS = ")[2]
        found.update(dict.fromkeys(re.findall(r'"(\w+)": [A-Z]\w+[,}]', kinds), path))
    return found


def run_trainer(kind, folder):
    environment = {"LIBCKPT_RUNTIME_DIR": str(folder / "run")}
    command = [sys.executable, programs()[kind], kind, folder, STEPS]
    stock = Life([*command, "stock"], environment).run()
    first = Life(command, environment).run(lambda line: line.startswith(f"loss {KILL_AFTER} "))
    second = Life(command, environment).run()
    ((began,),) = second.said("began")
    expected = dict(stock.said("loss"))
    for life in (first, second):
        for step, loss in life.said("loss"):
            assert loss == expected[step], f"step {step}: loss {loss}, expected {expected[step]}"
    assert 0 < int(began) <= KILL_AFTER, f"it went on from step {began}"
    assert second.said("weights") == stock.said("weights"), "the weights differ at the end"
    stop(folder)
    return f"killed after {KILL_AFTER}, went on from {began}; {stock.lines[-1]} without libckpt, " \
           f"with it {second.lines[-1]}"  # fmt: skip


def command_of(trainer, *arguments):
    """A trainer of the Python suite: in a bundle it lies beside this file."""
    folder = HERE if (HERE / f"{trainer}.py").exists() else HERE.parent / "python/trainers"
    program = f"import sys; sys.path.insert(0, '{folder}'); import {trainer}; " \
              f"{trainer}.main(*sys.argv[1:])"  # fmt: skip
    return [sys.executable, "-c", program, *arguments]


def run_framework(kind, folder):
    trainer, options = FRAMEWORKS[kind]
    ours = "callback" if kind == "transformers" else "libckpt"
    environment = {"LIBCKPT_RUNTIME_DIR": str(folder / "run")}

    def life(output, mode, **more):
        arguments = [folder / output, mode, json.dumps(options | more)]
        return Life(command_of(trainer, *arguments), environment)

    resumed = {"resume": True} if kind == "transformers" else {}
    stock = life("stock", "stock").run()
    made = re.compile(rf"(r0 )?made {KILL_AFTER}\b")
    life("ours", ours, **resumed).run(made.match)
    second = life("ours", ours, **resumed).run()
    ends = [line for line in stock.lines if "weights" in line]
    assert ends and ends == [line for line in second.lines if "weights" in line], second.lines[-20:]
    steps = [int(line.split("made ")[1].split()[0]) for line in second.lines if "made " in line]
    assert 1 < min(steps) <= KILL_AFTER + 1, f"it went on with step {min(steps)}"
    stop(folder)
    return f"killed after {KILL_AFTER}, went on with {min(steps)}"


def run_jax(folder):
    environment = {"LIBCKPT_RUNTIME_DIR": str(folder / "run"), "WAITS": "30",
                   "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
                   "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}  # fmt: skip
    command = command_of("jax_steps", 0, 1, 0, "1", "gpu-jax")
    stock = Life([*command, STEPS, folder / "stock"],
                 environment | {"LIBCKPT_RUNTIME_DIR": str(folder / "other")}).run()  # fmt: skip
    command += [STEPS, folder / "ours"]
    Life(command, environment).run(lambda line: line.startswith(f"p0 step {KILL_AFTER} "))
    second = Life(command, environment).run()
    (began,) = [line.split()[3] for line in second.lines if line.startswith("p0 began at")]
    assert int(began) >= KILL_AFTER - 1, f"it went on from step {began}"
    ends = [[line for line in life.lines if " ended " in line] for life in (stock, second)]
    assert ends[0] and ends[0] == ends[1], ends
    stop(folder)
    return f"killed after {KILL_AFTER}, went on from {began}"


def stop(folder):
    from libckpt import _programs

    subprocess.run([_programs.DIRECTORY / "ckpt", "stop", "--no-flush"], check=False,
                   capture_output=True, timeout=60,
                   env={**os.environ, "LIBCKPT_RUNTIME_DIR": str(folder / "run")})  # fmt: skip


def installed(kind):
    import importlib.util

    return importlib.util.find_spec(kind) is not None


def run_one(kind):
    try:
        with tempfile.TemporaryDirectory(prefix=f"gpu-{kind}-") as name:
            folder = pathlib.Path(name)
            if kind == "jax":
                said = run_jax(folder)
            elif kind in FRAMEWORKS:
                said = run_framework(kind, folder)
            else:
                said = run_trainer(kind, folder)
        print(f"ok {kind}: {said}", flush=True)
        return True
    except Exception:
        print(f"FAILED {kind}: {traceback.format_exc()}", flush=True)
        return False


def main(*kinds):
    if not kinds:
        kinds = [*programs(), *filter(installed, [*FRAMEWORKS, "jax"])]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        verdicts = list(pool.map(run_one, kinds))
    print(f"{verdicts.count(True)} passed, {verdicts.count(False)} failed")
    return 1 if False in verdicts else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
