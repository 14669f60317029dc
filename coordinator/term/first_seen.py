"""Timers since the first observation, for this term's coordinator."""

from __future__ import annotations

from ..zk.runtime import Runtime


class FirstSeen:
    """When this coordinator first saw each key, for one group. Only for its own epoch, never shared.

    Keys that are no longer seen are dropped, which bounds its size.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since: dict[tuple[str, ...], float] = {}
        self._seen: set[tuple[str, ...]] = set()

    def age_s(self, *key: str) -> float:
        """Seconds since `key` was first requested."""
        now = self._runtime.monotonic()
        self._seen.add(key)
        return now - self._since.setdefault(key, now)

    def forget_unseen(self) -> None:
        """Drop every key that was not requested since the last call."""
        self._since = {key: since for key, since in self._since.items() if key in self._seen}
        self._seen = set()
