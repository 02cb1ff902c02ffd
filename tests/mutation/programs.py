"""Test programs of a finished build, linked again with the mistake of one mutant in them.

Nothing of the build tree or of the sources is touched: mutated sources, their objects and the
programs go into a folder of the mutant's own. Mutated objects are linked with a copy of their
library from which the sound ones are taken.
"""

import dataclasses
import json
import os
import pathlib
import re
import select
import shlex
import shutil
import signal
import subprocess
import time

# Quick ones first: the order in which those are asked that are not of the mutant's own module.
ORDER = ("agree arena flush base wire snapshot replicate gather device format os storage bucket "
         "node daemon client cli").split()
# Programs that the tests of a module start, in bin/ of the build.
STARTED = {"unit_client": ["ckptd"], "unit_cli": ["ckptd", "ckpt"]}
LIBRARY = re.compile(r"libckpt/libckpt_([a-z]+)\.a")
INCLUDED = re.compile(r'^#include "(.*)"$', re.MULTILINE)  # By the source of a unity build.
# Seams, whose tests are in another suite.
WITH_CONTRACT = ("os", "wire", "device")


def target_of(name):
    """The program in the build tree."""
    folder = {"sim": "sim/", "capture": "capture/", "nccl": "capture/"}.get(name, "")
    return f"tests/{folder}{name}"


class DoesNotCompile(Exception):
    pass


class Build:
    """A build tree's records of how its programs are made."""

    def __init__(self, root, build):
        self.root = pathlib.Path(root)
        self.tree = pathlib.Path(build).resolve()
        listed = json.loads((self.tree / "compile_commands.json").read_text())
        self.compiles = {re.search(r" -o (\S+) ", entry["command"])[1]: entry for entry in listed}
        self.maker = self.setting("CMAKE_MAKE_PROGRAM")  # Another version would spoil its log.
        self._links = {}
        self._users = None
        self._batches = None

    def setting(self, name):
        """A value of the build's own CMake cache."""
        cache = (self.tree / "CMakeCache.txt").read_text()
        return re.search(rf"^{name}:[A-Z]+=(.*)$", cache, re.MULTILINE)[1]

    def ninja(self, *arguments):
        return subprocess.run([self.maker, "-C", str(self.tree), *arguments], check=True,
                              capture_output=True, text=True).stdout

    def link(self, target):
        """The words of the command that links a program."""
        if target not in self._links:
            last = self.ninja("-t", "commands", target).splitlines()[-1]
            part = next(part for part in last.split(" && ") if f" -o {target} " in part)
            self._links[target] = shlex.split(part)
        return self._links[target]

    def has(self, target):
        return (self.tree / target).exists()

    def programs_of(self, module):
        """The test programs that have the module in them, its own first."""
        names = [f"unit_{module}"]
        names += ["contract"] if module in WITH_CONTRACT else []
        names += [f"unit_{other}" for other in ORDER if other != module]
        names += ["nccl", "capture"]
        library = f"libckpt/libckpt_{module}.a"
        return [name for name in names if self.has(target_of(name)) and
                library in self.link(target_of(name))]

    def object_of(self, module, source):
        """The object that has a source of the library in it: its own, or that of its batch."""
        folder = f"libckpt/CMakeFiles/ckpt_{module}.dir/"
        own = f"{folder}{source}.o"
        if own in self.compiles:
            return own
        if self._batches is None:
            batches = {made: pathlib.Path(entry["file"]).read_text()
                       for made, entry in self.compiles.items() if "/Unity/" in made}
            self._batches = {path: made for made, text in batches.items()
                             for path in INCLUDED.findall(text)}
        return self._batches[str(self.root / "libckpt" / source)]

    def users_of(self, header):
        """The objects whose sources include a header."""
        if self._users is None:
            users, output = {}, None  # Others see it only when it is whole: mutants run at once.
            for line in self.ninja("-t", "deps").splitlines():
                name = os.path.basename(line)
                if line and not line.startswith(" "):
                    output = line.partition(":")[0]
                elif line:
                    users.setdefault(name, []).append((output, line.strip()))
            self._users = users
        wanted = str(self.root / "libckpt" / header)
        return [output for output, path in self._users.get(os.path.basename(header), [])
                if os.path.realpath(self.tree / path) == os.path.realpath(wanted)]


