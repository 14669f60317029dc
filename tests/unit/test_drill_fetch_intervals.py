"""Fetch intervals of consumers, for a drill's report and its numbers."""

from __future__ import annotations

import json
from typing import Any

from coordinator.zk.znodes.paths import GroupPaths
from drills.evidence.fetch_intervals import doubly_held_s, gaps, holders, holds, last_holders, read_elsewhere

Made = dict[str, Any]
FOREVER = float("inf")


def of(consumer: str, life: str) -> Made:
    return {"group": "g", "consumer": consumer, "incarnation": life}


def begin(at: float, who: str, life: str, *numbers: int, first: int = 0) -> Made:
    parts = {"t": {str(number): first for number in numbers}}
    consumer = who.partition("#")[0]
    return {"at": at, "who": who, "event": "begin", **of(consumer, life), "partitions": parts}


def halt(at: float, who: str, life: str, *numbers: int) -> Made:
    parts = {"t": list(numbers)}
    return {"at": at, "who": who, "event": "halt", **of(who.partition("#")[0], life), "partitions": parts}


def channel(at: float, who: str, life: str, ended: str | None = None, of: str = "a") -> Made:
    """A commit of the consumer's channel."""
    data = json.dumps({"incarnation": life, "running": {}, "ended": ended})
    op = {"op": "set", "path": GroupPaths("g").channel(of), "data": data, "version": 4}
    return {"at": at, "who": who, "event": "commit", "zxid": round(10 * at), "ops": [op]}


def lease(at: float, who: str, until: float) -> Made:
    return {"at": at, "who": who, "event": "lease", "role": "consumer", "until": until}


def spans(events: list[Made]) -> list[tuple[str, float, float]]:
    return [(hold.consumer, hold.begun, hold.until) for hold in holds(events)]


def test_a_hold_lasts_from_its_begin_to_its_halt() -> None:
    events = [begin(1.0, "a#1", "x", 0, 1), halt(3.0, "a#1", "x", 0)]

    assert spans(events) == [("a", 1.0, 3.0), ("a", 1.0, FOREVER)]


def test_a_hold_ends_with_its_process() -> None:
    events = [begin(1.0, "a#1", "x", 0), {"at": 4.0, "who": "a#1", "event": "exit", "why": "killed"}]

    assert spans(events) == [("a", 1.0, 4.0)]


def test_hold_ends_when_its_process_has_left_although_its_application_hangs() -> None:
    left = channel(4.0, "a#1", "life-1", "left by itself: poll was not called")
    events = [
        {"at": 0.1, "who": "node-1#1", "event": "start", "kind": "node"},
        channel(0.5, "a#1", "life-1"),
        begin(1.0, "a#1", "life-1", 0),
        left,
        begin(4.2, "b#1", "life-2", 0),
        halt(6.0, "a#1", "life-1", 0),
    ]

    assert spans(events) == [("a", 1.0, 4.0), ("b", 4.2, FOREVER)]
    assert doubly_held_s(holds(events)) == 0.0
    evicted = [{**left, "who": "node-1#1"} if event is left else event for event in events]
    assert spans(evicted)[0] == ("a", 1.0, 6.0), "an evicted consumer may fetch until its lease lapses"


def test_hold_ends_when_its_lease_lapses_although_its_process_reports_it_later() -> None:
    events = [
        lease(1.0, "a#1", 2.5),
        begin(1.1, "a#1", "x", 0),
        lease(2.0, "a#1", 3.5),
        halt(9.0, "a#1", "x", 0),
    ]

    assert spans(events) == [("a", 1.1, 3.5)]


def test_hold_pauses_while_its_lease_has_expired_and_resumes_on_renewal() -> None:
    events = [lease(1.0, "a#1", 2.5), begin(1.1, "a#1", "x", 0), lease(6.0, "a#1", 9.5)]

    assert spans(events) == [("a", 1.1, 2.5), ("a", 6.0, 9.5)]
    assert gaps(holds(events), 2.0, 8.0) == {("t", 0): [(2.5, 6.0)]}


