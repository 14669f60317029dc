"""Lookup of Kafka's brokers beside fetching: ZooKeeper may take seconds to answer, or fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

FIND_AGAIN_S = 10.0

LOOKUP_S = 0.1
"""Seconds to wait for an answer: usual on a near network, and immediate where the servers are given."""


class BrokerLookup:
    """Looks the servers up, each time in a thread of its own. Not for several threads.

    :param find: returns the servers, or raises; may be slow.
    """

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._lookup: Future[str] | None = None
        self._not_before = float("-inf")

    def at_once(self) -> None:
        """Allow the next lookup at once."""
        self._not_before = float("-inf")

    def found(self, now: float, wait_s: float | None = LOOKUP_S) -> str | None:
        """The result of a lookup, which is started when one is due; None without a new result.

        :param wait_s: seconds to wait for a started lookup; None waits until it ends.
        :raises CoordinatorError: the lookup's.
        """
        if self._lookup is None:
            if now < self._not_before:
                return None
            self._not_before = now + FIND_AGAIN_S
            lookup: Future[str] = Future()
            threading.Thread(target=self._look, args=(lookup,), name="kafka-lookup", daemon=True).start()
            self._lookup = lookup
            wait([lookup], wait_s)
        if not self._lookup.done():
            return None
        ended, self._lookup = self._lookup, None
        return ended.result()

    def _look(self, lookup: Future[str]) -> None:
        try:
            lookup.set_result(self._find())
        except BaseException as error:  # noqa: BLE001  re-raised by `found`
            lookup.set_exception(error)
