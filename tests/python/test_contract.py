"""Goal: real S3 servers keep what the contracts of buckets and of storage in them ask for, as the
servers in memory do.

Method: the C++ contracts run against moto's server and SeaweedFS, also in Google's dialect. That of
stores takes longer: a quick run has one test of it.
"""

import os
import pathlib
import subprocess

import bucket_server
import google_dialect
import pytest

QUICK = "[bucket]~[storage],store: a step that was published*"
OF_STORES = "[bucket][storage]"
SEAWEEDFS = pytest.param(bucket_server.start_seaweedfs, marks=pytest.mark.slow)


def run_contract(where, tests):
    program = pathlib.Path(os.environ.get("CKPT_BUILD", "")) / "tests" / "contract"
    if not program.exists():
        pytest.skip("the contract's program is not built")
    done = subprocess.run(
        [program, tests], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "CKPT_TEST_BUCKET": where},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "All tests passed" in done.stdout


@pytest.mark.parametrize("start", [bucket_server.start_moto, SEAWEEDFS])
def test_a_server_keeps_the_contract(start, monkeypatch, tmp_path):
    for server in bucket_server.serve(start, monkeypatch, tmp_path):
        run_contract("s3://bucket", QUICK)
        assert any(key.startswith("contract-") for key in server.keys())


@pytest.mark.slow
@pytest.mark.parametrize("start", [bucket_server.start_moto, bucket_server.start_seaweedfs])
def test_steps_on_a_server_keep_the_contract_of_stores(start, monkeypatch, tmp_path):
    for server in bucket_server.serve(start, monkeypatch, tmp_path):
        run_contract("s3://bucket", OF_STORES)
        assert any(key.startswith("contract-") for key in server.keys())


def test_an_imitation_of_google_keeps_the_contract(monkeypatch, tmp_path):
    for server in bucket_server.serve(bucket_server.start_moto, monkeypatch, tmp_path):
        server.proxy.dialect = google_dialect.Dialect()
        monkeypatch.setenv("LIBCKPT_GS_ENDPOINT", server.proxy.url)
        for name, value in google_dialect.KEYS.items():
            monkeypatch.setenv(name, value)
        run_contract("gs://bucket", QUICK)
        assert any(key.startswith("contract-") for key in server.keys())
