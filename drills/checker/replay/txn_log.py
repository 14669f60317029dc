"""ZooKeeper's own transaction log as the events of a history: the committed transactions, from an independent source.

A server writes each transaction to `version-2/log.*` in its data folder before it answers. The format is jute's, as
`FileTxnLog` writes it: a header of 16 bytes, then for each transaction a checksum, its length, its bytes and a `B`.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.wire import JuteReader

MAGIC = b"ZKLG"
LARGEST = 64 << 20
_CREATE, _DELETE, _SET_DATA, _CHECK, _MULTI, _CREATE_2 = 1, 2, 5, 13, 14, 15
_ERROR, _OPEN_SESSION, _CLOSE_SESSION = -1, -10, -11
_HEADER = struct.Struct(">qiqqi")


class Transaction(NamedTuple):
    """A logged transaction. `cxid` is 0 for those without a client."""

    session: int
    cxid: int
    zxid: int
    time_ms: int
    kind: int
    body: bytes


def events_of(
    version_folders: Sequence[Path], who: Mapping[int, str], clock: Callable[[int], float], chroot: str = ""
) -> list[dict[str, Any]]:
    """The events `session`, `commit` and `closed` in the transaction logs of a quorum.

    A transaction that only a leader has logged did not take effect.

    :param version_folders: the `version-2` of every server.
    :param who: session -> process; `hand` for missing ones.
    :param clock: a server's wall clock in milliseconds -> `at`.
    :param chroot: only znodes below it, with relative paths.
    :raises BadData: when a log is damaged in its middle; a truncated end is where the server stopped.
    """
    logged: Counter[int] = Counter()
    found: dict[int, dict[str, Any]] = {}
    for folder in version_folders:
        of_server = {each.zxid: each for path in sorted(folder.glob("log.*")) for each in transactions(path)}
        logged.update(of_server.keys())
        for zxid, transaction in of_server.items():
            event = _event(transaction, chroot) if zxid not in found else None
            if event is not None:
                frame = {"at": clock(transaction.time_ms), "who": who.get(transaction.session, "hand")}
                found[zxid] = {**frame, **event}
    return [found[zxid] for zxid in sorted(found) if 2 * logged[zxid] > len(version_folders)]


def transactions(path: Path) -> Iterator[Transaction]:
    """The transactions of one log, up to where its server has written it whole.

    :raises BadData: when it is not a log, or damaged.
    """
    with path.open("rb", buffering=0) as file:
        if file.read(16)[:4] != MAGIC:
            raise BadData(f"{path} is no transaction log of ZooKeeper")
        while len(head := file.read(12)) == 12:
            checksum, length = struct.unpack(">qi", head)
            if length <= 0:  # the file is preallocated with zeros
                return
            if length > LARGEST:
                raise BadData(f"{path} has a transaction of {length} bytes")
            body = file.read(length)
            if len(body) < length or file.read(1) != b"B":
                return
            if zlib.adler32(body) != checksum:  # the server was writing it: it is whole now, since its end is there
                file.seek(-length - 1, os.SEEK_CUR)
                body = file.read(length)
                file.seek(1, os.SEEK_CUR)
            if zlib.adler32(body) != checksum:
                raise BadData(f"{path} has a transaction whose checksum is wrong")
            session, cxid, zxid, time_ms, kind = _HEADER.unpack_from(body)
            yield Transaction(session, cxid, zxid, time_ms, kind, body[_HEADER.size :])


def _event(transaction: Transaction, chroot: str) -> dict[str, Any] | None:
    session, zxid = transaction.session, transaction.zxid
    if transaction.kind == _OPEN_SESSION:
        return {"event": "session", "session": session, "timeout": JuteReader(transaction.body).integer() / 1000}
    if transaction.kind == _CLOSE_SESSION:
        why = "closed" if transaction.cxid else "expired"
        paths = [path.removeprefix(chroot) for path in _paths(transaction.body) if path.startswith(f"{chroot}/")]
        return {"event": "closed", "session": session, "zxid": zxid, "why": why, "paths": paths}
    if transaction.kind == _MULTI:
        reader = JuteReader(transaction.body)
        parts = [(reader.integer(), reader.buffer()) for _ in range(reader.integer())]
        if any(kind == _ERROR for kind, _ in parts):
            return None  # refused as a whole; operations before the refused one are logged all the same
    else:
        parts = [(transaction.kind, transaction.body)]
    operations = [operation for kind, body in parts if (operation := _operation(kind, body)) is not None]
    below = [
        {**operation, "path": operation["path"].removeprefix(chroot)}
        for operation in operations
        if operation["path"].startswith(f"{chroot}/")
    ]
    return {"event": "commit", "session": session, "zxid": zxid, "ops": below} if below else None


def _paths(body: bytes) -> list[str]:
    reader = JuteReader(body)
    return [] if reader.is_at_end else [reader.text() for _ in range(reader.integer())]


def _operation(kind: int, body: bytes) -> dict[str, Any] | None:
    """One operation; None for kinds without a change of data."""
    reader = JuteReader(body)
    if kind in (_CREATE, _CREATE_2):
        path, data = reader.text(), reader.text()
        for _ in range(reader.integer()):
            reader.integer()
            reader.buffer()
            reader.buffer()
        return {"op": "create", "path": path, "data": data, "ephemeral": reader.flag()}
    if kind == _SET_DATA:
        return {"op": "set", "path": reader.text(), "data": reader.text(), "version": reader.integer()}
    if kind == _DELETE:
        return {"op": "delete", "path": reader.text()}
    if kind == _CHECK:
        return {"op": "check", "path": reader.text(), "version": reader.integer() - 1}  # the server logs the next one
    return None
