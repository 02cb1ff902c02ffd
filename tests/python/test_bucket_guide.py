"""Goal: the examples on buckets run as they stand: README's, and the guide's program and commands.

Method: they are taken out of the texts. README's and the program run against a server of the
tests; the guide's commands start their own one, on a free port in place of the guide's.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys

import bucket_server
import pytest

ROOT = pathlib.Path(__file__).parents[2]
GUIDE = (ROOT / "libckpt/docs/guide/buckets.md").read_text()
PROGRAM = GUIDE.split("```python\n")[1].split("```")[0]
COMMANDS = GUIDE.split("this runs as it stands:\n\n```\n")[1].split("```")[0]
README = (ROOT / "README.md").read_text()
README_COMMANDS = README.split("this runs as it stands:\n\n```\n")[1].split("```")[0]
SECONDS_MAX = 180


@pytest.fixture
def server(monkeypatch, tmp_path):
    yield from bucket_server.serve(bucket_server.start_moto, monkeypatch, tmp_path)


def test_the_program_runs_as_it_stands(server, runtime, ckpt, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    for step in (0, 3):
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"goes on after step {step}\n" in done.stdout
    assert "step-000000006" in ckpt("ls", "s3://bucket/my-run")
    assert "good " in ckpt("verify", "s3://bucket/my-run")
    assert "keeps conditions" in ckpt("doctor", "--dir", "s3://bucket/my-run")


def test_the_readme_runs_as_it_stands(server, runtime, programs, monkeypatch, tmp_path):
    pytest.importorskip("torch", reason="PyTorch cannot be had here")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    here = pathlib.Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{here}:{programs}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-e", "-c", README_COMMANDS], cwd=tmp_path, capture_output=True,
                          text=True, timeout=SECONDS_MAX, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "step 100 loss" in done.stdout and "step-000000100" in done.stdout, done.stdout
    assert re.search(r"^good .*step-000000100", done.stdout, re.MULTILINE), done.stdout
    assert (tmp_path / "my-copy/step-000000100/manifest.json").is_file()


def test_the_commands_run_as_they_stand(runtime, programs, monkeypatch, tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    port = str(bucket_server.free_ports(1)[0])
    lines = COMMANDS.replace("9000", port).splitlines()
    assert lines[0].startswith("pip install") and lines[-1].startswith("ckpt verify")
    here = pathlib.Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{here}:{programs}:{os.environ['PATH']}")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    said = tmp_path / "said"
    with said.open("w") as output:
        shell = subprocess.Popen(["bash", "-e", "-c", "\n".join(lines[1:])], cwd=tmp_path,
                                 stdout=output, stderr=output, start_new_session=True)  # fmt: skip
    try:
        assert shell.wait(SECONDS_MAX) == 0, said.read_text()
    finally:
        os.killpg(shell.pid, signal.SIGKILL)  # The server runs on.
    told = said.read_text()
    assert "goes on after step 0\n" in told and "goes on after step 3\n" in told
    assert re.search(r"^good .*step-000000006", told, re.MULTILINE), told
