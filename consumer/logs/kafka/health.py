"""Health of Kafka's brokers, from librdkafka's statistics: outages of all of them, and of leaders of partitions.

librdkafka's `stats_cb` has the state of each connection and the partitions that each broker leads. A broker that hangs
stays `UP` there: it is silent when a request waits and nothing was received for long. One that metadata does not have
any more is not in it at all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

SILENT_S = 5.0
"""Seconds without any answer to a pending request, besides `fetch.wait.max.ms`: then a broker is down."""

UNAVAILABLE_S = 5.0
"""Seconds after which the leader of a partition is reported: a restart, or the end of a connection, may be shorter."""

_BROKERS = '"brokers":'

Place = tuple[str, int]
"""A topic and a partition's number."""


class BrokerStats(NamedTuple):
    """A broker in one event of librdkafka's statistics.

    :ivar silent_s: seconds for which a request has waited longer than it should.
    :ivar leads: the partitions that librdkafka requests from it.
    :ivar is_unused: whether there is no connection because none was needed.
    """

    address: str
    is_connected: bool
    silent_s: float
    leads: frozenset[Place]
    is_unused: bool = False

    @property
    def is_up(self) -> bool:
        return self.is_connected and self.silent_s < SILENT_S


def parsed_stats(text: str, fetch_wait_s: float) -> list[BrokerStats]:
    """The brokers in librdkafka's statistics. The partitions' part, which may be megabytes, is not parsed."""
    brokers, _ = json.JSONDecoder().raw_decode(text, text.index(_BROKERS) + len(_BROKERS))
    return [_broker(each, fetch_wait_s) for each in brokers.values() if each["source"] in ("learned", "configured")]


def _broker(stats: Mapping[str, Any], fetch_wait_s: float) -> BrokerStats:
    idle_s = min(stats["txidle"], stats["rxidle"]) / 1e6  # it may have been idle before the request
    silent_s = idle_s - fetch_wait_s if stats["waitresp_cnt"] else 0.0
    leads = frozenset((each["topic"], each["partition"]) for each in stats["toppars"].values())
    is_unused = stats["source"] == "learned" and stats["state"] == "INIT" and not leads
    return BrokerStats(stats["nodename"], stats["state"] == "UP", max(0.0, silent_s), leads, is_unused)


class Health:
    """Logs each outage once, and its end once. Times are those of one monotonic clock, in seconds.

    :ivar outages: number of outages of all brokers.
    :ivar since: begin of the current one; None without one.
    :ivar unavailable: assigned partitions whose leader is unavailable while others are up -> its address; "" for none.
    :ivar leaders: the address of each partition's leader, also as metadata names it; "" for none.
    """

    def __init__(self) -> None:
        self.outages = 0
        self.since: float | None = None
        self.unavailable: Mapping[Place, str] = {}
        self.leaders: dict[Place, str] = {}
        self._waiting: dict[Place, float] = {}

    def all_down(self, servers: str, reason: str, now: float) -> None:
        """No broker is up, or none is known."""
        self.restart()
        if self.since is None:
            self.since = now
            self.outages += 1
            log.warning(
                "all Kafka brokers down, retrying: servers=%s outages=%d reason=%s", servers, self.outages, reason
            )

    def end_outage(self, servers: str, now: float) -> None:
        """A broker is up."""
        if self.since is not None:
            log.info("Kafka brokers available: servers=%s away_s=%.1f", servers, now - self.since)
            self.since = None

    def restart(self) -> None:
        """Another client has no connections yet."""
        self.unavailable, self._waiting = {}, {}

    def update(
        self,
        servers: str,
        brokers: Sequence[BrokerStats],
        assigned: Collection[Place],
        reasons: Mapping[str, str],
        now: float,
    ) -> None:
        """Apply one event.

        :param assigned: the partitions that are fetched.
        :param reasons: the last error of each address.
        """
        silent = {each.address: each.silent_s for each in brokers if each.silent_s >= SILENT_S}
        reasons = {**reasons, **{address: f"no answer for {silent_s:.0f} s" for address, silent_s in silent.items()}}
        up = [broker for broker in brokers if broker.is_up]
        if not up and assigned and not any(broker.is_unused for broker in brokers):
            return self.all_down(servers, next(iter(reasons.values()), "not connected"), now)
        if up:
            self.end_outage(servers, now)
        named = {place: broker.address for broker in brokers for place in broker.leads}
        led = {place for broker in up for place in broker.leads}
        self.leaders = {place: named.get(place) or self.leaders.get(place, "") for place in assigned}
        self._waiting = {
            place: self._waiting.get(place, now - silent.get(self.leaders[place], 0.0))
            for place in assigned
            if place not in led
        }
        before = set(self.unavailable.values())
        late = (place for place, since in self._waiting.items() if now - since >= UNAVAILABLE_S)
        self.unavailable = {place: self.leaders[place] for place in late}
        after = set(self.unavailable.values())
        for address in sorted(after - before):
            reason = reasons.get(address, "not connected") if address else "the partition has no leader"
            log.warning("Kafka broker unavailable, retrying: broker=%s reason=%s", address or "none", reason)
        for address in sorted(before - after):
            if any(broker.address == address for broker in up):
                log.info("Kafka broker available: broker=%s", address)
            else:
                log.info("Kafka broker replaced by other leaders: broker=%s", address or "none")
