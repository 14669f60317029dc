"""Waiting with a deadline; the error names the missing condition."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from coordinator.zk.errors import CoordinatorError, StoreError

T = TypeVar("T")
LOOK_S = 0.1


class NotReached(CoordinatorError):
    """A condition of a drill was not met in time; the message names it."""


def wait_for(look: Callable[[], T | None], timeout_s: float, what: str, look_s: float = LOOK_S) -> T:
    """The first truthy result of `look`; retried while ZooKeeper is unavailable.

    :raises NotReached: after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if result := look():
                return result
        except StoreError:
            pass
        if time.monotonic() > deadline:
            raise NotReached(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(look_s)
