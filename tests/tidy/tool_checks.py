"""Checks that other programs make: formatting, syntax of scripts, and clang-tidy on request."""

import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "mutation"))
import mutants  # noqa: E402

FORMAT = "/usr/bin/clang-format-19"
TIDY = "/usr/bin/clang-tidy-19"
CMAKE = "/usr/bin/cmake"
PACKAGES = "/usr/include/"  # Where the headers of Debian's packages are.


def formatting(tree):
    """clang-format-19 would change nothing."""
    paths = tree.files(".hpp", ".cpp", ".cxx", ".h", ".c")
    if not paths:
        return []
    style = ["--style=file:" + os.path.join(os.path.dirname(__file__), "../../.clang-format")]
    done = subprocess.run([FORMAT, "--dry-run", "--ferror-limit=1"] + style + paths,
                          cwd=tree.root, capture_output=True, text=True)
    findings = []
    for line in done.stderr.splitlines():
        if "[-Wclang-format-violations]" in line:
            place = ":".join(line.split(":")[:2])
            findings.append(place + ": not as clang-format-19 would have it")
        elif done.returncode != 0 and "error" in line:
            findings.append(line)
    return findings


def scripts(tree):
    """Shell and Python files parse."""
    findings = []
    for path in tree.files(".sh") + [path for path in tree.paths if path == ".ci/run"]:
        done = subprocess.run(["bash", "-n", path], cwd=tree.root, capture_output=True, text=True)
        if done.returncode != 0:
            findings.append(f"{path}:1: {done.stderr.strip()}")
    for path in tree.files(".py"):
        try:
            compile(tree.text(path), path, "exec")
        except (SyntaxError, ValueError) as error:
            findings.append(f"{path}:{getattr(error, 'lineno', 1)}: {error}")
    return findings


def mutants_apply(tree):
    """Each planted mistake finds its place: otherwise the gate fails on it, one day in ten."""
    findings = []
    for path in tree.files(".txt", under=("tests/mutation/mutants/",)):
        try:
            module = pathlib.PurePath(path).name.partition(".")[0]
            found = mutants.read_file(module, tree.text(path))
        except mutants.BadMutant as error:
            findings.append(f"{path}:1: {error}")
            continue
        for mutant in found:
            source = f"libckpt/{mutant.path}"
            try:
                mutant.plant(tree.text(source) if tree.exists(source) else "")
            except mutants.BadMutant as error:
                findings.append(f"{path}:1: {mutant.label}: {error}")
    return findings


def compile_commands(root):
    """Commands for all that clang compiles, in a build tree of its own; None: there is no tree."""
    build = root / "build/tidy"
    steps = [[CMAKE, "--preset", "clang", "-B", str(build), "-DCKPT_BUILD_BENCH=ON",
              "-DCMAKE_UNITY_BUILD=OFF", "-DCKPT_NVCC=OFF"],  # No build here makes nvcc's output.
             [CMAKE, "--build", str(build), "--target", "ckpt_precompiled"]]
    for step in steps:
        if subprocess.run(step, cwd=root, capture_output=True, check=False).returncode != 0:
            return None
    return build / "compile_commands.json"


def clang_tidy(tree):
    """clang-tidy with .clang-tidy, over every .cpp that is compiled here."""
    commands = compile_commands(tree.root)
    if commands is None:
        return ["build/tidy: cmake --preset clang, or the build of ckpt_precompiled, fails"]
    compiled = {os.path.relpath(entry["file"], tree.root)
                for entry in json.loads(commands.read_text())}
    files = sorted(compiled.intersection(tree.files(".cpp")))
    library = {path for path in tree.files(".cpp") if path.startswith("libckpt/")}
    if not library <= compiled:
        return [f"{path}:1: not compiled in build/tidy" for path in sorted(library - compiled)]

    def run(path):
        done = subprocess.run([TIDY, "--quiet", "-p", str(commands.parent), path],
                              cwd=tree.root, capture_output=True, text=True)
        found = [line for line in done.stdout.splitlines()
                 if ("warning:" in line or "error:" in line) and not line.startswith(PACKAGES)]
        if done.returncode != 0 and not found:
            found = [f"{path}:1: {TIDY} ended with {done.returncode}: {done.stderr.strip()[-200:]}"]
        print(f"    {path}: {len(found)}", flush=True)
        return found
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return sorted({finding for found in pool.map(run, files) for finding in found})


CHECKS = {
    "formatting": formatting,
    "scripts": scripts,
    "mutants": mutants_apply,
}
