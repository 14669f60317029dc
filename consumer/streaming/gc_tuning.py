"""Python's garbage collector in Spark's worker processes: fewer and smaller collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 20_000
"""Threshold of the youngest generation. One Kafka fetch makes thousands of short-lived objects."""

_is_done = False


def spare_modules() -> None:
    """Exclude existing objects from this process's collections. Has an effect once in a process.

    PySpark's daemon calls `gc.collect()` after each task. With the modules that our tasks load this traverses some
    hundred thousand objects that are never garbage: 0.1 s of CPU, more than reading a small batch takes.
    """
    global _is_done
    if not _is_done:
        _is_done = True
        gc.collect()
        gc.freeze()


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect less often meanwhile: 3 to 5 % of the time of fetching from Kafka. The process is reused later."""
    before = gc.get_threshold()
    gc.set_threshold(max(_YOUNG, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
