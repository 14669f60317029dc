"""Waiting for something in a drill: with a deadline, and a sentence that says what did not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ..zk.errors import CoordinatorError, StoreError

T = TypeVar("T")
LOOK_S = 0.1


class NotReached(CoordinatorError):
    """What a drill waited for did not come; the message says what that was."""


def wait_for(look: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """What `look` returns once it is something; while ZooKeeper does not answer, it is asked again.

    :raises NotReached: after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if found := look():
                return found
        except StoreError:
            pass
        if time.monotonic() > deadline:
            raise NotReached(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(LOOK_S)
