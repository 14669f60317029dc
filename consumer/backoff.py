"""When a consumer may register again: a little later each time, until it has gone well."""

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
        """Whether it is too early for another registration."""
        return self._runtime.monotonic() < self._not_before

    def attempt(self) -> None:
        """It registers now."""
        self._wait(self._attempts)
        self._attempts += 1

    def turned_away(self) -> None:
        """The group did not take it. It could register all the same, so that alone says nothing."""
        self._refusals += 1
        self._wait(self._refusals)

    def went_well(self, is_member: bool) -> None:
        """It has read its channel.

        :param is_member: whether it has obeyed a command, too.
        """
        self._attempts = 0
        self._refusals = 0 if is_member else self._refusals

    def _wait(self, times: int) -> None:
        wait_s = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(times, 10))
        self._not_before = self._runtime.monotonic() + wait_s
