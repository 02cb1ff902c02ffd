"""The questions and answers of Google Cloud Storage's XML interface, in front of an S3 server.

It follows Google's documents: signatures with GOOG4-HMAC-SHA256, conditions on generations,
checksums as x-goog-hash. Amazon's own headers are refused, and its conditions of writes ignored.
"""

import base64
import hashlib
import hmac
import threading
import urllib.parse

KEYS = {"LIBCKPT_GS_ACCESS_KEY_ID": "GOOG1KEY", "LIBCKPT_GS_SECRET_ACCESS_KEY": "hidden"}
CHECKED_BYTES_MAX = 1 << 16  # A checksum takes its time here.


def crc32c(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return base64.b64encode((crc ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


def signature(method, path, headers, secret):
    """The headers of the request as it came that its Authorization header names."""
    words = headers["authorization"].removeprefix("GOOG4-HMAC-SHA256 ").split(", ")
    given = dict(word.split("=", 1) for word in words)
    _, scope = given["Credential"].split("/", 1)
    url = urllib.parse.urlsplit(path)
    lines = [f"{name}:{headers[name].strip()}" for name in given["SignedHeaders"].split(";")]
    query = "&".join(sorted(url.query.split("&"))) if url.query else ""
    canonical = "\n".join(
        [method, url.path, query, *lines, "", given["SignedHeaders"],
         headers["x-goog-content-sha256"]]
    )  # fmt: skip
    signed = "\n".join(
        ["GOOG4-HMAC-SHA256", headers["x-goog-date"], scope,
         hashlib.sha256(canonical.encode()).hexdigest()]
    )  # fmt: skip
    key = ("GOOG4" + secret).encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    return given["Signature"], hmac.new(key, signed.encode(), "sha256").hexdigest()


class Dialect:
    def __init__(self):
        self.lock = threading.Lock()  # Held while a request is carried out.
        self._generations = {}
        self._last = 1_000_000

    def refusal(self, method, path, headers, body):
        """(status, code), or None: the request is carried out."""
        headers = {name.lower(): value for name, value in headers.items()}
        if any(name.startswith("x-amz-") for name in headers):
            return 400, "InvalidArgument"
        if not headers.get("authorization", "").startswith("GOOG4-HMAC-SHA256 "):
            return 403, "AccessDenied"
        given, expected = signature(method, path, headers, KEYS["LIBCKPT_GS_SECRET_ACCESS_KEY"])
        if given != expected:
            return 403, "SignatureDoesNotMatch"
        told = headers["x-goog-content-sha256"]
        if told not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
            return 400, "XGoogContentSHA256Mismatch"
        told = headers.get("x-goog-hash")
        if told and len(body) <= CHECKED_BYTES_MAX and told != "crc32c=" + crc32c(body):
            return 400, "BadDigest"
        key, _, query = path.partition("?")
        there = self._generations.get(key, 0)
        wanted = headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != there:
            return 412, "PreconditionFailed"
        if method == "DELETE" and not query and not there:
            return 404, "NoSuchKey"
        return None

    @staticmethod
    def passed_on(headers):
        """Those headers that an S3 server knows, without the conditions of writes."""
        kept = ("host", "range", "content-length", "content-type")
        passed = {name: value for name, value in headers.items() if name.lower() in kept}
        # It takes a request without one for a stranger's, and does not look at what it says.
        scope = "key/20260101/us-east-1/s3/aws4_request"
        passed["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=none"
        )
        return passed

    def answered(self, method, path, status):
        """Further headers of a good answer."""
        key, _, query = path.partition("?")
        if status >= 300:
            return []
        is_write = (method == "PUT" and not query) or (method == "POST" and "uploadId=" in query)
        if is_write:
            self._last += 1
            self._generations[key] = self._last
        elif method == "DELETE" and not query:
            self._generations.pop(key, None)
        found = self._generations.get(key)
        return [("x-goog-generation", str(found))] if found else []
