"""ZooKeeper's packets as servers send them, without their length."""

from __future__ import annotations

import struct

DONE = struct.pack(">i?i", -1, True, -1)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">i", len(data)) + data


def stat() -> bytes:
    return struct.pack(">qqqqiiiqiiq", *(0,) * 11)


def connected(session: int, timeout_ms: int) -> bytes:
    return struct.pack(">iiq", 0, timeout_ms, session) + struct.pack(">i16s?", 16, b"", False)


def reply(xid: int, zxid: int, error: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">iqi", xid, zxid, error) + body


def result(kind: int, body: bytes = b"") -> bytes:
    """The result of one operation of a multi."""
    return struct.pack(">i?i", kind, False, 0) + body
