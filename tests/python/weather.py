"""Random options for a job, and random faults beside it; used by test_weather.py."""

import contextlib
import copy
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading
import time

HOSTS = {"A": "127.0.0.2", "B": "127.0.0.3", "C": "127.0.0.4"}
DISK_MIB = 96


class Site:
    """The directories of a job, its nodes' daemons, and a small disk of its own."""

    def __init__(self, root, programs, ports, bucket):
        self.root, self.programs, self.ports, self.bucket = root, programs, ports, bucket
        self.processes = []  # Ranks, which may outlive their test.
        self.disk = root / "disk"
        self.disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", self.disk]
        subprocess.run(mount, check=True, capture_output=True)
        self.places = {
            "disk": [self.disk / "checkpoints"],
            "two disks": [self.disk / "checkpoints", root / "second"],
            "bucket": ["s3://bucket/checkpoints"],
            "disk and bucket": [self.disk / "checkpoints", "s3://bucket/checkpoints"],
        }
        self.secret = root / "secret"
        self.secret.write_text("a secret of the nodes of this test\n")
        self.secret.chmod(0o600)

    def runtime(self, node):
        return self.root / f"runtime-{node}"

    def environment(self, node):
        return {
            "LIBCKPT_RUNTIME_DIR": str(self.runtime(node)),
            "LIBCKPT_DAEMON_PATH": str(self.programs / "ckptd"),
            "LIBCKPT_NICE": "0",
        }

    def address(self, node):
        return f"{node}@{HOSTS[node]}:{self.ports[node].getsockname()[1]}"

    def signal(self, node, number):
        """False: the node has no daemon."""
        try:
            ready = json.loads((self.runtime(node) / "ckptd.json").read_text())
            os.kill(ready["pid"], number)
        except (OSError, ValueError):
            return False
        return True

    def ckpt(self, *arguments):
        subprocess.run([self.programs / "ckpt", *map(str, arguments)], capture_output=True,
                       timeout=120, check=False)  # fmt: skip

    def close(self):
        for process in self.processes:
            process.kill()
        for node in HOSTS:
            self.signal(node, signal.SIGCONT)
            self.ckpt("stop", "--no-flush", "--runtime-dir", self.runtime(node))
        subprocess.run(["umount", "--lazy", self.disk], check=True)


class Job:
    """The choices that hold for all lives of a job."""

    def __init__(self, dice):
        self.nodes = dice.choice(["A", "AB", "ABC"])
        self.columns = dice.choice([20, 400, 3000])
        self.frozen = dice.choice([10, 50_000, 800_000])
        self.history = dice.choice([0, 0, 10, 300])
        self.is_large = self.columns == 3000 or self.frozen > 10 or self.history == 300
        self.places = dice.choice([["disk"], ["disk", "two disks", "disk and bucket"], ["bucket"]])

    def __str__(self):
        sizes = f"{self.columns} columns, {self.frozen} frozen, {self.history} more at each step"
        return f"{' or '.join(self.places)}, {sizes}"


class Life:
    """One start of it, by other options, on other nodes, with another number of ranks."""

    def __init__(self, number, dice, job, site, world_before):
        self.number = number
        self.ends_at = dice.uniform(0.3, 2.5) if dice.random() < 0.12 else None  # Before it begins.
        some = sorted(dice.sample(job.nodes, dice.randint(1, len(job.nodes))))
        self.nodes = job.nodes if dice.random() < 0.6 else "".join(some)
        world = dice.choice([1, 2, 2, 3])
        if world_before and dice.random() < 0.5:
            world = world_before
        self.world = max(world, len(self.nodes))
        self.places = [self.nodes[rank % len(self.nodes)] for rank in range(self.world)]
        self.steps = dice.choice([10**6, 10**6, 40])
        self.pause = dice.choice([0.002, 0.01, 0.03])
        self.ends_by = dice.choices(
            [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP], [3, 2, 4, 2]
        )[0]
        self.place = dice.choice(job.places)
        self.options = {
            "dir": ", ".join(map(str, site.places[self.place])),
            "replicas": dice.choice([1, 2, 2]),
            "skip_unchanged": dice.choice([False, True]),
            "checksum_in_copy": dice.choice([True, True, False]),
            "save_mem_interval": dice.choice([1, 1, 2, 3, "100ms"]),
            "save_storage_interval": dice.choice([1, 2, 5, 6, "300ms", "1s", "never"]),
            "max_ckpt_num": dice.choice([1, 2] if job.is_large else [0, 1, 2, 3]),
            "secret_file": str(site.secret),
            "nodes": ",".join(map(site.address, self.nodes)),
            "incarnation": number,
        }
        if len(site.places[self.place]) > 1:
            self.options["dir"] += " every 2"
        if self.options["max_ckpt_num"] and not job.is_large and dice.random() < 0.3:
            self.options["keep_every"] = dice.choice([6, 10])
        if dice.random() < 0.3:
            self.options["compression"] = "zstd"
        if dice.random() < 0.2:
            self.options["own_slots"] = dice.choice([2, 3, 4])
        if dice.random() < 0.15:
            self.options["flush_rate"] = "2MiB"

    def __str__(self):
        hidden = ("dir", "secret_file", "nodes", "incarnation")
        options = {name: self.options[name] for name in self.options if name not in hidden}
        end = self.ends_by.name if self.ends_at is None else f"death at {self.ends_at:.1f} s"
        where = f"{self.world} ranks on {self.nodes}, {self.place}"
        return f"life {self.number}: {where}, {options}, ends by {end}"

    @property
    def must_store(self):
        return self.options["save_storage_interval"] != "never" and self.steps > 40


