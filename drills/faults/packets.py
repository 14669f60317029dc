"""The packets of ZooKeeper's protocol that change znodes or report a change.

Bodies only, without the four bytes of length. They are untrusted: a malformed one raises `BadData`, and parsing costs
no more than the body's length.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from coordinator.zk.errors import BadData
from coordinator.zk.jute import JuteReader

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA = 1, 2, 3, 4, 5
SYNC, CHECK, MULTI = 9, 13, 14
CREATE2, CLOSE_SESSION = 15, -11
WRITES = frozenset((CREATE, CREATE2, DELETE, SET_DATA, MULTI, CLOSE_SESSION))
NOTIFICATION, PING = -1, -2
"""The xids of a watch event, and of a ping and its reply."""

_ERROR = -1
_EPHEMERAL, _SEQUENTIAL = (1, 3), (2, 3, 6)
_KINDS = {1: "created", 2: "deleted", 3: "changed"}
_CONNECT = struct.Struct(">iqi")
_HEAD = struct.Struct(">iqi")
_PART = struct.Struct(">i?i")
_STAT = struct.Struct(">qqqqiiiqiiq")


class Opened(NamedTuple):
    """A session that was created or resumed. `timeout_ms` is the granted timeout."""

    session: int
    timeout_ms: int


class Head(NamedTuple):
    """The header of a reply. `zxid`: of the server's last transaction; `error`: 0 for none."""

    xid: int
    zxid: int
    error: int


class Part(NamedTuple):
    """One operation of a request.

    :ivar op: `create`, `set`, `delete` or `check`, as in a history.
    :ivar data: as text; None without data.
    :ivar version: the expected version; -1 for any.
    """

    op: str
    path: str
    data: str | None = None
    version: int = -1
    ephemeral: bool = False
    sequential: bool = False


class OperationResult(NamedTuple):
    """The result of one operation: the created path, or "", and the new version, or -1."""

    path: str = ""
    version: int = -1


class WatchEvent(NamedTuple):
    """A watch event: a znode was `created`, `changed` or `deleted`; the transaction's zxid, below 1 before 3.9."""

    zxid: int
    kind: str
    path: str


class ReadZnode(NamedTuple):
    """A znode and its data, as read."""

    data: str
    mzxid: int
    version: int
    ephemeral_owner: int


def xid(body: bytes) -> int:
    """The number of a request and of its reply; -1 for a watch event, -2 for a ping."""
    return JuteReader(body).integer()


def op_code(request: bytes) -> int:
    """The op code of a request, such as `MULTI`."""
    return JuteReader(request, 4).integer()


def opened(first_reply: bytes) -> Opened | None:
    """The session of a connection; None when it has expired."""
    reader = JuteReader(first_reply)
    reader.integer()
    timeout_ms, session = reader.integer(), reader.long()
    return Opened(session, timeout_ms) if session and timeout_ms > 0 else None


def asked_timeout_ms(first_request: bytes) -> int:
    """The session timeout in a client's connect request."""
    return int(JuteReader(first_request).values(_CONNECT)[2])


def head(reply: bytes) -> Head:
    """The header of a reply."""
    return Head(*JuteReader(reply).values(_HEAD))


def watch_event_of(event: bytes) -> WatchEvent | None:
    """A parsed watch event; None for types without data changes."""
    zxid = head(event).zxid
    reader = JuteReader(event, _HEAD.size)
    kind, _state, path = reader.integer(), reader.integer(), reader.text()
    return WatchEvent(zxid, _KINDS[kind], path) if kind in _KINDS else None


def parts_of(request: bytes) -> tuple[Part, ...]:
    """The operations of one of `WRITES`; empty for the end of a session."""
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
        for _ in range(reader.integer()):  # the ACL
            reader.integer()
            reader.buffer()
            reader.buffer()
        flags = reader.integer()
        return Part("create", path, data, -1, flags in _EPHEMERAL, flags in _SEQUENTIAL)
    if code == SET_DATA:
        return Part("set", path, reader.text(), reader.integer())
    if code in (DELETE, CHECK):
        return Part("delete" if code == DELETE else "check", path, None, reader.integer())
    raise BadData(f"unknown op code {code}")


def results_of(request: bytes, reply: bytes) -> tuple[OperationResult, ...] | None:
    """The results of one of `WRITES`, by operation; None when it was refused."""
    if head(reply).error:
        return None
    code, reader = op_code(request), JuteReader(reply, _HEAD.size)
    if code == CLOSE_SESSION:
        return ()
    if code != MULTI:
        return (_result(code, reader),)
    results: list[OperationResult] = []
    while True:
        kind, is_end, _ = reader.values(_PART)
        if is_end:
            return tuple(results)
        if kind == _ERROR:
            return None
        results.append(_result(kind, reader))


def _result(code: int, reader: JuteReader) -> OperationResult:
    path = reader.text() if code in (CREATE, CREATE2) else ""
    if code not in (CREATE2, SET_DATA):
        return OperationResult(path)
    stat = reader.values(_STAT)
    return OperationResult(path, stat[4])


def asked_path(request: bytes) -> str:
    """The path of a request."""
    return JuteReader(request, 8).text()


def found(reply: bytes) -> ReadZnode | None:
    """The reply to a `GET_DATA`; None when the znode does not exist."""
    if head(reply).error:
        return None
    reader = JuteReader(reply, _HEAD.size)
    data, stat = reader.text(), reader.values(_STAT)
    return ReadZnode(data, stat[1], stat[4], stat[7])
