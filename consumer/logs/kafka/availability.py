"""Availability of Kafka's brokers: an outage of all is logged once, and its end once.

A single unreachable broker is logged, too: only the partitions that it leads are unavailable.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

log = logging.getLogger(__name__)

SUSPECT_S = 1.0
"""Seconds without an answer after librdkafka lost all brokers that confirm an outage, despite buffered records."""

UNREACHABLE_S = 10.0
"""Seconds of failing connections that rule out a quick restart of a broker, or the close of an idle connection."""

MIN_FAILURES = 3
"""Minimum number of failures; fewer may be the ends of connections that were good in between."""

SILENT_S = 30.0
"""Seconds without a failure that end a series. librdkafka reconnects, and fails, at least every two seconds."""


class ConnectionFailures(NamedTuple):
    """Failed connections to one address: the first, the last, their number, and whether they were logged."""

    since: float
    last: float
    times: int
    is_logged: bool


class Outage:
    """State of an outage. Times are those of one monotonic clock, in seconds.

    :ivar count: number of outages.
    :ivar since: begin of the current one; None without one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.since: float | None = None
        self._suspected: tuple[float, str] | None = None
        self._failures: dict[str, ConnectionFailures] = {}

    def begin(self, servers: str, reason: str, now: float) -> None:
        """All brokers are down."""
        self._suspected = None
        if self.since is None:
            self.since = now
            self.count += 1
            log.warning(
                "all Kafka brokers down, retrying: servers=%s outages=%d reason=%s", servers, self.count, reason
            )

    def suspect_outage(self, reason: str, now: float) -> None:
        """librdkafka has lost all brokers, while records arrived: buffered ones, or from a broker that is back."""
        if self.since is None and self._suspected is None:
            self._suspected = (now, reason)

    def connection_failed(self, servers: str, reason: str, now: float) -> None:
        """A connection has failed: `reason` is librdkafka's `address/broker: error`."""
        address, is_brokers, _ = reason.partition(": ")[0].rpartition("/")
        if not is_brokers:
            return  # for example the unused group coordinator
        self._failures = {key: each for key, each in self._failures.items() if now - each.last <= SILENT_S}
        since, _, times, is_logged = self._failures.get(address, ConnectionFailures(now, now, 0, is_logged=False))
        if not is_logged and self.since is None and times + 1 >= MIN_FAILURES and now - since >= UNREACHABLE_S:
            is_logged = True
            log.warning("Kafka broker unreachable: servers=%s reason=%s", servers, reason)
        self._failures[address] = ConnectionFailures(since, now, times + 1, is_logged)

    def judge(self, servers: str, answered: float, now: float) -> None:
        """End an outage, or confirm a suspected one. Only an answer proves a broker up: records may be buffered.

        :param answered: time of the last request that a broker has answered.
        """
        if self.since is not None and answered >= self.since:
            away_s, self.since = now - self.since, None
            self._failures.clear()  # those were the outage's
            log.info("Kafka brokers available: servers=%s away_s=%.1f", servers, away_s)
        if self._suspected is not None:
            at, reason = self._suspected
            if answered >= at:
                self._suspected = None
            elif now - at >= SUSPECT_S:
                self.begin(servers, reason, at)
