"""Python's garbage collector in Spark's worker processes: what it looks at in vain, and how often."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG = 20_000
"""Objects that a collection of the youngest waits for. A look at Kafka makes thousands, which live for a moment."""

_is_done = False


def spare_modules() -> None:
    """Let this process's collections look at what comes from now on only. Does something once in a process.

    PySpark's daemon calls `gc.collect()` after each task. With the modules that a task of ours has loaded this goes
    through some hundred thousand objects that are never garbage: 0.1 s of CPU, more than reading a small batch takes.
    """
    global _is_done
    if not _is_done:
        _is_done = True
        gc.collect()
        gc.freeze()


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect more seldom meanwhile: 3 to 5 % of what fetching from Kafka takes. The process is used again later."""
    before = gc.get_threshold()
    gc.set_threshold(max(_YOUNG, before[0]), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
