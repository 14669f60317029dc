"""Waiting in tests: with a deadline, and with what was seen last when it passes.

Two kinds of deadline, two functions. `eventually` waits for an event that must happen, and is patient: on a busy
machine it waits longer. `within` holds a promise: where another way leads to the same end later (an expired session,
a lease, a list that is read again), the deadline is what the test asserts, and no load makes it longer. Where the
interval of such a way can be set, it is `FAR_OFF_MS`: longer than any patience.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from zk_group.coordinator.zk.runtime import ThreadRuntime

T = TypeVar("T")
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
"""The factor of waits for events that must happen: scripts/test lets several lanes share the cores."""
FAR_OFF_MS = 600_000
"""For the intervals of fallbacks: the sweep, the next checkpoint, a timeout."""


class Waiting(Protocol):
    """`eventually` or `within`, for helpers that wait for a test."""

    def __call__(
        self,
        fn: Callable[[], T],
        timeout_s: float,
        what: str,
        *,
        ignoring: tuple[type[Exception], ...] = (),
        pause_s: float = 0.01,
    ) -> T: ...


def eventually(
    fn: Callable[[], T],
    timeout_s: float,
    what: str,
    *,
    ignoring: tuple[type[Exception], ...] = (),
    pause_s: float = 0.01,
) -> T:
    """Call `fn` until what it returns is truthy, and return that: it must happen, with any delay.

    A call that raises AssertionError, or one of `ignoring`, counts as not yet.

    :param timeout_s: on a machine that has nothing else to do.
    :param what: the end of the sentence "not within N s: ".
    :raises AssertionError: after `PATIENCE` times `timeout_s`, with what the last call returned or raised.
    """
    return within(fn, PATIENCE * timeout_s, what, ignoring=ignoring, pause_s=pause_s)


def within(
    fn: Callable[[], T],
    timeout_s: float,
    what: str,
    *,
    ignoring: tuple[type[Exception], ...] = (),
    pause_s: float = 0.01,
) -> T:
    """The same where `timeout_s` is a promise: it holds on every machine under any load.

    :raises AssertionError: after `timeout_s`, with what the last call returned or raised.
    """
    not_yet: tuple[type[Exception], ...] = (AssertionError, *ignoring)
    runtime = ThreadRuntime()
    started = began = runtime.monotonic()
    calls, seen = 0, ""
    while began - started <= timeout_s:  # a later call's result is too late
        calls += 1
        try:
            result = fn()
            if result:
                return result
            seen = f"returned {result!r}"
        except not_yet as error:
            seen = f"raised {error!r}"
        runtime.sleep(pause_s)
        began = runtime.monotonic()
    raise AssertionError(f"not within {timeout_s:g} s: {what}; the last of {calls} calls {seen}")


class Ahead(ThreadRuntime):
    """A machine whose clocks go as usual, and are further by as much as a test has let pass.

    :ivar ahead_s: how much that is, for both of its clocks.
    :ivar wall_ahead_s: what its wall clock is ahead besides.
    """

    def __init__(self, ahead_s: float = 0.0, wall_ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        self.wall_ahead_s = wall_ahead_s

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s

    def wall_ms(self) -> int:
        return super().wall_ms() + round(1000 * (self.ahead_s + self.wall_ahead_s))
