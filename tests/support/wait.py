"""Waiting in tests: with a deadline, and with what was seen last when it passes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from coordinator.zk.runtime import ThreadRuntime

T = TypeVar("T")
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
"""How many times as long what is waited for here may take: scripts/test lets several lanes share the cores."""


def eventually(
    fn: Callable[[], T],
    timeout_s: float,
    what: str,
    *,
    ignoring: tuple[type[Exception], ...] = (),
    pause_s: float = 0.01,
) -> T:
    """Call `fn` until what it returns is truthy, and return that.

    A call that raises AssertionError, or one of `ignoring`, counts as not yet.

    :param timeout_s: on a machine that has nothing else to do.
    :param what: the end of the sentence "not within N s: ".
    :raises AssertionError: after `timeout_s`, with what the last call returned or raised.
    """
    not_yet: tuple[type[Exception], ...] = (AssertionError, *ignoring)
    runtime = ThreadRuntime()
    started, timeout_s = runtime.monotonic(), PATIENCE * timeout_s
    calls = 0
    while True:
        calls += 1
        try:
            result = fn()
            if result:
                return result
            seen = f"returned {result!r}"
        except not_yet as error:
            seen = f"raised {error!r}"
        if runtime.monotonic() - started > timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; the last of {calls} calls {seen}")
        runtime.sleep(pause_s)
