"""The lines of `zk-consumer run --events`, and the rules by which a reader checks them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from consumer.cli.output import EventLines, RecordLines
from consumer.consumer import Record
from consumer.errors import AssignmentFailed, CommitFailed
from coordinator.zk.znodes.partitions import TopicPartition
from tests.support.events import DEAD, JOINED, REBALANCING, STARTED, GroupEvents, RuleBroken, replayed

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
Event = tuple[str, dict[str, Any]]
START: Event = ("startup_complete", {})
END: Event = ("shutdown_complete", {})


def named(*numbers: int) -> list[dict[str, Any]]:
    return [{"topic": "t", "partition": number} for number in numbers]


def assigned(*numbers: int) -> Event:
    return "partitions_assigned", {"partitions": named(*numbers)}


def revoked(*numbers: int) -> Event:
    return "partitions_revoked", {"partitions": named(*numbers)}


def lost(*numbers: int) -> Event:
    return "partitions_lost", {"partitions": named(*numbers)}


def consumed(number: int, first: int, last: int) -> Event:
    count = last - first + 1
    one = {"topic": "t", "partition": number, "count": count, "minOffset": first, "maxOffset": last}
    return "records_consumed", {"count": count, "partitions": [one]}


def counted(total: int, count: int) -> Event:
    """Of the offsets 0 to 9 of t-0."""
    one = {**named(0)[0], "count": count, "minOffset": 0, "maxOffset": 9}
    return "records_consumed", {"count": total, "partitions": [one]}


def committed(number: int, offset: int) -> Event:
    return "offsets_committed", {"offsets": [{**named(number)[0], "offset": offset}], "success": True}


def group_after(*events: tuple[str, Event]) -> GroupEvents:
    group = GroupEvents()
    for at, (consumer, (name, fields)) in enumerate(events):
        group.take(consumer, json.dumps({"timestamp": at, "name": name, **fields}))
    return group


def by(consumer: str, *events: Event) -> list[tuple[str, Event]]:
    return [(consumer, event) for event in events]


JOINS = by("a", START, assigned(0, 1))


# ---- the reader


def test_a_consumer_that_joins_consumes_commits_and_leaves_keeps_the_rules() -> None:
    life = [*JOINS, *by("a", consumed(0, 0, 9), committed(0, 10), consumed(0, 10, 14), committed(0, 12))]
    group = group_after(*life)
    seen = group.consumers["a"]
    assert (seen.state, seen.position, group.committed, group.consumed) == (JOINED, {T0: 15}, {T0: 12}, 15)

    group = group_after(*life, *by("a", revoked(0, 1), END))

    seen = group.consumers["a"]
    assert (seen.state, seen.assigned, seen.revoked, seen.assignment) == (DEAD, 1, 1, set())
    assert (group.position, group.joined(), group.owners()) == ({T0: 15}, set(), {})


def test_cooperative_consumer_that_keeps_partitions_stays_joined_at_its_offsets() -> None:
    group = group_after(
        *JOINS, *by("a", consumed(1, 0, 4), revoked(0), consumed(1, 5, 6)), *by("b", START, assigned(0))
    )

    assert group.owners() == {T0: ["b"], T1: ["a"]}
    assert group.owners(of=["a"]) == {T1: ["a"]}
    assert group.joined() == {"a", "b"}
    assert group_after(*JOINS, *by("a", revoked(0, 1))).consumers["a"].state == REBALANCING
    assert group_after(*by("a", START)).consumers["a"].state == STARTED


def test_uncommitted_records_read_again_by_another_consumer_break_no_rule() -> None:
    first = by("a", consumed(0, 0, 9), committed(0, 5), lost(0, 1))

    group = group_after(*JOINS, *first, *by("b", START, assigned(0), consumed(0, 5, 9)))

    assert (group.consumed, group.position) == (15, {T0: 10})
    assert (group.consumers["a"].lost, group.consumers["a"].revoked) == (1, 1)


def test_a_commit_that_fails_moves_nothing() -> None:
    failed: Event = ("offsets_committed", {"offsets": [{**named(0)[0], "offset": 99}], "success": False, "error": "no"})

    assert group_after(*JOINS, *by("a", failed)).committed == {}


@pytest.mark.parametrize(
    "events, rule",
    [
        (by("a", START, consumed(0, 0, 1)), "a consumes while it is started"),
        ([*JOINS, *by("a", revoked(0, 1), consumed(0, 0, 1))], "a consumes while it is rebalancing"),
        ([*JOINS, *by("a", END, consumed(0, 0, 1))], "a consumes while it is dead"),
        ([*JOINS, *by("a", consumed(2, 0, 1))], "from t-2, which is not assigned to it"),
        ([*JOINS, *by("a", consumed(0, 0, 9), consumed(0, 11, 12))], "from 11 on, and stands at 10"),
        ([*JOINS, *by("a", consumed(0, 0, 9), consumed(0, 9, 12))], "from 9 on, and stands at 10"),
        ([*JOINS, *by("a", committed(2, 0))], "commits t-2, which is not assigned to it"),
        ([*JOINS, *by("a", committed(0, 0))], "commits 0 of t-0, and stands at -1"),
        ([*JOINS, *by("a", consumed(0, 0, 9), committed(0, 11))], "commits 11 of t-0, and stands at 10"),
        (
            [*JOINS, *by("a", consumed(0, 0, 9), committed(0, 10), revoked(0)), *by("b", START, assigned(0)),
             *by("b", consumed(0, 9, 12))],
            "from 9, and 10 is committed",
        ),
        (
            [*JOINS, *by("a", consumed(0, 0, 9)), *by("b", START, assigned(0), consumed(0, 0, 4)),
             *by("a", committed(0, 10))],
            "commits 10 of t-0, and the group stands at 5",
        ),
        ([*JOINS, *by("a", revoked(1, 2))], "which it has not"),
        ([*JOINS, *by("a", lost(2))], "which it has not"),
        ([*JOINS, *by("a", ("offsets_committed", {"offsets": [], "success": False}))], "does not say why"),
        (by("a", ("rebalance_complete", {})), "not known"),
        ([*JOINS, *by("a", counted(3, 10))], "cannot add"),
        ([*JOINS, *by("a", counted(9, 9))], "leaves records out"),
    ],
)  # fmt: skip
def test_broken_rule_is_named(events: list[tuple[str, Event]], rule: str) -> None:
    with pytest.raises(RuleBroken, match=rule):
        group_after(*events)


def test_the_lines_of_several_consumers_are_read_in_the_order_of_time() -> None:
    def lines(*events: tuple[int, Event]) -> list[str]:
        return [json.dumps({"timestamp": at, "name": name, **fields}) for at, (name, fields) in events]

    one = lines((1, START), (2, assigned(0)), (3, consumed(0, 0, 9)), (4, committed(0, 10)), (5, revoked(0)), (9, END))
    two = lines((2, START), (6, assigned(0)), (7, consumed(0, 10, 12)), (8, committed(0, 13)))

    group = replayed({"two": two, "one": one})

    assert (group.consumed, group.committed, group.owners()) == (13, {T0: 13}, {T0: ["two"]})


# ---- printed lines


def record(partition: int, offset: int, key: bytes | None = None, value: bytes | None = b"v") -> Record:
    return Record("t", partition, offset, 77, 0, key, value, (("h", b"x"),))


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_event_is_a_line_with_the_names_of_kafkas_verifiable_consumer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = EventLines("c1", lambda: 5)
    output.started()
    output.on_partitions_assigned(frozenset([T1, T0]))
    output.polled({T1: [record(1, 7), record(1, 8)], T0: [record(0, 3)]})
    output.committed({T1: 9, T0: 4})
    output.polled({})
    output.committed({})
    output.on_partitions_revoked(frozenset([T0]))
    output.not_committed({T1: 9}, CommitFailed("UnknownMemberId: evicted"))
    output.on_partitions_lost(frozenset([T1]))
    output.assignment_failed(AssignmentFailed("leader c2 (lag) failed: no data", "ask-0000000004"))
    output.ended()

    lines = printed(capsys)

    assert {line.pop("timestamp") for line in lines} == {5}
    t0, t1 = named(0, 1)
    assert lines == [
        {"name": "startup_complete"},
        {"name": "partitions_assigned", "partitions": [t0, t1]},
        {
            "name": "records_consumed",
            "count": 3,
            "partitions": [
                {**t0, "count": 1, "minOffset": 3, "maxOffset": 3},
                {**t1, "count": 2, "minOffset": 7, "maxOffset": 8},
            ],
        },
        {"name": "offsets_committed", "offsets": [{**t0, "offset": 4}, {**t1, "offset": 9}], "success": True},
        {"name": "partitions_revoked", "partitions": [t0]},
        {
            "name": "offsets_committed",
            "offsets": [{**t1, "offset": 9}],
            "success": False,
            "error": "UnknownMemberId: evicted",
        },
        {"name": "partitions_lost", "partitions": [t1]},
        {
            "name": "assignment_failed",
            "ask": "ask-0000000004",
            "error": "leader c2 (lag) failed: no data (ask-0000000004)",
        },
        {"name": "shutdown_complete"},
    ]


def test_verbose_prints_each_record_before_the_event_that_counts_it(capsys: pytest.CaptureFixture[str]) -> None:
    EventLines("c1", lambda: 5, is_verbose=True).polled({T0: [record(0, 3, b"k"), record(0, 4, value=b"\xff")]})

    first, second, count = printed(capsys)

    assert first == {"timestamp": 5, "name": "record_data", **named(0)[0], "offset": 3, "key": "k", "value": "v"}
    assert (second["key"], second["value_base64"], second["offset"]) == (None, "/w==", 4)
    assert count["name"] == "records_consumed"


def test_without_events_each_record_is_a_line_and_a_failed_commit_is_one_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = RecordLines("c1")
    output.started()
    output.polled({T0: [record(0, 3, b"k")]})
    output.not_committed({T0: 4}, CommitFailed("no"))
    output.ended()

    found = capsys.readouterr()

    shown = {"offset": 3, "timestamp": 77, "key": "k", "value": "v", "headers": [{"name": "h", "value": "x"}]}
    assert [json.loads(line) for line in found.out.splitlines()] == [{**named(0)[0], **shown}]
    assert found.err == "error: no\n"
