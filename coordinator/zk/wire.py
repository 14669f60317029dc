"""ZooKeeper's `multi`, `multiRead` and `addWatch` on the wire; kazoo carries them.

A request costs a Python client 80 microseconds and more, for any content: one for a hundred znodes costs little
more than one for a single one. kazoo 2.11 has no multiRead (ZOOKEEPER-1644, since 3.6), and its multi takes several
times as long to serialize. The records are those of `zookeeper.jute`; the server answers in order.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from .errors import BadData
from .store import Acl, AclEntry, Create, Delete, Node, Operation, SetData, Stat

T = TypeVar("T")

NO_NODE, NO_AUTH = -101, -102
MOST_PATHS = 16
"""Paths per request. A server builds each reply in its heap, and a znode can have 1 MB."""
MOST_UNANSWERED = 2 * MOST_PATHS
"""Paths in all outstanding requests of a caller. 2,000 small znodes take 21 ms; without the bound 7 ms."""

_CREATE, _DELETE, _GET_DATA, _SET_DATA, _CHECK, _ERROR = 1, 2, 4, 5, 13, -1
_EPHEMERAL, _SEQUENTIAL = 1, 2
_PERSISTENT_RECURSIVE = 1
TREE_EVENTS = {1: "created", 2: "deleted", 3: "changed"}
_HEADER = struct.Struct("!i?i")
_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_FLAG = struct.Struct("!?")
_STAT = struct.Struct("!qqqqiiiqiiq")
_HEADERS = {kind: _HEADER.pack(kind, False, -1) for kind in (_CREATE, _DELETE, _GET_DATA, _SET_DATA, _CHECK)}
_END = _HEADER.pack(-1, True, -1)


def _buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


OPEN_ACL: Acl = (AclEntry(31, "world:anyone"),)


@lru_cache(maxsize=256)
def acl_bytes(acl: Acl) -> bytes:
    """An ACL as in a request."""
    parts = [_INT.pack(len(acl))]
    for permissions, identity in acl:
        scheme, _, rest = identity.partition(":")
        parts += [_INT.pack(permissions), _buffer(scheme.encode()), _buffer(rest.encode())]
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Failure:
    """ZooKeeper's error code of one read or operation."""

    code: int


@dataclass(frozen=True, slots=True)
class MultiRead:
    """One request to read.

    :ivar paths: absolute paths, chroot included; `MOST_PATHS` at most.
    """

    paths: Sequence[str]
    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        """The request's body."""
        header, no_watch = _HEADERS[_GET_DATA], b"\0"
        return b"".join([header + _buffer(path.encode()) + no_watch for path in self.paths]) + _END

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> list[Node | Failure]:
        """The result for each path, in their order."""
        results: list[Node | Failure] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(answer, offset)
            offset += _HEADER.size
            if done:
                return results
            (number,) = _INT.unpack_from(answer, offset)
            offset += _INT.size
            if kind == _ERROR:
                results.append(Failure(number))
                continue
            data = bytes(answer[offset : offset + number]) if number > 0 else b""
            offset += len(data)
            results.append(Node(data, stat_of(_STAT.unpack_from(answer, offset))))
            offset += _STAT.size


@dataclass(frozen=True, slots=True)
class Multi:
    """One request to apply all of `operations`, or none.

    :ivar chroot: prefix of their paths.
    """

    operations: Sequence[Operation]
    chroot: str
    type: ClassVar[int] = 14

    def serialize(self) -> bytes:
        """The request's body."""
        return b"".join([_encoded(operation, self.chroot) for operation in self.operations]) + _END

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> list[str | Failure]:
        """For each operation the path that it created, or "", or its error code."""
        results: list[str | Failure] = []
        while True:
            kind, done, _ = _HEADER.unpack_from(answer, offset)
            offset += _HEADER.size
            if done:
                return results
            if kind in (_ERROR, _CREATE):
                (number,) = _INT.unpack_from(answer, offset)
                offset += _INT.size
                if kind == _ERROR:
                    results.append(Failure(number))
                else:
                    results.append(bytes(answer[offset : offset + number]).decode())
                    offset += number
                continue
            offset += _STAT.size if kind == _SET_DATA else 0
            results.append("")


@dataclass(frozen=True, slots=True)
class AddTreeWatch:
    """The request for a persistent recursive watch (ZOOKEEPER-1416, since 3.6).

    :ivar path: an absolute path, chroot included.
    """

    path: str
    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        """The request's body."""
        return _buffer(self.path.encode()) + _INT.pack(_PERSISTENT_RECURSIVE)

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> bool:
        """True: the answer has no content."""
        return True


def _encoded(operation: Operation, chroot: str) -> bytes:
    path = _buffer((chroot + operation.path).encode())
    if isinstance(operation, SetData):
        return _HEADERS[_SET_DATA] + path + _buffer(operation.data) + _INT.pack(operation.version)
    if isinstance(operation, Create):
        flags = _EPHEMERAL * operation.ephemeral | _SEQUENTIAL * operation.sequential
        acl = acl_bytes(operation.acl or OPEN_ACL)
        return _HEADERS[_CREATE] + path + _buffer(operation.data) + acl + _INT.pack(flags)
    kind = _DELETE if isinstance(operation, Delete) else _CHECK
    return _HEADERS[kind] + path + _INT.pack(operation.version)


def stat_of(values: Sequence[Any]) -> Stat:
    """A stat from its fields in wire order."""
    czxid, mzxid, ctime, mtime, version, cversion, _, ephemeral_owner, _, children, pzxid = values
    return Stat(czxid, mzxid, pzxid, version, cversion, ephemeral_owner, children, ctime, mtime)


def pipelined(send: Callable[[T], Any], requests: Sequence[T], most: int = MOST_UNANSWERED) -> Iterator[Any]:
    """The replies to `requests`, in their order; at most `most` requests are outstanding at any time."""
    waiting: deque[Any] = deque()
    for request in requests:
        if len(waiting) == most:
            yield waiting.popleft()
        waiting.append(send(request))
    yield from waiting


class JuteReader:
    """Reads values of jute, the format of ZooKeeper's packets and logs, from the front of a buffer.

    Every call raises `BadData` at a premature end.
    """

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data = data
        self._at = start

    def integer(self) -> int:
        """32 bits."""
        return int(self.values(_INT)[0])

    def long(self) -> int:
        """64 bits."""
        return int(self.values(_LONG)[0])

    def flag(self) -> bool:
        """One byte."""
        return bool(self.values(_FLAG)[0])

    def buffer(self) -> bytes:
        """Bytes with a length prefix; a negative length means none."""
        return self._taken(max(0, self.integer()))

    def text(self) -> str:
        """A buffer as text; invalid UTF-8 as `\\xff`."""
        return self.buffer().decode("utf-8", "backslashreplace")

    def values(self, form: struct.Struct) -> tuple[Any, ...]:
        """The fields of `form`."""
        return form.unpack(self._taken(form.size))

    def _taken(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise BadData("it is cut short")
        self._at += size
        return self._data[self._at - size : self._at]

    @property
    def is_at_end(self) -> bool:
        """Whether all bytes were read."""
        return self._at >= len(self._data)
