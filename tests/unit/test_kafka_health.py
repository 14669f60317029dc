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


A_UP, B_UP = broker("a:1/1", "UP", A), broker("b:2/2", "UP", B)
BOTH_UP, OF_BOTH = broker("a:1/1", "UP", A, B), (A, B)
B_CONNECTS = broker("b:2/2", "TRY_CONNECT", B, waitresp_cnt=0, rxidle=-1)
B_INIT = broker("b:2/2", "INIT", B, waitresp_cnt=0, rxidle=-1)
A_UNUSED = broker("a:1/1", "INIT", waitresp_cnt=0, rxidle=-1, txidle=-1)
ALL_DOWN = [broker(f"{name}/bootstrap", "TRY_CONNECT", source="configured", rxidle=-1) for name in ("a:1", "b:2")]
GONE = "Kafka broker unavailable, retrying: broker=b:2 reason=Connection refused"


def silent(name: str, place: Place, seconds: int = 9) -> dict[str, Any]:
    return broker(name, "UP", place, rxidle=seconds * 1_000_000, txidle=seconds * 1_000_000)


Step = tuple[Any, ...]
"""Seconds, with these brokers, and the unavailable leaders after them; other partitions that are assigned meanwhile."""
CASES: dict[str, tuple[tuple[Place, ...], list[Step], list[str], int]] = {
    # Metadata forgets it after three: its partition has no leader, and it is not in the statistics.
    "killed leader is unavailable after five seconds and logged once": (
        OF_BOTH,
        [
            (3, [A_UP, B_UP], {}), (3, [A_UP, B_CONNECTS], {}), (2, [A_UP], {}), (58, [A_UP], {B: "b:2"}),
            (1, [A_UP, B_INIT], {B: "b:2"}), (3, [A_UP, B_UP], {}),
        ],
        [GONE, "Kafka broker available: broker=b:2"], 0,
    ),
    "hung leader is unavailable as soon as it is silent for five seconds": (
        OF_BOTH,
        [
            (3, [A_UP, B_UP], {}),
            *((1, [A_UP, silent("b:2/2", B, second)], {B: "b:2"} if second >= 6 else {}) for second in range(1, 10)),
        ],
        ["Kafka broker unavailable, retrying: broker=b:2 reason=no answer for 6 s"], 0,
    ),
    "partition with another leader is available again": (
        OF_BOTH, [(3, [A_UP, B_UP], {}), (10, [A_UP], {B: "b:2"}), (1, [BOTH_UP], {})],
        [GONE, "Kafka broker replaced by other leaders: broker=b:2"], 0,
    ),
    "partition that never had a leader is reported so": (
        OF_BOTH, [(10, [A_UP], {B: ""})],
        ["Kafka broker unavailable, retrying: broker=none reason=the partition has no leader"], 0,
    ),
    "short restart of a broker is not reported": (
        OF_BOTH, [(3, [A_UP, B_UP], {}), (4, [A_UP], {})] * 3 + [(3, [A_UP, B_UP], {})], [], 0,
    ),
    "partition that is not fetched has no unavailable leader": (
        (A,), [(3, [A_UP, B_UP], {}, B), (10, [A_UP], {B: "b:2"}, B), (1, [A_UP], {})],
        [GONE, "Kafka broker replaced by other leaders: broker=b:2"], 0,
    ),
    # librdkafka drops all that it has learned then, and begins again with the given servers.
    "outage of all brokers is logged once without their partitions": (
        OF_BOTH, [(3, [A_UP, B_UP], {}), (30, ALL_DOWN, {}), (3, [A_UP, B_UP], {})],
        [
            "all Kafka brokers down, retrying: servers=a:1,b:2 outages=1 reason=Connection refused",
            "Kafka brokers available: servers=a:1,b:2 away_s=30.0",
        ], 1,
    ),
    "two hung brokers are an outage": (
        OF_BOTH, [(3, [A_UP, B_UP], {}), (1, [silent("a:1/1", A), silent("b:2/2", B)], {})],
        ["all Kafka brokers down, retrying: servers=a:1,b:2 outages=1 reason=no answer for 9 s"], 1,
    ),
    "outage is not seen by a reader without partitions": ((), [(10, [A_UNUSED], {})], [], 0),
    # A broker that leads no assigned partition has no connection.
    "hung leader is no outage while another broker was not needed yet": (
        (B,), [(3, [A_UNUSED, B_UP], {}), (3, [A_UNUSED, silent("b:2/2", B)], {B: "b:2"})],
        ["Kafka broker unavailable, retrying: broker=b:2 reason=no answer for 9 s"], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("assigned", "steps", "messages", "outages"), CASES.values(), ids=CASES)
def test_health_follows_the_statistics(
    assigned: tuple[Place, ...], steps: list[Step], messages: list[str], outages: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics come once a second; after each step these partitions are without their leaders."""
    caplog.set_level(logging.INFO)
    health, now = Health(), 1000.0
    for seconds, brokers, unavailable, *others in steps:
        for _ in range(seconds):
            now += 1
            reasons = {"b:2": "Connection refused"}
            health.update("a:1,b:2", parsed_stats(stats(*brokers), 0.1), (*assigned, *others), reasons, now)
        assert health.unavailable == unavailable

    assert caplog.messages == messages
    assert health.outages == outages