class Faults:
    """Each is put right again before it returns, but for what is dead, deleted or rotten."""

    def __init__(self, dice, site, place, ranks):
        self._dice, self._site, self._ranks = dice, site, ranks
        self._directory = site.places[place][0]
        self._is_on_disk = "disk" in place
        self._place, self._disk = place, threading.Lock()
        self.done = []

    def beside(self):
        """More of them, at the same time."""
        others = copy.copy(self)
        others._dice = dice_of(self._dice.random())
        return others

    def storm(self, nodes, ends):
        while time.monotonic() < ends and not self._ranks.have_ended(any):
            time.sleep(self._dice.uniform(0.2, 1))
            self._one(nodes)

    def _one(self, nodes):
        choices = [
            (0 if self._place == "disk" else 12, self.bucket_fails),
            (10, self.daemon_dies), (8, self.daemon_hangs), (8, self.disk_is_full),
            (6, self.disk_is_read_only), (4, self.daemon_is_stopped), (4, self.daemon_is_upgraded),
            (4, self.is_verified), (4, self.is_copied), (4, self.rots), (3, self.is_thinned),
            (3, self.is_cleaned), (5, self.rank_hangs), (2, self.rank_dies),
            (40, lambda node: None),
        ]  # fmt: skip
        weights, faults = zip(*choices)
        self._dice.choices(faults, weights)[0](self._dice.choice(nodes))

    @property
    def take_memory(self):
        return any(fault.startswith(("kill", "ckpt stop", "upgrade")) for fault in self.done)

    @property
    def take_files(self):
        return any(fault.startswith(("rot", "rm")) for fault in self.done)

    def may_lose_a_close(self, text):
        reasons = ("only in the memory of a daemon that died", "part of it died with its nodes")
        return self.take_memory and any(reason in text for reason in reasons)

    @property
    def has_broken_the_job(self):
        return any(fault.startswith("a rank dies") for fault in self.done)

    def daemon_dies(self, node):
        if self._site.signal(node, signal.SIGKILL):
            self.done.append(f"kill {node}")

    def daemon_hangs(self, node):
        if self._site.signal(node, signal.SIGSTOP):
            time.sleep(self._dice.uniform(0.1, 3))
            self._site.signal(node, signal.SIGCONT)
            self.done.append(f"stop {node}")

    def disk_is_full(self, node):
        filler = self._site.disk / "filler"
        with self._disk:
            with contextlib.suppress(OSError), open(filler, "wb") as file:
                for _ in range(DISK_MIB):
                    file.write(bytes(1 << 20))
            time.sleep(self._dice.uniform(0.2, 1.5))
            filler.unlink()
        self.done.append("full")

    def disk_is_read_only(self, node):
        with self._disk:
            for mode in ("ro", "rw"):
                subprocess.run(["mount", "-o", f"remount,{mode}", self._site.disk],
                               capture_output=True, check=False)  # fmt: skip
                time.sleep(self._dice.uniform(0.2, 1.5))
        self.done.append("read-only")

    def bucket_fails(self, node):
        how = self._dice.choice(["refuse", "reset", "lose", "truncate", "hang"])
        share = self._dice.choice([0.1, 0.5, 1])
        dice = dice_of(self._dice.random())
        proxy = self._site.bucket.proxy
        proxy.fault = lambda method, path: how if dice.random() < share else None
        time.sleep(self._dice.uniform(0.3, 3))
        proxy.fault = lambda method, path: None
        proxy.released.set()  # Those that hang.
        proxy.released.clear()
        self.done.append(f"bucket {how} {share}")

    def daemon_is_stopped(self, node):
        self._site.ckpt("stop", "--runtime-dir", self._site.runtime(node))
        self.done.append(f"ckpt stop {node}")

    def daemon_is_upgraded(self, node):
        """As systemd ends it; the next one is started by the ranks."""
        if self._site.signal(node, signal.SIGTERM):
            self.done.append(f"upgrade {node}")

    def rank_hangs(self, node):
        process = self._dice.choice(self._ranks.processes)
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._dice.uniform(0.1, 3))
        process.send_signal(signal.SIGCONT)
        self.done.append("a rank hangs")

    def rank_dies(self, node):
        """The others wait for it until they are ended, too."""
        self._dice.choice(self._ranks.processes).kill()
        time.sleep(self._dice.uniform(0, 2))
        self.done.append("a rank dies")

    def is_verified(self, node):
        self._site.ckpt("verify", self._directory)
        self.done.append("verify")

    def is_copied(self, node):
        target = self._site.root / f"copy-{self._dice.random()}"
        self._site.ckpt("cp", self._directory, target)
        shutil.rmtree(target, ignore_errors=True)
        self.done.append("cp")

    def is_thinned(self, node):
        self._site.ckpt("gc", self._directory, "--keep", 1)
        self.done.append("gc")

    def is_cleaned(self, node):
        """By somebody who wants the space."""
        steps = sorted(self._directory.glob("step-*")) if self._is_on_disk else []
        if steps:
            shutil.rmtree(step := self._dice.choice(steps), ignore_errors=True)
            self.done.append(f"rm {step.name}")

    def rots(self, node):
        if not self._is_on_disk:
            return
        files = sorted(path for path in self._directory.glob("step-*/*") if path.is_file())
        if not files:
            return
        path = self._dice.choice(files)
        try:
            with open(path, "r+b") as file:
                place = self._dice.randrange(max(path.stat().st_size, 1))
                file.seek(place)
                letter = file.read(1) or b"\0"
                file.seek(place)
                file.write(bytes([letter[0] ^ 1]))
        except OSError:  # Deleted meanwhile.
            return
        self.done.append(f"rot {path.relative_to(self._directory)}")


def dice_of(seed):
    return random.Random(seed)


def can_mount():
    return os.geteuid() == 0 and pathlib.Path("/bin/mount").exists()
