"""Mutants: single planted mistakes, read from mutants/MODULE.txt.

    [name] file.cpp
      The damage that the mistake does, in a line or two.
    - text of the file, found once in it
    + what stands there instead

Whitespace does not count when the text is looked for, so that it may be wrapped anew. There may be
several pairs of `-` and `+`; a `-` alone takes text away. Then, where they apply:

    tests: node          the unit suite that notices it first, where that is not the module's own
    simulator: 200       the unit tests cannot notice it: as many seeds of the simulator
    survives: why        nothing notices it, and why that is right or must be borne
"""

import dataclasses
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
HEAD = re.compile(r"\[([a-z0-9_]+)\] ([a-z0-9_]+\.(?:cpp|hpp))")


class BadMutant(Exception):
    """It cannot be read, or does not apply any more."""


@dataclasses.dataclass
class Mutant:
    module: str
    name: str
    file: str
    breaks: str = ""
    edits: list = dataclasses.field(default_factory=list)  # Pairs: what is looked for, instead.
    tests: list = dataclasses.field(default_factory=list)
    seeds: int = 0
    survives: str = ""

    @property
    def label(self):
        return f"{self.module}/{self.name}"

    @property
    def path(self):
        return f"{self.module}/{self.file}"

    def plant(self, text):
        """The file's text with the mistake in it."""
        for wanted, instead in self.edits:
            begin, end = find_once(text, wanted)
            text = text[:begin] + instead + text[end:]
        return text


def find_once(text, wanted):
    places = [index for index, letter in enumerate(text) if not letter.isspace()]
    dense = "".join(text[index] for index in places)
    needle = "".join(wanted.split())
    first = dense.find(needle)
    if first < 0:
        raise BadMutant(f"the file has no longer: {' '.join(wanted.split())}")
    if dense.find(needle, first + 1) >= 0:
        raise BadMutant(f"the file has more than once: {' '.join(wanted.split())}")
    return places[first], places[first + len(needle) - 1] + 1


def read_mutants():
    """All mutants, in the order of their labels."""
    found = []
    for path in sorted((HERE / "mutants").glob("*.txt")):
        found += read_file(path.stem, path.read_text(encoding="utf-8"))
    found.sort(key=lambda mutant: mutant.label)
    for left, right in zip(found, found[1:]):
        if left.label == right.label:
            raise BadMutant(f"{left.label}: there are two of this name")
    return found


def read_file(module, text):
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        head = HEAD.fullmatch(line)
        if head:
            found.append(Mutant(module, head[1], head[2]))
        elif line and not line.startswith("#"):
            if not found or not read_line(found[-1], line):
                raise BadMutant(f"{module}.txt:{number}: what is this line?")
    for mutant in found:
        if not mutant.edits or not mutant.breaks:
            raise BadMutant(f"{mutant.label}: it lacks its edit, or what it breaks")
    return found


def read_line(mutant, line):
    key, _, value = line.partition(" ")
    if key == "":
        mutant.breaks = f"{mutant.breaks} {line.strip()}".strip()
    elif key == "-":
        if not mutant.edits or mutant.edits[-1][1]:
            mutant.edits.append(["", ""])
        mutant.edits[-1][0] += value + "\n"
    elif key == "+":
        if not mutant.edits:
            return False
        mutant.edits[-1][1] += value + "\n"
    elif key == "tests:":
        mutant.tests = value.split()
    elif key == "simulator:":
        mutant.seeds = int(value)
    elif key == "survives:":
        mutant.survives = f"{mutant.survives} {value}".strip()
    else:
        return False
    return True
