"""Health of Kafka's brokers, from librdkafka's statistics as it writes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from consumer.logs.kafka.client import BrokerStats, Place, parsed_stats
from consumer.logs.kafka.connection import Health

A, B = ("t", 0), ("t", 1)


def broker(name: str, state: str = "UP", *leads: Place, source: str = "learned", **fields: int) -> dict[str, Any]:
    """A broker as in librdkafka's statistics; times are microseconds."""
    return {
        "name": name,
        "nodeid": 1,
        "nodename": name.partition("/")[0],
        "source": source,
        "state": state,
        "stateage": 9_000_000,
        "waitresp_cnt": 1,
        "txidle": 60_000,
        "rxidle": 60_000,
        "req": {"Fetch": 20, "ListOffsets": 0},
        "toppars": {f"{topic}-{number}": {"topic": topic, "partition": number} for topic, number in leads},
    } | fields


def stats(*brokers: Mapping[str, Any]) -> str:
    whole = {
        "name": 'zk-group-coordinator#consumer-1 "brokers":{',
        "client_id": "zk-group-coordinator",
        "type": "consumer",
        "ts": 5016483227792,
        "brokers": {each["name"]: each for each in brokers},
        "topics": {"t": {"topic": "t", "partitions": {"0": {"brokers": {}}}}},
        "cgrp": {"state": "up"},
    }
    return json.dumps(whole, separators=(",", ":"))


def test_broker_that_answers_is_up_and_leads_its_partitions() -> None:
    text = stats(broker("a:1/1", "UP", A), broker("b:2/2", "TRY_CONNECT", B, rxidle=-1, waitresp_cnt=0))

    assert parsed_stats(text, 0.1) == [
        BrokerStats("a:1", True, 0.0, frozenset({A})),
        BrokerStats("b:2", False, 0.0, frozenset({B})),
    ]


def test_group_coordinators_connection_is_no_broker() -> None:
    text = stats(broker("GroupCoordinator", "UP", source="logical", rxidle=290_000_000))

    assert parsed_stats(text, 0.1) == []


@pytest.mark.parametrize(
    ("fields", "is_up"),
    [
        ({"rxidle": 4_900_000, "txidle": 4_900_000}, True),
        ({"rxidle": 5_200_000, "txidle": 5_200_000}, False),
        ({"rxidle": 60_000_000, "txidle": 60_000_000, "waitresp_cnt": 0}, True),
        ({"rxidle": 60_000_000, "txidle": 1000}, True),
        ({"rxidle": -1, "txidle": -1, "waitresp_cnt": 0}, True),
    ],
    ids=["slow", "hung", "idle", "asked after it was idle", "new"],
)
def test_broker_that_leaves_a_request_unanswered_is_down(fields: dict[str, int], is_up: bool) -> None:
    (found,) = parsed_stats(stats(broker("a:1/1", "UP", A, **fields)), 0.1)

    assert found.is_up == is_up


def test_wait_of_a_fetch_for_records_is_no_silence() -> None:
    (found,) = parsed_stats(stats(broker("a:1/1", "UP", A, rxidle=29_000_000, txidle=29_000_000)), 30.0)

    assert found.is_up


class Watched:
    """Health that gets statistics once a second."""

    def __init__(self) -> None:
        self.health = Health()
        self.now = 1000.0

    def after(self, seconds: int, *brokers: dict[str, Any], assigned: tuple[Place, ...] = (A, B)) -> dict[Place, str]:
        for _ in range(seconds):
            self.now += 1
            reasons = {"b:2": "Connection refused"}
            self.health.update("a:1,b:2", parsed_stats(stats(*brokers), 0.1), assigned, reasons, self.now)
        return dict(self.health.unavailable)


@pytest.fixture
def watched(caplog: pytest.LogCaptureFixture) -> Watched:
    caplog.set_level(logging.INFO)
    return Watched()


HEALTHY = (broker("a:1/1", "UP", A), broker("b:2/2", "UP", B))