def test_hold_continues_while_its_lease_is_renewed_in_time() -> None:
    events = [
        lease(1.0, "a#1", 2.5),
        begin(1.0, "a#1", "x", 0),
        lease(2.0, "a#1", 3.5),
        lease(3.0, "a#1", 4.5),
        halt(4.0, "a#1", "x", 0),
    ]

    assert spans(events) == [("a", 1.0, 4.0)]


def test_hold_ends_for_good_when_another_process_registers_under_its_name() -> None:
    events = [
        channel(0.5, "a#1", "x"),
        begin(1.0, "a#1", "x", 0),
        channel(2.0, "a#2", "y"),
        begin(2.5, "a#1", "x", 1),
        begin(3.0, "a#2", "y", 0),
    ]

    assert spans(events) == [("a", 1.0, 2.0), ("a", 3.0, FOREVER)]


def test_hold_ends_when_its_session_is_ended_with_its_password() -> None:
    events = [
        {"at": 0.5, "who": "a#1", "event": "registered", **of("a", "x"), "session": 7},
        begin(1.0, "a#1", "x", 0),
        {"at": 2.0, "who": "server", "event": "closed", "why": "killed", "session": 7, "zxid": 1},
        halt(3.0, "a#1", "x", 0),
    ]

    assert spans(events) == [("a", 1.0, 2.0)]
    events[2]["why"] = "expired"
    assert spans(events) == [("a", 1.0, 3.0)], "its lease covers that"


def test_gaps_are_the_times_without_a_fetching_consumer() -> None:
    events = [begin(0.0, "a#1", "x", 0, 1), halt(2.0, "a#1", "x", 0), begin(2.5, "b#1", "z", 0)]

    assert gaps(holds(events), 1.0, 5.0) == {("t", 0): [(2.0, 2.5)], ("t", 1): []}


def test_abandoned_partition_has_a_standstill_to_the_end() -> None:
    events = [begin(0.0, "a#1", "x", 0), halt(2.0, "a#1", "x", 0)]

    assert gaps(holds(events), 1.0, 5.0) == {("t", 0): [(2.0, 5.0)]}


def test_time_with_two_fetching_consumers_is_counted() -> None:
    events = [begin(0.0, "a#1", "x", 0), begin(1.5, "b#1", "z", 0), halt(2.0, "a#1", "x", 0)]

    assert doubly_held_s(holds(events)) == 0.5
    assert doubly_held_s(holds([begin(0.0, "a#1", "x", 0), halt(1.0, "a#1", "x", 0), begin(1.0, "b#1", "z", 0)])) == 0.0


def test_holders_are_those_of_a_moment() -> None:
    found = holds([begin(0.0, "a#1", "x", 0, 1), halt(2.0, "a#1", "x", 0), begin(2.5, "b#1", "z", 0)])

    assert holders(found, 1.0) == {("t", 0): "a", ("t", 1): "a"}
    assert holders(found, 2.2) == {("t", 1): "a"}
    assert holders(found, 3.0) == {("t", 0): "b", ("t", 1): "a"}


def test_last_holder_is_known_though_its_lease_has_just_lapsed() -> None:
    """On a busy machine a fault may occur while a lease is not renewed; its partitions keep their owner."""
    found = holds(
        [lease(0.0, "a#1", 2.0), begin(0.0, "a#1", "x", 0), lease(3.0, "a#1", 9.0), begin(9.5, "b#1", "z", 0)]
    )

    assert holders(found, 2.5) == {}
    assert last_holders(found, 2.5) == {("t", 0): "a"}
    assert last_holders(found, 9.5) == {("t", 0): "b"}


def test_offsets_read_by_an_application_end_where_the_next_one_begins() -> None:
    events = [
        begin(0.0, "a#1", "x", 0, first=10),
        begin(1.0, "app#1", "y", 0, first=25),
        begin(2.0, "a#1", "x", 0, first=40),
        begin(3.0, "app#1", "y", 0, first=90),
    ]

    assert read_elsewhere(events, {"app"}) == {("t", 0): 15}
