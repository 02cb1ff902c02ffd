"""S3 servers for the tests, and in front of them a proxy that lets some requests fail."""

import http.client
import http.server
import json
import pathlib
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

boto3 = pytest.importorskip("boto3", reason="boto3 cannot be had here")
moto_server = pytest.importorskip("moto.server", reason="moto cannot be had here")

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


class Proxy(http.server.ThreadingHTTPServer):
    """`fault(method, path)` names what becomes of a request; None: it is carried out.

    "refuse": 503; "forbid": 403. "reset": the connection ends. "lose": carried out, and then the
    connection ends. "truncate": the answer ends in its middle. "drip": it comes a few bytes at a
    time. "hang": none comes until `released` is set.
    """

    daemon_threads = True

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.fault, self.seen = target, lambda method, path: None, []
        self.dialect = None  # Of google_dialect: then Google is imitated.
        self.rules = None  # Of server_rules: what a real server checks before all else.
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # Connections that end in their middle are what it is for.


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # Else each answer in two pieces waits for 40 ms.

    def handle_one(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.seen.append((self.command, self.path))
        refused = self.server.rules and self.server.rules.refusal(self.headers)
        if refused:
            self._answer(refused[0], [], f"<Error><Code>{refused[1]}</Code></Error>".encode())
            return
        fault = self.server.fault(self.command, self.path)
        if fault == "reset":
            self.close_connection = True
            return
        if fault == "hang":
            self.server.released.wait()
            self.close_connection = True
            return
        if fault in ("refuse", "forbid"):
            status, code = (503, "SlowDown") if fault == "refuse" else (403, "AccessDenied")
            self._answer(status, [], f"<Error><Code>{code}</Code></Error>".encode())
            return
        if self.server.dialect is None:
            self._carry_out(body, dict(self.headers), fault)
            return
        with self.server.dialect.lock:
            refused = self.server.dialect.refusal(self.command, self.path, self.headers, body)
            if refused:
                self._answer(refused[0], [], f"<Error><Code>{refused[1]}</Code></Error>".encode())
                return
            self._carry_out(body, self.server.dialect.passed_on(self.headers), fault)

    def _carry_out(self, body, headers, fault):
        there = http.client.HTTPConnection(*self.server.target, timeout=60)
        there.request(self.command, self.path, body, headers)
        found = there.getresponse()
        content = found.read()
        there.close()
        more = []
        if self.server.dialect is not None:
            more = self.server.dialect.answered(self.command, self.path, found.status)
        if fault == "lose":
            self.close_connection = True
            return
        self._answer(found.status, [*found.getheaders(), *more], content, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_one

    def _answer(self, status, headers, content, fault=None):
        self.send_response_only(status)
        length = str(len(content))
        if self.server.rules:
            headers = [*(each for each in headers if each[0].lower() != "date"),
                       ("Date", self.server.rules.date())]
        for name, value in headers:
            if name.lower() == "content-length":
                length = value  # Of a HEAD, that of the object.
            elif name.lower() not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "truncate":
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif fault == "drip":
            for begin in range(0, len(content), 1000):
                self.wfile.write(content[begin : begin + 1000])
                self.wfile.flush()
        else:
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


def refuse_parts(server):
    """Parts of uploads are refused until `accept_all`. Returns an event: the first one came."""
    seen = threading.Event()

    def fault(method, path):
        if not is_part_of_upload(method, path):
            return None
        seen.set()
        return "refuse"

    server.proxy.fault = fault
    return seen


def accept_all(server):
    server.proxy.fault = lambda method, path: None


class BucketServer:
    """A server with one bucket, `bucket`, and the proxy that the daemons see."""

    def __init__(self, start):
        address, self._stop = start()
        self.proxy = Proxy(address)
        self.client = boto3.client(
            "s3", endpoint_url="http://{}:{}".format(*address), region_name="us-east-1",
            aws_access_key_id="key", aws_secret_access_key="secret",
        )  # fmt: skip
        self.client.create_bucket(Bucket="bucket")

    def keys(self, prefix=""):
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket="bucket", Prefix=prefix
        )
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def uploads(self):
        return self.client.list_multipart_uploads(Bucket="bucket").get("Uploads", [])

    def stop(self):
        self.proxy.released.set()
        self.proxy.shutdown()
        self.proxy.server_close()
        self._stop()


def start_moto(directory):
    """((host, port), how it is stopped). It checks no signatures."""
    del directory
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    # All of moto's servers in one process share what they hold.
    reset = urllib.request.Request(f"http://{host}:{port}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()
    return (host, port), server.stop


def start_seaweedfs(directory):
    """The same of SeaweedFS, which checks signatures and checksums."""
    weed = pathlib.Path(sys.executable).parent / "weed"
    if not weed.exists():
        pytest.skip("SeaweedFS cannot be had here")
    keys = [{"accessKey": "key", "secretKey": "secret"}]
    actions = ["Admin", "Read", "Write", "List"]
    configuration = {"identities": [{"name": "me", "credentials": keys, "actions": actions}]}
    (directory / "s3.json").write_text(json.dumps(configuration))
    (directory / "data").mkdir()
    master, volume, filer, port = free_ports(4)
    process = subprocess.Popen(
        [
            weed, "-v=0", "server", f"-dir={directory / 'data'}", "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}", "-filer",
            f"-filer.port={filer}", "-s3", f"-s3.port={port}",
            f"-s3.config={directory / 's3.json'}",
            # Else they have ports that all servers of this machine would share.
            "-s3.port.iceberg=0", "-s3.port.lance=0",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip

    def stop():
        process.kill()  # It takes its time to end by itself.
        process.wait()

    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5).close()
            return ("127.0.0.1", port), stop
        except urllib.error.HTTPError:
            return ("127.0.0.1", port), stop
        except OSError:
            time.sleep(0.05)
    stop()
    pytest.fail("SeaweedFS does not start")


def free_ports(count):
    """SeaweedFS also listens 10000 above each of its ports. No connection is given any of these."""
    found = []
    while len(found) < count:
        port = random.randrange(10000, 20000)
        if port not in found and is_free(port) and is_free(port + 10000):
            found.append(port)
    return found


def is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def serve(start, monkeypatch, directory):
    """For fixtures to yield from: the server, for which the environment is set."""
    server = BucketServer(lambda: start(directory))
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": server.proxy.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    try:
        yield server
    finally:  # Also when a test fails in a loop over this.
        server.stop()


def is_part_of_upload(method, path):
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
    return method == "PUT" and "partNumber" in query
