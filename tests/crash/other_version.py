#!/usr/bin/python3
"""A libckpt of another version, as far as the two of them get: both hear which the other is.

As a program it is a daemon: it takes the place of ckptd in its --runtime-dir, and greets whoever
connects. Imported, it speaks the first words of both protocols (libckpt/docs/protocol.md).
"""

import argparse
import os
import socket
import struct
import zlib

VERSION = 77
SOFTWARE = "9.9.9"
LOCAL_MAGIC = 0x4C54504B
FRAME_MAGIC = 0x57504B43
FRAME_HEADER_BYTES = 48
HELLO, REFUSED = 1, 5
VERSION_MISMATCH = 9
WORDS_SECONDS = 60


def text(value):
    data = value.encode()
    return struct.pack("<I", len(data)) + data


def local_hello():
    body = struct.pack("<I", VERSION) + text(SOFTWARE)
    return struct.pack("<IHHII", LOCAL_MAGIC, 1, HELLO, len(body), zlib.crc32(body)) + body


def frame(kind, body):
    header = struct.pack("<IHHIIQQQI", FRAME_MAGIC, VERSION, kind, len(body), zlib.crc32(body),
                         0, 0, 0, 0)
    return header + struct.pack("<I", zlib.crc32(header)) + body


def refusal():
    return frame(REFUSED, struct.pack("<H", VERSION_MISMATCH) + text("another version"))


def hear(connection):
    """All that the other side says until it closes."""
    connection.settimeout(WORDS_SECONDS)
    said = b""
    try:
        while part := connection.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


def serve(runtime_dir):
    path = os.path.join(runtime_dir, "ckptd.sock")
    if os.path.exists(path):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(8)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(local_hello())
                hear(connection)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-dir", required=True)
    serve(parser.parse_known_args()[0].runtime_dir)
