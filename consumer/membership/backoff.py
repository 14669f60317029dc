"""The backoff between registrations of a consumer."""

from __future__ import annotations

from coordinator.zk.runtime import Runtime

FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0


class Backoff:
    """The waits between the registrations of one consumer."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._not_before = float("-inf")
        self._attempts = 0
        self._refusals = 0

    @property
    def is_running(self) -> bool:
        """Whether another registration must wait."""
        return self._runtime.monotonic() < self._not_before

    def attempt(self) -> None:
        """A registration begins."""
        self._wait(self._attempts)
        self._attempts += 1

    def refused(self) -> None:
        """The group refused the member. A registration alone, which succeeded, does not reset the backoff."""
        self._refusals += 1
        self._wait(self._refusals)

    def succeeded(self, is_member: bool) -> None:
        """The consumer has read its channel.

        :param is_member: whether it has also applied a command.
        """
        self._attempts = 0
        self._refusals = 0 if is_member else self._refusals

    def _wait(self, times: int) -> None:
        wait_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(times, 10))
        self._not_before = self._runtime.monotonic() + wait_s
