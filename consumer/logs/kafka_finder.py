"""Where Kafka's brokers are, looked up beside fetching: ZooKeeper may take seconds to answer, or to be given up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait

FIND_AGAIN_S = 10.0

LOOKUP_S = 0.1
"""An answer is waited for so long: on a near network it comes within that, and at once where the servers are given."""


class Finder:
    """Looks the servers up, each time in a thread of its own. Not for several threads.

    :param find: returns them, or raises; may take its time.
    """

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._lookup: Future[str] | None = None
        self._not_before = float("-inf")

    def at_once(self) -> None:
        """It is time to look again."""
        self._not_before = float("-inf")

    def found(self, now: float, wait_s: float | None = LOOKUP_S) -> str | None:
        """What a lookup has found; one is begun where it is time to. None while there is nothing new.

        :param wait_s: a lookup that is begun is waited for so long; until it ends when it is None.
        :raises CoordinatorError: as the lookup did.
        """
        if self._lookup is None:
            if now < self._not_before:
                return None
            self._not_before = now + FIND_AGAIN_S
            lookup: Future[str] = Future()
            threading.Thread(target=self._look, args=(lookup,), name="kafka-finder", daemon=True).start()
            self._lookup = lookup
            wait([lookup], wait_s)
        if not self._lookup.done():
            return None
        ended, self._lookup = self._lookup, None
        return ended.result()

    def _look(self, lookup: Future[str]) -> None:
        try:
            lookup.set_result(self._find())
        except BaseException as error:  # noqa: BLE001  it is raised where the answer is taken
            lookup.set_exception(error)
