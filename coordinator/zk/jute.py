"""A bounds-checked reader of jute, the format of ZooKeeper's packets and logs."""

from __future__ import annotations

import struct
from typing import Any, Final

from .errors import BadData

_INTEGER: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_FLAG: Final = struct.Struct(">?")


class JuteReader:
    """Reads values from the front of a buffer. Every call raises `BadData` at a premature end."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data = data
        self._at = start

    def integer(self) -> int:
        """32 bits."""
        return int(self.values(_INTEGER)[0])

    def long(self) -> int:
        """64 bits."""
        return int(self.values(_LONG)[0])

    def flag(self) -> bool:
        """One byte."""
        return bool(self.values(_FLAG)[0])

    def buffer(self) -> bytes:
        """Bytes with a length prefix; a negative length means none."""
        length = self.integer()
        if length > len(self._data) - self._at:
            raise BadData("it is cut short")
        found = self._data[self._at : self._at + max(0, length)]
        self._at += max(0, length)
        return found

    def text(self) -> str:
        """A buffer as text; invalid UTF-8 as `\\xff`."""
        return self.buffer().decode("utf-8", "backslashreplace")

    def values(self, form: struct.Struct) -> tuple[Any, ...]:
        """The fields of `form`."""
        if form.size > len(self._data) - self._at:
            raise BadData("it is cut short")
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found

    @property
    def is_at_end(self) -> bool:
        """Whether all bytes were read."""
        return self._at >= len(self._data)
