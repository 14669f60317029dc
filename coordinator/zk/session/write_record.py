"""A session's commits in a file, for a drill on servers whose transaction logs it cannot read (`docs/drills.md`)."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from .. import below
from ..store import Create, Delete, Operation, SetData
from ..wire import Failure, Multi

WRITES_DIR = "ZK_GROUP_WRITES_DIR"
"""The environment variable that names the folder of all records; without it there are none."""

_ZXID = struct.Struct("!4xq")


class WriteRecord:
    """Appends to `[folder]/[session].jsonl`, unbuffered: a killed process loses no line.

    :param timeout_s: the session's negotiated timeout.  :param asked_s: the requested one.
    :param clock: the machine's monotonic clock.
    :raises OSError: when the file cannot be written.
    """

    def __init__(self, folder: str, session: int, timeout_s: float, asked_s: float, clock: Callable[[], float]) -> None:
        with below.opened_folder(folder, [], makes=True) as parent:
            self._file = below.appended_file(f"{session:x}.jsonl", parent)
        self._numbers = count(1)
        self._clock = clock
        self.add("session", timeout=timeout_s, asked=asked_s)

    def add(self, event: str, **fields: Any) -> None:
        """Append an event."""
        line = json.dumps({"at": self._clock(), "event": event, **fields}, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())

    def of(self, multi: Multi, heard: Callable[[], int]) -> RecordedMulti:
        """The same request, which records itself."""
        return RecordedMulti(multi, self, next(self._numbers), heard)


@dataclass(frozen=True, slots=True)
class RecordedMulti:
    """A commit that is recorded just before it is sent, and as soon as its reply arrives, by the connection's thread.

    :ivar heard: the zxid of the session's last reply.
    """

    multi: Multi
    record: WriteRecord
    number: int
    heard: Callable[[], int]
    type: ClassVar[int] = Multi.type

    def serialize(self) -> bytes:
        """The request's body."""
        chroot, operations = self.multi.chroot, self.multi.operations
        written = [_written(operation, chroot) for operation in operations]
        self.record.add("asked", number=self.number, after=self.heard(), ops=written)
        return self.multi.serialize()

    def deserialize(self, answer: bytes, offset: int) -> Sequence[str | Failure]:
        """As `Multi`'s; the answer begins with its header."""
        results = self.multi.deserialize(answer, offset)
        if any(isinstance(result, Failure) for result in results):
            self.record.add("refused", number=self.number)
        else:
            self.record.add("done", number=self.number, zxid=_ZXID.unpack_from(answer)[0], paths=results)
        return results


def _written(operation: Operation, chroot: str) -> dict[str, Any]:
    """An operation as in a history, with its full path."""
    path = chroot + operation.path
    if isinstance(operation, Create):
        made = {"op": "create", "path": path, "data": _text(operation.data), "ephemeral": operation.ephemeral}
        return {**made, "sequential": True} if operation.sequential else made
    if isinstance(operation, SetData):
        known = {"version": operation.version + 1} if operation.version >= 0 else {}
        return {"op": "set", "path": path, "data": _text(operation.data), **known}
    if isinstance(operation, Delete):
        return {"op": "delete", "path": path}
    return {"op": "check", "path": path, "version": operation.version}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
