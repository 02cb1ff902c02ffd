"""Checks that other programs make: formatting, syntax of scripts, and clang-tidy on request."""

import concurrent.futures
import json
import os
import subprocess

FORMAT = "/usr/bin/clang-format-19"
TIDY = "/usr/bin/clang-tidy-19"


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


def clang_tidy(tree):
    """clang-tidy with .clang-tidy, over what build/clang compiles."""
    build = tree.root / "build/clang"
    commands = build / "compile_commands.json"
    if not commands.exists():
        return ["build/clang is not built: run cmake --preset clang, then build ckpt_precompiled"]
    files = sorted({entry["file"] for entry in json.loads(commands.read_text())
                    if "/libckpt/" in entry["file"] and entry["file"].endswith(".cpp")})

    def run(path):
        done = subprocess.run([TIDY, "--quiet", "-p", str(build), path],
                              capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if "warning:" in line or "error:" in line]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return sorted({finding for found in pool.map(run, files) for finding in found})


CHECKS = {
    "formatting": formatting,
    "scripts": scripts,
}
