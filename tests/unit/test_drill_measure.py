"""Measurements of a drill's history: T0 to T5, standstill, and moves."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.zk.znodes.paths import COORDINATOR, GroupPaths
from coordinator.zk.znodes.records import START_FETCHER, STOP_FETCHER, Command
from drills.evidence.measurements import BROKER_RETURNS, least_moved, measured

Made = dict[str, Any]
GROUP = GroupPaths("g")


def event(at: float, who: str, kind: str, /, **fields: Any) -> Made:
    return {"at": at, "who": who, "event": kind, **fields}


def begin(at: float, who: str, *numbers: int) -> Made:
    parts = {"t": {str(number): 0 for number in numbers}}
    return event(at, who, "begin", group="g", consumer=who.partition("#")[0], incarnation=who, partitions=parts)


def halt(at: float, who: str, *numbers: int) -> Made:
    parts = {"t": list(numbers)}
    return event(at, who, "halt", group="g", consumer=who.partition("#")[0], incarnation=who, partitions=parts)


def commit(at: float, who: str, *ops: Made) -> Made:
    return event(at, who, "commit", zxid=round(100 * at), ops=list(ops))


def sent(consumer: str, number: int, option: str) -> Made:
    path = f"{GROUP.channel(consumer)}/command-{number:010d}"
    command = Command(option, epoch=1, generation=2, incarnation=f"{consumer}#1")
    return {"op": "create", "path": path, "data": command.to_bytes().decode(), "ephemeral": False}


def done(consumer: str, number: int) -> list[Made]:
    name = f"command-{number:010d}"
    channel = GROUP.channel(consumer)
    return [
        {"op": "set", "path": channel, "data": f'{{"command":"{name}"}}', "version": 2},
        {"op": "delete", "path": f"{channel}/{name}"},
    ]


@pytest.fixture
def killed() -> list[Made]:
    """Of a and b the first is killed at 10 s; its session ends at 12 s, and b has everything at 13 s."""
    return [
        event(0.0, "server", "run"),
        commit(0.9, "b#1", {"op": "create", "path": GROUP.channel("b"), "data": "", "ephemeral": False}),
        begin(1.0, "a#1", 0, 1),
        begin(1.0, "b#1", 2, 3),
        event(10.0, "server", "fault", kind="kill"),
        event(10.0, "a#1", "exit", why="killed"),
        event(12.0, "server", "closed", zxid=1200, session=1, why="expired", paths=[GROUP.id("a")]),
        commit(12.5, "node#1", sent("b", 1, STOP_FETCHER), sent("b", 2, START_FETCHER)),
        commit(12.6, "b#1", *done("b", 1)),
        commit(12.9, "b#1", *done("b", 2)),
        begin(13.0, "b#1", 0, 1),
        event(20.0, "server", "end"),
    ]


def test_marks_are_fault_ephemeral_first_stop_last_start_and_all_fetched(
    killed: list[Made],
) -> None:
    assert measured(killed, 10.0).marks == {"T0": 10.0, "T1": 12.0, "T3": 12.5, "T4": 12.9, "T5": 13.0}


def test_standstill_of_a_partition_lasts_from_its_end_to_its_next_begin(killed: list[Made]) -> None:
    found = measured(killed, 10.0)

    assert found.standstill == {("t", 0): 3.0, ("t", 1): 3.0, ("t", 2): 0.0, ("t", 3): 0.0}
    assert (found.moved, found.least, found.doubly_held_s) == (2, 2, 0.0)


def test_partition_not_fetched_in_the_end_leaves_no_t5(killed: list[Made]) -> None:
    found = measured([e for e in killed if e["at"] != 13.0], 10.0)

    assert "T5" not in found.marks
    assert found.standstill["t", 0] == 10.0


def test_later_move_does_not_delay_t5(killed: list[Made]) -> None:
    later = [
        halt(16.0, "b#1", 0),
        begin(17.0, "a#2", 0),
    ]

    found = measured([*killed[:-1], *later, killed[-1]], 10.0)

    assert found.marks["T5"] == 13.0
    assert found.standstill["t", 0] == 3.0


def test_partition_that_returns_after_a_temporary_owner_counts_as_passed_on(killed: list[Made]) -> None:
    there_and_back = [
        halt(15.0, "b#1", 0),
        begin(15.1, "a#2", 0),
        halt(15.2, "a#2", 0),
    ]

    found = measured([*killed[:-1], *there_and_back, begin(15.3, "b#1", 0), killed[-1]], 14.0)

    assert (found.moved, found.passed_on) == (0, 1)


def test_partition_of_a_hanging_consumer_has_a_standstill_although_it_is_held() -> None:
    events = [
        event(0.0, "server", "run"),
        begin(1.0, "a#1", 0),
        begin(1.0, "b#1", 1),
        event(10.0, "server", "fault", kind="stuck", process="a#1"),
        halt(16.0, "a#1", 0),
        begin(17.5, "b#1", 0),
        event(20.0, "server", "end"),
    ]

    found = measured(events, 10.0)

    assert found.standstill == {("t", 0): 7.5, ("t", 1): 0.0}
    assert found.marks["T5"] == 17.5


def test_the_next_coordinator_acts_when_it_is_elected_and_holds_its_lease(killed: list[Made]) -> None:
    elected = [
        event(12.1, "node#2", "elected", epoch=2),
        event(12.2, "node#2", "lease", role="coordinator", until=12.0),
        event(12.4, "node#2", "lease", role="coordinator", until=13.0),
    ]
    gone = commit(12.05, "node#2", {"op": "delete", "path": COORDINATOR})

    events = sorted([*killed, *elected, gone], key=lambda e: e["at"])

    assert measured(events, 10.0).marks["T2"] == 12.4


def test_command_removed_unapplied_is_counted(killed: list[Made]) -> None:
    outdated = commit(14.0, "node#1", sent("b", 3, START_FETCHER))
    stale = commit(15.0, "b#1", {"op": "delete", "path": f"{GROUP.channel('b')}/command-0000000003"})

    assert measured(killed, 10.0).stale == 0
    assert measured([*killed[:-1], outdated, stale, killed[-1]], 10.0).stale == 1


@pytest.mark.parametrize(
    ("before", "consumers", "partitions", "least"),
    [
        ("aabb", "ab", 4, 0),
        ("aabb", "b", 4, 2),
        ("aaaa", "ab", 4, 2),
        ("aaabbb", "abc", 6, 2),
        ("aaabbc", "ab", 6, 1),
        ("aabbc", "abc", 5, 0),
        ("aaa", "", 3, 0),
    ],
)
def test_minimum_of_moves_is_that_of_equal_shares(before: str, consumers: str, partitions: int, least: int) -> None:
    held = {("t", number): who for number, who in enumerate(before)}

    assert least_moved(held, set(consumers), partitions) == least


def fetch(at: float, *numbers: int) -> Made:
    return event(at, "a#1", "fetch", ranges=[{"topic": "t", "partition": n, "first": 0, "next": 1} for n in numbers])


def broker_away(*later: Made) -> list[Made]:
    """The broker is killed at 10 s and is back at 15 s."""
    return [
        event(0.0, "server", "run"),
        begin(1.0, "a#1", 0, 1),
        fetch(9.0, 0, 1),
        event(10.0, "server", "fault", kind="kill-broker"),
        fetch(10.5, 0, 1),
        event(15.0, "server", "fault", kind=BROKER_RETURNS),
        *later,
        event(20.0, "server", "end"),
    ]


@pytest.mark.parametrize(
    ("later", "seconds"),
    [
        ([fetch(15.2, 0), fetch(15.6, 1), fetch(16.0, 0, 1)], 0.6),
        ([fetch(15.2, 0)], 5.0),  # at least: to the end
    ],
)
def test_fetching_resumes_once_every_partition_had_records_after_broker_return(
    later: list[Made], seconds: float
) -> None:
    assert measured(broker_away(*later), 10.0).resumed_s == pytest.approx(seconds)


def test_no_broker_return_is_reported_without_a_broker_outage(killed: list[Made]) -> None:
    assert measured(killed, 10.0).resumed_s is None


def test_the_generations_that_begin_after_the_fault_are_counted_each_once() -> None:
    def state(at: float, generation: int, path: str = GROUP.state) -> Made:
        return commit(at, "node#1", {"op": "set", "path": path, "data": f'{{"generation":{generation}}}'})

    of_kafka = "/brokers/topics/t/partitions/0/state"
    events = [
        event(0.0, "server", "run"),
        state(2.0, 3),
        event(10.0, "server", "fault", kind="kill-broker"),
        state(11.0, 3),
        state(11.5, 7, of_kafka),
        *(state(12.0 + part, generation) for part, generation in enumerate((4, 4, 5))),
        commit(16.0, "hand#1", {"op": "set", "path": GROUP.state, "data": "scribbled"}),
        event(20.0, "server", "end"),
    ]

    assert measured(events, 10.0).generations == 2
    assert measured(events[:5] + events[-1:], 10.0).generations == 0