class MutatedPrograms:
    """The programs of one mutant, made as they are asked for."""

    def __init__(self, build, mutant, folder):
        self.build = build
        self.mutant = mutant
        self.folder = pathlib.Path(folder)
        self.sound = build.root / "libckpt" / mutant.path
        self.objects = {}  # By the object whose place each takes.
        self.libraries = {}  # Copies, by the library.
        planted = self.folder / "libckpt" / mutant.path
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.write_text(mutant.plant(self.sound.read_text(encoding="utf-8")), encoding="utf-8")
        self.planted = planted

    def planted_in(self, compiled):
        """The source that is compiled in place of a sound one: the planted one, or its batch."""
        if pathlib.Path(compiled) == self.sound:
            return self.planted
        batch = self.folder / pathlib.Path(compiled).name
        text = pathlib.Path(compiled).read_text()
        batch.write_text(text.replace(f'"{self.sound}"', f'"{self.planted}"'))
        return batch

    def compile(self, sound_object, is_planted=False):
        """One object, of its planted source, or of its own one with the planted header before."""
        if sound_object in self.objects:
            return
        entry = self.build.compiles[sound_object]
        source = self.planted_in(entry["file"]) if is_planted else entry["file"]
        words = shlex.split(entry["command"])
        made = self.folder / f"{len(self.objects)}.o"
        at = words.index("-o")
        words[at + 1] = str(made)
        words[at + 2:] = ["-w", "-c", str(source)]
        if not is_planted:
            first = next(i for i, word in enumerate(words) if word.startswith("-I"))
            words.insert(first, f"-I{self.folder / 'libckpt'}")
        done = subprocess.run(words, cwd=entry["directory"], capture_output=True, text=True)
        if done.returncode != 0:
            raise DoesNotCompile(done.stderr)
        self.objects[sound_object] = str(made)

    def make(self, name, target):
        words = list(self.build.link(target))
        inside = set(words) | set(self.members(words))
        if self.mutant.file.endswith(".cpp"):
            sound = self.build.object_of(self.mutant.module, self.mutant.path)
            if sound in inside:
                self.compile(sound, is_planted=True)
        else:
            for user in self.build.users_of(self.mutant.path):
                if user in inside:
                    self.compile(user)
        program = self.folder / name
        first = words.index("-o")
        words[first + 1] = str(program)
        # Objects that another of the mutant's programs needed have no place here.
        extra = [made for sound, made in self.objects.items()
                 if sound in inside and sound not in words]
        words = [self.objects.get(word, self.library(word)) for word in words]
        words[first:first] = [*extra, "-Wl,--strip-debug"]
        done = subprocess.run(words, cwd=self.build.tree, capture_output=True, text=True)
        if done.returncode != 0:
            raise DoesNotCompile(done.stderr)
        return program

    def members(self, words):
        """The objects in the libraries of a link command."""
        for word in words:
            library = LIBRARY.fullmatch(word)
            if library:
                prefix = f"libckpt/CMakeFiles/ckpt_{library[1]}.dir/"
                yield from (made for made in self.build.compiles if made.startswith(prefix))

    def library(self, word):
        """A word of a link command; for a library of ours that is mutated, the copy of it."""
        gone = [os.path.basename(made) for made in self.members([word]) if made in self.objects]
        if not gone:
            return word
        copy = self.folder / os.path.basename(word)
        if word not in self.libraries:
            shutil.copyfile(self.build.tree / word, copy)
            subprocess.run(["ar", "d", str(copy), *gone], check=True)
            self.libraries[word] = str(copy)
        return self.libraries[word]


@dataclasses.dataclass
class Limits:
    """The time that a program may take before it counts as one that hangs."""

    whole_s: float
    silent_s: float  # Between two things that it prints.


class Watched:
    """A program that is run to its end, or to where it hangs."""

    def __init__(self, program, arguments, tree, limits, started_in=None):
        environment = dict(os.environ)
        if started_in:
            environment["CKPT_TEST_PROGRAMS"] = str(started_in)
        self.silent_s = 0.0  # The longest time in which it printed nothing.
        self.output = ""
        begin = time.monotonic()
        self.child = subprocess.Popen(
            [str(program), *arguments], cwd=tree, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self.problem = self._read(begin, limits) or self._end()
        finally:
            try:
                os.killpg(self.child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.child.wait()
            self.child.stdout.close()
        self.took_s = time.monotonic() - begin

    def _read(self, begin, limits):
        """Until it prints no more; says so if that takes too long."""
        pipe = self.child.stdout.fileno()
        output, last = b"", begin
        while True:
            left = min(begin + limits.whole_s, last + limits.silent_s) - time.monotonic()
            ready, _, _ = select.select([pipe], [], [], max(left, 0))
            now = time.monotonic()
            self.silent_s = max(self.silent_s, now - last)
            if not ready:
                return f"no end of a test in {now - last:.0f} s, or of all in {now - begin:.0f} s"
            read = os.read(pipe, 65536)
            if not read:
                self.output = output.decode(errors="replace")
                return None
            output, last = output + read, now

    def _end(self):
        """None if all is well, else why not, in a line."""
        status = self.child.wait()
        if status == 0:
            return None
        end = f"signal {-status}" if status < 0 else f"exit {status}"
        named = re.search(r"^-{70,}\n(\S.*)\n", self.output, re.MULTILINE)
        return f'{end}, "{named[1]}"' if named else f"{end}, {self.output.strip()[-200:]}"
