"""What the packets of ZooKeeper's protocol say, as far as it changes znodes or tells of a change.

Bodies only, without the four bytes of length before them. They come from others: whatever is wrong with one raises
`BadData`, and none costs more than its own length.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ..zk.errors import BadData
from ..zk.jute import JuteReader

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA = 1, 2, 3, 4, 5
GET_CHILDREN, SYNC, PING, GET_CHILDREN2, CHECK, MULTI = 8, 9, 11, 12, 13, 14
CREATE2, CLOSE_SESSION = 15, -11
WRITES = frozenset((CREATE, CREATE2, DELETE, SET_DATA, MULTI, CLOSE_SESSION))
NOTIFICATION = -1
"""The xid of a watch event."""

_ERROR = -1
_EPHEMERAL, _SEQUENTIAL = (1, 3), (2, 3, 6)
_KINDS = {1: "created", 2: "deleted", 3: "changed"}
_CONNECT = struct.Struct(">iqi")
_HEAD = struct.Struct(">iqi")
_PART = struct.Struct(">i?i")
_STAT = struct.Struct(">qqqqiiiqiiq")


class Opened(NamedTuple):
    """A session that was opened, or found again. `timeout_ms` is what the server granted."""

    session: int
    timeout_ms: int


class Head(NamedTuple):
    """How a reply begins. `zxid`: of the last transaction that the server has done; `error`: 0 for none."""

    xid: int
    zxid: int
    error: int


class Part(NamedTuple):
    """One operation that is asked for.

    :ivar op: `create`, `set`, `delete` or `check`, as in a history.
    :ivar data: as text, None where there is none to write.
    :ivar version: that the znode must have; -1 for any.
    """

    op: str
    path: str
    data: str | None = None
    version: int = -1
    ephemeral: bool = False
    sequential: bool = False


class Result(NamedTuple):
    """What came of one operation: the path that it made, or "", and the version that it set, or -1."""

    path: str = ""
    version: int = -1


class Told(NamedTuple):
    """A watch event: a znode was `created`, `changed` or `deleted`; the transaction's zxid, below 1 before 3.9."""

    zxid: int
    kind: str
    path: str


class Found(NamedTuple):
    """A znode as it was read."""

    data: str
    mzxid: int
    version: int
    ephemeral_owner: int


def xid(body: bytes) -> int:
    """The number that a request carries and its reply repeats; -1 for a watch event, -2 for a ping."""
    return JuteReader(body).integer()


def op_code(request: bytes) -> int:
    """What a request asks for, as `MULTI`."""
    return JuteReader(request, 4).integer()


def opened(first_reply: bytes) -> Opened | None:
    """The session that a connection is for; None when the server says that it is over."""
    reader = JuteReader(first_reply)
    reader.integer()
    timeout_ms, session = reader.integer(), reader.long()
    return Opened(session, timeout_ms) if session and timeout_ms > 0 else None


def asked_timeout_ms(first_request: bytes) -> int:
    """The session timeout that a client asks for when it connects."""
    return int(JuteReader(first_request).values(_CONNECT)[2])


def head(reply: bytes) -> Head:
    """How a reply begins."""
    return Head(*JuteReader(reply).values(_HEAD))


def told(event: bytes) -> Told | None:
    """What a watch event tells; None for kinds that are of no znode's data."""
    zxid = head(event).zxid
    reader = JuteReader(event, _HEAD.size)
    kind, _state, path = reader.integer(), reader.integer(), reader.text()
    return Told(zxid, _KINDS[kind], path) if kind in _KINDS else None


def parts_of(request: bytes) -> tuple[Part, ...]:
    """What one of `WRITES` asks for; nothing for the end of a session."""
    code, reader = op_code(request), JuteReader(request, 8)
    if code == CLOSE_SESSION:
        return ()
    if code != MULTI:
        return (_part(code, reader),)
    parts: list[Part] = []
    while True:
        kind, is_end, _ = reader.values(_PART)
        if is_end:
            return tuple(parts)
        parts.append(_part(kind, reader))


def _part(code: int, reader: JuteReader) -> Part:
    path = reader.text()
    if code in (CREATE, CREATE2):
        data = reader.text()
        for _ in range(reader.integer()):  # who may do what
            reader.integer()
            reader.buffer()
            reader.buffer()
        flags = reader.integer()
        return Part("create", path, data, -1, flags in _EPHEMERAL, flags in _SEQUENTIAL)
    if code == SET_DATA:
        return Part("set", path, reader.text(), reader.integer())
    if code in (DELETE, CHECK):
        return Part("delete" if code == DELETE else "check", path, None, reader.integer())
    raise BadData(f"an operation of the unknown kind {code}")


def results_of(request: bytes, reply: bytes) -> tuple[Result, ...] | None:
    """What came of one of `WRITES`, part by part; None when it was refused, and nothing happened."""
    if head(reply).error:
        return None
    code, reader = op_code(request), JuteReader(reply, _HEAD.size)
    if code == CLOSE_SESSION:
        return ()
    if code != MULTI:
        return (_result(code, reader),)
    results: list[Result] = []
    while True:
        kind, is_end, _ = reader.values(_PART)
        if is_end:
            return tuple(results)
        if kind == _ERROR:
            return None
        results.append(_result(kind, reader))


def _result(code: int, reader: JuteReader) -> Result:
    path = reader.text() if code in (CREATE, CREATE2) else ""
    if code not in (CREATE2, SET_DATA):
        return Result(path)
    stat = reader.values(_STAT)
    return Result(path, stat[4])


def asked_path(request: bytes) -> str:
    """The znode that a request is about."""
    return JuteReader(request, 8).text()


def found(reply: bytes) -> Found | None:
    """What came of a `GET_DATA`; None when the znode is not there."""
    if head(reply).error:
        return None
    reader = JuteReader(reply, _HEAD.size)
    data, stat = reader.text(), reader.values(_STAT)
    return Found(data, stat[1], stat[4], stat[7])
