"""bucket: a checkpoint to and from an S3 server on this machine, against boto3's transfer manager.

Put: from save() until the step is durable in the bucket, against an upload of the files of such a
step. Get: a restore by path, every Chunk verified, against a download of the files. boto3 reads and
writes files in memory, as many parts at once as it does by default. The server is SeaweedFS.
"""

import os
import pathlib
import sys
import tempfile
import time
import types

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "python"))

import bucket_server
import boto3
import libckpt
from libckpt import _programs
from harness import Bar, Harness, seconds_of

TENSOR_BYTES = 16 << 20
STATE_BYTES_MAX = 512 << 20
WAIT = 300.0
BUCKET = "bench"


class Theirs:
    """The files of a step that is there, by boto3 with its defaults."""

    def __init__(self, client, step, memory):
        self.client = client
        self.memory = memory
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=step)
        self.keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
        assert self.keys, "no objects of the step"
        self.get()

    def path(self, key):
        return self.memory / key.replace("/", "-")

    def put(self):
        for key in self.keys:
            self.client.upload_file(str(self.path(key)), BUCKET, f"theirs/{key}")

    def get(self):
        for key in self.keys:
            self.client.download_file(BUCKET, key, str(self.path(key)))


class Ours:
    def __init__(self, scratch, size):
        self.runtime = scratch / "runtime"
        self.where = f"s3://{BUCKET}/ours"
        self.session = libckpt.init("bucket", self.where, save_mem_interval="never",
                                    save_storage_interval=1, max_ckpt_num=2,
                                    runtime_dir=str(self.runtime), raise_on_error=True,
                                    log_file_path=str(scratch / "log"))  # fmt: skip
        self.tensors = [torch.rand(TENSOR_BYTES // 4) for _ in range(size // TENSOR_BYTES)]
        self.session.restore_or({"tensors": self.tensors})
        self.step = 0
        self.put()

    def put(self):
        self.step += 1
        self.tensors[0][0] = self.step
        assert self.session.save(self.step, {"tensors": self.tensors})
        self.session.wait(self.step, "durable", WAIT)

    def get(self):
        for tensor in self.tensors:
            tensor.zero_()
        path = f"{self.where}/step-{self.step:09}"
        found = self.session.restore({"tensors": self.tensors}, path=path)
        assert found.step == self.step, found
        assert self.tensors[0][0] == self.step

    def end(self):
        self.session.abandon()
        _programs.run("ckpt", "stop", "--no-flush", "--runtime-dir", str(self.runtime))


def start_server(scratch):
    """Its client, and how it is stopped."""
    (host, port), stop = bucket_server.start_seaweedfs(scratch)
    os.environ.update(bucket_server.KEYS, AWS_ENDPOINT_URL=f"http://{host}:{port}",
                      AWS_EC2_METADATA_DISABLED="true")  # fmt: skip
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        os.environ.pop(name, None)
    client = boto3.client("s3")
    deadline = time.monotonic() + WAIT
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            return types.SimpleNamespace(client=client, stop=stop)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main():
    harness = Harness("bucket", __doc__)
    size = min(harness.bytes, STATE_BYTES_MAX)
    with (
        tempfile.TemporaryDirectory(prefix="bucket-", dir=harness.directory) as scratch,
        tempfile.TemporaryDirectory(prefix="bucket-", dir="/dev/shm") as memory,
    ):
        server = start_server(pathlib.Path(scratch))
        try:
            ours = Ours(pathlib.Path(scratch), size)
            theirs = Theirs(server.client, f"ours/step-{ours.step:09}/", pathlib.Path(memory))
            harness.add_condition(f"{size >> 20} MiB of tensors")
            put = Bar("B32 put", "save() until durable, against upload_file", 1.2, 0.9)
            harness.compare(put, lambda: seconds_of(ours.put), lambda: seconds_of(theirs.put), size)
            get = Bar("B32 get", "a restore by path, verified, against download_file", 1.2, 0.9)
            theirs = Theirs(server.client, f"ours/step-{ours.step:09}/", pathlib.Path(memory))
            harness.compare(get, lambda: seconds_of(ours.get), lambda: seconds_of(theirs.get), size)
            ours.end()
        finally:
            server.stop()
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
