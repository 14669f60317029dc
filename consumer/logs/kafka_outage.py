"""Whether Kafka's brokers answer: said once when none does any more, and once when one does again."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

SUSPECT_S = 1.0
"""A broker that has answered nothing for so long after librdkafka lost all of them is away, whatever still comes."""


class Outage:
    """What is known of it. Times are those of one monotonic clock, in seconds.

    :ivar count: how often all brokers have gone.
    :ivar since: when they went; None while one is there.
    """

    def __init__(self) -> None:
        self.count = 0
        self.since: float | None = None
        self._suspected: tuple[float, str] | None = None

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

    def judge(self, servers: str, answered: float, now: float) -> None:
        """Only an answer tells that a broker is there: records may have been waiting in librdkafka since before.

        :param answered: when the last question was asked that a broker has answered.
        """
        if self.since is not None and answered >= self.since:
            away_s, self.since = now - self.since, None
            log.info("kafka is back: servers=%s away_s=%.1f", servers, away_s)
        if self._suspected is not None:
            at, reason = self._suspected
            if answered >= at:
                self._suspected = None
            elif now - at >= SUSPECT_S:
                self.begin(servers, reason, at)
