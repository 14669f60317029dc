"""ZooKeeper's packets as clients and servers send them, without their length."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from coordinator.zk.store import Operation
from coordinator.zk.wire import Multi
from drills.faults.packets import CLOSE_SESSION, GET_DATA, MULTI

KINDS = {"created": 1, "deleted": 2, "changed": 3, "children": 4}
DONE = struct.pack(">i?i", -1, True, -1)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">i", len(data)) + data


def stat(mzxid: int = 0, version: int = 0, owner: int = 0) -> bytes:
    return struct.pack(">qqqqiiiqiiq", 0, mzxid, 0, 0, version, 0, 0, owner, 0, 0, 0)


def connected(session: int, timeout_ms: int) -> bytes:
    return struct.pack(">iiq", 0, timeout_ms, session) + struct.pack(">i16s?", 16, b"", False)


def connect(timeout_ms: int) -> bytes:
    return struct.pack(">iqiq", 0, 0, timeout_ms, 0) + struct.pack(">i16s?", 16, b"", False)


def multi(xid: int, operations: Sequence[Operation], chroot: str = "") -> bytes:
    return struct.pack(">ii", xid, MULTI) + Multi(operations, chroot).serialize()


def close(xid: int) -> bytes:
    return struct.pack(">ii", xid, CLOSE_SESSION)


def get(xid: int, path: str) -> bytes:
    return struct.pack(">ii", xid, GET_DATA) + text(path) + b"\0"


def reply(xid: int, zxid: int, error: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">iqi", xid, zxid, error) + body


def result(kind: int, body: bytes = b"") -> bytes:
    """The result of one operation of a multi."""
    return struct.pack(">i?i", kind, False, 0) + body


def event(zxid: int, kind: str, path: str) -> bytes:
    return reply(-1, zxid, 0, struct.pack(">ii", KINDS[kind], 3) + text(path))
