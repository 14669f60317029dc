"""The operations of a multi, read from the bytes of its request as a proxy sees them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from zk_group.drills.faults.proxy import CHECK, CREATE, DELETE, MULTI, SET_DATA, op_code


class MultiStep(NamedTuple):
    """One operation of a multi: `CREATE`, `SET_DATA`, `DELETE` or `CHECK`, its path and its data."""

    code: int
    path: str
    data: bytes


class _Reader:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 8  # behind xid and op code

    def number(self) -> int:
        self._at += 4
        value: int = struct.unpack_from("!i", self._body, self._at - 4)[0]
        return value

    def flag(self) -> bool:
        self._at += 1
        return self._body[self._at - 1] != 0

    def buffer(self) -> bytes:
        length = max(0, self.number())
        self._at += length
        return self._body[self._at - length : self._at]


def steps_of(body: bytes) -> list[MultiStep]:
    """The operations of a request; empty when it is no multi."""
    if op_code(body) != MULTI:
        return []
    reader = _Reader(body)
    found: list[MultiStep] = []
    while True:
        code, is_done, _ = reader.number(), reader.flag(), reader.number()
        if is_done:
            return found
        path, data = reader.buffer().decode(), b""
        if code in (CREATE, SET_DATA):
            data = reader.buffer()
        if code == CREATE:
            for _ in range(reader.number()):
                reader.number(), reader.buffer(), reader.buffer()
        if code not in (CREATE, SET_DATA, DELETE, CHECK):
            raise AssertionError(f"a multi with an operation of code {code}")
        reader.number()  # a version, or a create's flags
        found.append(MultiStep(code, path, data))


def has_step(code: int, path: str, data: bytes = b"") -> Callable[[bytes], bool]:
    """Whether a request is a multi with such an operation: `path` and `data` anywhere in its path and data."""

    def matches(body: bytes) -> bool:
        return any(step.code == code and path in step.path and data in step.data for step in steps_of(body))

    return matches


def both(*matches: Callable[[bytes], bool]) -> Callable[[bytes], bool]:
    """Whether a request matches all of them."""
    return lambda body: all(match(body) for match in matches)
