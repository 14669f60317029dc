"""Whether Kafka's brokers answer: said once when none does any more, and once when one does again.

One of several that cannot be reached is said, too: the others answer, and only what it leads stands still.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

log = logging.getLogger(__name__)

SUSPECT_S = 1.0
"""A broker that has answered nothing for so long after librdkafka lost all of them is away, whatever still comes."""

UNREACHED_S = 10.0
"""Connections that fail for so long are no quick restart of a broker, nor the end of one that was not needed."""

FAILURES = 3
"""Fewer of them may be the ends of connections that had been good between."""

SILENT_S = 30.0
"""After so long without a failure the next one is another. librdkafka tries, and fails, at least every two seconds."""


class Trouble(NamedTuple):
    """Failures of the connections to one address: the first, the last, how many, and whether they were said."""

    since: float
    last: float
    times: int
    is_said: bool


class Outage:
    """What is known of it. Times are those of one monotonic clock, in seconds.

    :ivar count: how often all brokers have gone.
    :ivar since: when they went; None while one is there.
    """

    def __init__(self) -> None:
        self.count = 0
        self.since: float | None = None
        self._suspected: tuple[float, str] | None = None
        self._troubles: dict[str, Trouble] = {}

    def begin(self, servers: str, reason: str, now: float) -> None:
        """No broker is there."""
        self._suspected = None
        if self.since is None:
            self.since = now
            self.count += 1
            log.warning("kafka is away, waiting: servers=%s outages=%d reason=%s", servers, self.count, reason)

    def suspect(self, reason: str, now: float) -> None:
        """librdkafka has lost all brokers, and records came beside that: from before, or from one that is back."""
        if self.since is None and self._suspected is None:
            self._suspected = (now, reason)

    def trouble(self, servers: str, reason: str, now: float) -> None:
        """A connection has failed: `reason` is librdkafka's `address/broker: what went wrong`."""
        address, is_brokers, _ = reason.partition(": ")[0].rpartition("/")
        if not is_brokers:
            return  # as that of the coordinator of a group, which nobody needs
        self._troubles = {key: each for key, each in self._troubles.items() if now - each.last <= SILENT_S}
        since, _, times, is_said = self._troubles.get(address, Trouble(now, now, 0, is_said=False))
        if not is_said and self.since is None and times + 1 >= FAILURES and now - since >= UNREACHED_S:
            is_said = True
            log.warning("kafka broker cannot be reached: servers=%s reason=%s", servers, reason)
        self._troubles[address] = Trouble(since, now, times + 1, is_said)

    def judge(self, servers: str, answered: float, now: float) -> None:
        """Only an answer tells that a broker is there: records may have been waiting in librdkafka since before.

        :param answered: when the last question was asked that a broker has answered.
        """
        if self.since is not None and answered >= self.since:
            away_s, self.since = now - self.since, None
            self._troubles.clear()  # which were those of all
            log.info("kafka is back: servers=%s away_s=%.1f", servers, away_s)
        if self._suspected is not None:
            at, reason = self._suspected
            if answered >= at:
                self._suspected = None
            elif now - at >= SUSPECT_S:
                self.begin(servers, reason, at)