def test_killed_leader_is_unavailable_after_five_seconds_and_logged_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Metadata forgets it after three: its partition has no leader, and it is not in the statistics."""
    first = broker("a:1/1", "UP", A)
    assert watched.after(3, *HEALTHY) == {}
    assert watched.after(3, first, broker("b:2/2", "TRY_CONNECT", B, waitresp_cnt=0, rxidle=-1)) == {}
    assert watched.after(60, first) == {B: "b:2"}
    assert watched.after(1, first, broker("b:2/2", "INIT", B, waitresp_cnt=0, rxidle=-1)) == {B: "b:2"}
    assert watched.after(3, *HEALTHY) == {}

    assert caplog.messages == [
        "Kafka broker unavailable, retrying: broker=b:2 reason=Connection refused",
        "Kafka broker available: broker=b:2",
    ]
    assert watched.health.outages == 0


def test_hung_leader_is_unavailable_as_soon_as_it_is_silent_for_five_seconds(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.after(3, *HEALTHY)
    for second in range(1, 10):
        us = second * 1_000_000
        found = watched.after(1, HEALTHY[0], broker("b:2/2", "UP", B, rxidle=us, txidle=us))
        assert found == ({B: "b:2"} if second >= 6 else {})

    assert caplog.messages == ["Kafka broker unavailable, retrying: broker=b:2 reason=no answer for 6 s"]


def test_partition_with_another_leader_is_available_again(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.after(3, *HEALTHY)
    assert watched.after(10, HEALTHY[0]) == {B: "b:2"}
    assert watched.after(1, broker("a:1/1", "UP", A, B)) == {}

    assert caplog.messages[-1] == "Kafka broker replaced by other leaders: broker=b:2"


def test_partition_that_never_had_a_leader_is_reported_so(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    assert watched.after(10, HEALTHY[0]) == {B: ""}

    assert caplog.messages == ["Kafka broker unavailable, retrying: broker=none reason=the partition has no leader"]


def test_short_restart_of_a_broker_is_not_reported(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        watched.after(3, *HEALTHY)
        watched.after(4, HEALTHY[0])
    watched.after(3, *HEALTHY)

    assert (caplog.messages, watched.health.unavailable) == ([], {})


def test_partition_that_is_not_fetched_has_no_unavailable_leader(watched: Watched) -> None:
    watched.after(3, *HEALTHY)
    assert watched.after(10, HEALTHY[0]) == {B: "b:2"}

    assert watched.after(1, HEALTHY[0], assigned=(A,)) == {}


def test_outage_of_all_brokers_is_logged_once_without_their_partitions(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """librdkafka drops all that it has learned then, and begins again with the given servers."""
    watched.after(3, *HEALTHY)
    down = [broker(f"{name}/bootstrap", "TRY_CONNECT", source="configured", rxidle=-1) for name in ("a:1", "b:2")]
    assert watched.after(30, *down) == {}
    assert watched.health.since == 1004.0
    watched.after(3, *HEALTHY)

    assert caplog.messages == [
        "all Kafka brokers down, retrying: servers=a:1,b:2 outages=1 reason=Connection refused",
        "Kafka brokers available: servers=a:1,b:2 away_s=30.0",
    ]


def test_two_hung_brokers_are_an_outage(watched: Watched) -> None:
    watched.after(3, *HEALTHY)
    silent = {"rxidle": 9_000_000, "txidle": 9_000_000}
    watched.after(1, broker("a:1/1", "UP", A, **silent), broker("b:2/2", "UP", B, **silent))

    assert watched.health.outages == 1


def test_outage_is_not_seen_by_a_reader_without_partitions(watched: Watched) -> None:
    watched.after(10, broker("a:1/1", "INIT", waitresp_cnt=0, rxidle=-1), assigned=())

    assert watched.health.outages == 0


def test_hung_leader_is_no_outage_while_another_broker_was_not_needed_yet(watched: Watched) -> None:
    """A broker that leads no assigned partition has no connection."""
    other = broker("a:1/1", "INIT", waitresp_cnt=0, rxidle=-1, txidle=-1)
    watched.after(3, other, broker("b:2/2", "UP", B), assigned=(B,))
    hung = broker("b:2/2", "UP", B, rxidle=9_000_000, txidle=9_000_000)

    assert watched.after(3, other, hung, assigned=(B,)) == {B: "b:2"}
    assert watched.health.outages == 0
