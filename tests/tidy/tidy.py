#!/usr/bin/python3
"""Checks that the tree keeps the rules of the house which no compiler knows.

tidy.py [--deep] [--check NAME]   prints "ok tidy: NAME" or "FAILED tidy: NAME" for each check

Each check is also run on samples/NAME, which breaks its rule on purpose and must be caught, and on
samples/good, which must pass. --deep adds clang-tidy over every .cpp, which takes its time: about
ten seconds of one core each.
Standard library only, for Debian's own python3.
"""

import argparse
import pathlib
import subprocess
import sys

import circle_checks
import document_checks
import source_checks
import tool_checks
import unity_checks

HERE = pathlib.Path(__file__).resolve().parent
SAMPLES = "tests/tidy/samples/"


class Tree:
    """The files of a tree by their path relative to its root, read once."""

    def __init__(self, root, paths):
        self.root = pathlib.Path(root)
        self.paths = sorted(paths)
        self._texts = {}

    def text(self, path):
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_text(encoding="utf-8", errors="replace")
        return self._texts[path]

    def files(self, *suffixes, under=("",)):
        return [path for path in self.paths
                if path.endswith(suffixes) and path.startswith(tuple(under))]

    def exists(self, path):
        return (self.root / path).exists()


def project_tree(root):
    """The files that git tracks or would track, without the samples."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=root, capture_output=True, check=True).stdout.decode().split("\0")
    return Tree(root, {path for path in listed
                       if path and not path.startswith(SAMPLES) and (root / path).is_file()})


def sample_tree(name):
    root = HERE / "samples" / name
    return Tree(root, [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()])


def report(name, findings):
    print(f"{'FAILED' if findings else 'ok'} tidy: {name}")
    for finding in findings[:40]:
        print(f"    {finding}")
    if len(findings) > 40:
        print(f"    and {len(findings) - 40} more")
    return not findings


def self_test(name, check):
    findings = []
    bad = sample_tree(name)
    if not bad.paths:
        findings.append(f"samples/{name} is empty")
    # A file of the sample may say in its name how often it must be caught: "twice.3.hpp" is 3.
    for path in bad.paths:
        parts = path.split(".")
        wanted = int(parts[-2]) if len(parts) > 2 and parts[-2].isdigit() else None
        if wanted is not None:
            caught = sum(found.startswith(path + ":") for found in check(bad))
            if caught != wanted:
                findings.append(f"samples/{name}/{path}: caught {caught} times, not {wanted}")
    if bad.paths and not check(bad):
        findings.append(f"samples/{name} was not caught")
    findings += [f"samples/good was caught: {found}" for found in check(sample_tree("good"))]
    return report(f"{name} (self-test)", findings)


def main():
    parser = argparse.ArgumentParser(description="Checks the rules of the house.")
    parser.add_argument("--deep", action="store_true", help="run clang-tidy too")
    parser.add_argument("--check", help="only this check")
    arguments = parser.parse_args()

    root = HERE.parent.parent
    tree = project_tree(root)
    checks = {**source_checks.CHECKS, **circle_checks.CHECKS, **document_checks.CHECKS,
              **tool_checks.CHECKS, **unity_checks.CHECKS}
    if arguments.check is not None:
        if arguments.check not in checks:
            parser.error(f"there is no check {arguments.check} (there are: {', '.join(checks)})")
        checks = {arguments.check: checks[arguments.check]}

    good = True
    for name, check in checks.items():
        good = report(name, check(tree)) and good
        good = self_test(name, check) and good
    if arguments.deep:
        good = report("clang-tidy", tool_checks.clang_tidy(tree)) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
