"""Standard streams of a command: a closed one, and output that cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

from ..errors import CoordinatorError

_UNUSABLE = {0: os.O_WRONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}


class OutputLost(CoordinatorError):
    """Standard output is closed, or its disk is full."""


@contextmanager
def checked_streams() -> Iterator[None]:
    """Within it a failed write to stdout raises `OutputLost`, also where stdout is closed.

    A broken pipe stays a `BrokenPipeError`: the reader has seen enough. After either, further output is dropped.
    """
    _occupy()
    sys.stdin = sys.stdin or _opened("r", os.O_WRONLY)
    sys.stderr = sys.stderr or _opened("w", os.O_WRONLY)
    with redirect_stdout(cast(TextIO, _Output(sys.stdout or _opened("w", os.O_RDONLY)))):
        yield
        sys.stdout.flush()


def _occupy() -> None:
    """Open closed standard streams, so that no socket gets their numbers, as glibc does (`__libc_check_standard_fds`).

    A read of stdin, or a write to stdout, fails as before.
    """
    for number, flags in _UNUSABLE.items():
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, flags), number)
            os.set_inheritable(number, True)


def _opened(mode: str, flags: int) -> TextIO:
    return cast(TextIO, open(os.devnull, mode, opener=lambda path, _: os.open(path, flags)))


class _Output:
    """stdout: the first failure raises, later output is dropped, also that which is still in its buffer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if text == "":  # click tries a stream so, and ignores what it raises
            return 0
        with self._checked():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._checked():
            self._stream.flush()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise
            raise OutputLost(f"standard output cannot be written: {error.strerror}") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
