"""Lines of events: of `zk-consumer run --events`, with the rules by which a reader checks them, and of channels."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.events import DEAD, JOINED, REBALANCING, STARTED, GroupEvents, RuleBroken, replayed
from tests.support.stories import statements
from tests.support.turns import snapshot_of, with_facts
from zk_group.consumer.cli.output import EventLines, RecordLines
from zk_group.consumer.consumer import Record
from zk_group.consumer.errors import AssignmentFailed, CommitFailed
from zk_group.coordinator.admin.channel_watch import (
    ACKNOWLEDGED,
    COMMAND,
    GONE_UNREAD,
    REMOVED,
    WITHDRAWN,
    SeenCommand,
    ended,
    registered,
    removed,
    sent,
)
from zk_group.coordinator.planning.rebalance_history import in_order
from zk_group.coordinator.planning.report import history_of
from zk_group.coordinator.zk.znodes.group_state import ClientProtocols, Rebalance
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import (
    ASSIGN,
    ASSIGNMENT_FAILED,
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    Registration,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def named(*numbers: int) -> list[dict[str, Any]]:
    return [{"topic": "t", "partition": number} for number in numbers]


def partitions(*numbers: str) -> dict[str, Any]:
    return {"partitions": named(*map(int, numbers))}


def records(number: str, offsets: str, count: str = "", total: str = "") -> dict[str, Any]:
    first, last = map(int, offsets.split("-"))
    found = int(count or last - first + 1)
    one = {**named(int(number))[0], "count": found, "minOffset": first, "maxOffset": last}
    return {"count": int(total or found), "partitions": [one]}


def commit(number: str, offset: str) -> dict[str, Any]:
    return {"offsets": [{**named(int(number))[0], "offset": int(offset)}], "success": True}


EVENTS: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "starts": ("startup_complete", dict),
    "ends": ("shutdown_complete", dict),
    "gets": ("partitions_assigned", partitions),
    "gives": ("partitions_revoked", partitions),
    "loses": ("partitions_lost", partitions),
    "reads": ("records_consumed", records),
    "commits": ("offsets_committed", commit),
    "fails": ("offsets_committed", lambda *words: {**commit(*words), "success": False, "error": "no"}),
    "fails-silently": ("offsets_committed", lambda: {"offsets": [], "success": False}),
    "shines": ("rebalance_complete", dict),
}
JOINS = "a starts; a gets 0 1; "
A_READS, B_JOINS = f"{JOINS} a reads 0 0-9; ", "; b starts; b gets 0; "


def group_after(text: str) -> GroupEvents:
    """After the events of consumers, one a second: `a reads 0 5-9` has the offsets of a partition of t."""
    lines: dict[str, list[str]] = {}
    for at, (consumer, what, *words) in enumerate(statements(text)):
        name, fields = EVENTS[what]
        lines.setdefault(consumer, []).append(json.dumps({"timestamp": at, "name": name, **fields(*words)}))
    return replayed(dict(reversed(lines.items())))


# ---- the reader


def test_a_consumer_that_joins_consumes_commits_and_leaves_keeps_the_rules() -> None:
    life = f"{A_READS} a commits 0 10; a reads 0 10-14; a commits 0 12"
    group = group_after(life)
    seen = group.consumers["a"]
    assert (seen.state, seen.position, group.committed, group.consumed) == (JOINED, {T0: 15}, {T0: 12}, 15)

    group = group_after(f"{life}; a gives 0 1; a ends")

    seen = group.consumers["a"]
    assert (seen.state, seen.assigned, seen.revoked, seen.assignment) == (DEAD, 1, 1, set())
    assert (group.position, group.joined(), group.owners()) == ({T0: 15}, set(), {})


def test_cooperative_consumer_that_keeps_partitions_stays_joined_at_its_offsets() -> None:
    group = group_after(f"{JOINS} a reads 1 0-4; a gives 0; a reads 1 5-6 {B_JOINS}")

    assert group.owners() == {T0: ["b"], T1: ["a"]}
    assert group.owners(of=["a"]) == {T1: ["a"]}
    assert group.joined() == {"a", "b"}
    assert group_after(f"{JOINS} a gives 0 1").consumers["a"].state == REBALANCING
    assert group_after("a starts").consumers["a"].state == STARTED


def test_uncommitted_records_read_again_by_another_consumer_break_no_rule() -> None:
    group = group_after(f"{A_READS} a commits 0 5; a loses 0 1 {B_JOINS} b reads 0 5-9")

    assert (group.consumed, group.position) == (15, {T0: 10})
    assert (group.consumers["a"].lost, group.consumers["a"].revoked) == (1, 1)


def test_a_commit_that_fails_moves_nothing() -> None:
    assert group_after(f"{JOINS} a fails 0 99").committed == {}


@pytest.mark.parametrize(
    ("events", "rule"),
    [
        ("a starts; a reads 0 0-1", "a consumes while it is started"),
        (f"{JOINS} a gives 0 1; a reads 0 0-1", "a consumes while it is rebalancing"),
        (f"{JOINS} a ends; a reads 0 0-1", "a consumes while it is dead"),
        (f"{JOINS} a reads 2 0-1", "from t-2, which is not assigned to it"),
        (f"{A_READS} a reads 0 11-12", "from 11 on, and stands at 10"),
        (f"{A_READS} a reads 0 9-12", "from 9 on, and stands at 10"),
        (f"{JOINS} a commits 2 0", "commits t-2, which is not assigned to it"),
        (f"{JOINS} a commits 0 0", "commits 0 of t-0, and stands at -1"),
        (f"{A_READS} a commits 0 11", "commits 11 of t-0, and stands at 10"),
        (f"{A_READS} a commits 0 10; a gives 0 {B_JOINS} b reads 0 9-12", "from 9, and 10 is committed"),
        (f"{A_READS} {B_JOINS} b reads 0 0-4; a commits 0 10", "commits 10 of t-0, and the group stands at 5"),
        (f"{JOINS} a gives 1 2", "which it has not"),
        (f"{JOINS} a loses 2", "which it has not"),
        (f"{JOINS} a fails-silently", "does not say why"),
        ("a shines", "not known"),
        (f"{JOINS} a reads 0 0-9 10 3", "cannot add"),
        (f"{JOINS} a reads 0 0-9 9", "leaves records out"),
    ],
)
def test_broken_rule_is_named(events: str, rule: str) -> None:
    with pytest.raises(RuleBroken, match=rule):
        group_after(events)


def test_the_lines_of_several_consumers_are_read_in_the_order_of_time() -> None:
    group = group_after(f"{A_READS} a commits 0 10; a gives 0 {B_JOINS} b reads 0 10-12; b commits 0 13; a ends")

    assert (group.consumed, group.committed, group.owners()) == (13, {T0: 13}, {T0: ["b"]})


# ---- printed lines


def record(partition: int, offset: int, key: bytes | None = None, value: bytes | None = b"v") -> Record:
    return Record("t", partition, offset, 77, 0, key, value, (("h", b"x"),))


def printed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_events_are_lines_with_the_names_of_kafkas_verifiable_consumer(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_without_events_records_are_lines_and_failed_commits_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output = RecordLines("c1")
    output.started()
    output.polled({T0: [record(0, 3, b"k")]})
    output.not_committed({T0: 4}, CommitFailed("no"))
    output.ended()

    found = capsys.readouterr()

    shown = {"offset": 3, "timestamp": 77, "key": "k", "value": "v", "headers": [{"name": "h", "value": "x"}]}
    assert [json.loads(line) for line in found.out.splitlines()] == [{**named(0)[0], **shown}]
    assert found.err == "error: no\n"


# ---- events of a channel: the outcome of a command


PARTS = frozenset(TopicPartition("t", number) for number in (0, 1, 2, 7))
NAME = "command-0000000004"
STARTED_C1 = Command(START_FETCHER, 7, 3, "i1", {"c1-0": PARTS}, topics={"t": "t-1"})
SEEN = SeenCommand("c1", NAME, STARTED_C1, since_s=10.0)
LIVE = Channel("i1", 7, 2, "command-0000000003")


def test_command_is_reported_with_all_its_fields() -> None:
    reported = sent(SEEN, 1000).to_json("g")

    assert reported == {
        "event": COMMAND, "at_ms": 1000, "group": "g", "consumer": "c1", "command": NAME, "option": START_FETCHER,
        "epoch": 7, "generation": 3, "incarnation": "i1", "partitions": {"t": "0-2,7"}, "took_ms": None, "note": None,
        "ask": None, "reason": None,
    }  # fmt: skip


def test_full_stop_names_no_partitions_and_an_idle_start_names_an_empty_set() -> None:
    stop = replace(SEEN, command=Command(STOP_FETCHER, 7, 3, "i1"))
    idle = replace(SEEN, command=Command(START_FETCHER, 7, 3, "i1"))

    assert sent(stop, 1).partitions is None
    assert sent(idle, 1).partitions == {}


def test_a_command_that_the_channel_names_as_the_last_one_applied_was_acknowledged() -> None:
    reported = removed(SEEN, replace(LIVE, generation=3, command=NAME), 1000, 10.0125)

    assert (reported.event, reported.took_ms, reported.note) == (ACKNOWLEDGED, 12.5, None)


REFUSED = replace(LIVE, command=NAME, refused=frozenset([TopicPartition("t", 7)]))
LATER = replace(LIVE, command="command-0000000009")
OUTCOMES: dict[str, tuple[Channel | None, str, str | None]] = {
    "refused partitions": (REFUSED, ACKNOWLEDGED, "refused, as an owner was in the way: t(7)"),
    "the consumer left afterwards": (replace(LIVE, command=NAME, ended="left"), ACKNOWLEDGED, None),
    "another command": (LIVE, WITHDRAWN, None),
    "no command": (replace(LIVE, command=""), WITHDRAWN, None),
    "evicted": (replace(LIVE, ended="evicted: it hangs"), WITHDRAWN, "evicted: it hangs"),
    "restarted": (replace(LIVE, incarnation="i2", command=NAME), WITHDRAWN, "the channel is another incarnation's"),
    "older": (replace(LIVE, epoch=8, generation=3), WITHDRAWN, "it was older than what its consumer had applied"),
    "no channel": (None, REMOVED, "the channel cannot be read, so its outcome is unknown"),
    "a later command": (LATER, REMOVED, "a later command was applied before the channel could be read"),
}
"""The channel of a command that was removed, and what is reported."""


@pytest.mark.parametrize(("channel", "event", "note"), OUTCOMES.values(), ids=OUTCOMES)
def test_outcome_of_a_removed_command(channel: Channel | None, event: str, note: str | None) -> None:
    reported = removed(SEEN, channel, 1000, 10.0125)

    assert (reported.event, reported.note) == (event, note)


def test_command_with_a_channel_read_late_is_decided_by_their_shared_multi() -> None:
    late = replace(LIVE, generation=9, command="command-0000000009")

    assert removed(SEEN, late, 1, 11.0, with_channel=True).event == ACKNOWLEDGED
    assert removed(SEEN, late, 1, 11.0, with_channel=False).event == WITHDRAWN


def test_command_removed_before_it_was_read_is_reported_from_the_channel() -> None:
    unread = SeenCommand("c1", NAME, None, 10.0, GONE_UNREAD)
    channel = Channel("i1", 7, 3, NAME, {TopicPartition("t", 1): 5}, {"t": "t-1"})

    reported = removed(unread, channel, 1000, 10.0125)

    assert sent(unread, 1).note == GONE_UNREAD
    assert (reported.event, reported.epoch, reported.generation, reported.incarnation) == (ACKNOWLEDGED, 7, 3, "i1")
    assert reported.partitions == {"t": "1"} and reported.took_ms is None
    assert reported.note is not None and reported.note.startswith(GONE_UNREAD)


def test_command_present_before_the_start_has_no_duration() -> None:
    before = replace(SEEN, since_s=None)

    assert sent(before, 1).note == "it was there already"
    assert removed(before, LIVE, 1, 99.0).took_ms is None


def test_end_of_an_incarnation_has_a_reason() -> None:
    assert ended("c1", "i1", LIVE, 1).note == "its session ended"
    assert ended("c1", "i1", replace(LIVE, ended="left"), 1).note == "left"
    assert ended("c1", "i0", LIVE, 1).note == "another process has registered under its name"
    assert ended("c1", None, None, 1).note == "its channel cannot be read"


def test_registration_is_reported_with_its_subscription() -> None:
    assert registered("c1", Registration("i1", {"t": 2, "s": 1}, host="exec-3"), None, 1).note == (
        "host exec-3, static s:1, t:2"
    )
    assert registered("c1", None, "no JSON", 1).note == "no JSON"


def test_commands_of_client_side_assignment_name_their_ask_and_no_partitions() -> None:
    asked = replace(SEEN, command=Command(ASSIGN, 7, 3, "i1", ask="ask-0000000002"))
    failed = replace(SEEN, command=Command(ASSIGNMENT_FAILED, 7, 3, "i1", ask="ask-0000000002", reason="no data"))

    reported = [sent(each, 1).to_json("g") for each in (asked, failed)]

    assert [(each["option"], each["partitions"], each["ask"], each["reason"]) for each in reported] == [
        ("assign", None, "ask-0000000002", None),
        ("assignment-failed", None, "ask-0000000002", "no data"),
    ]


def test_answer_acknowledges_the_command_without_a_new_generation() -> None:
    asked = replace(SEEN, command=Command(ASSIGN, 7, 3, "i1", ask="ask-0000000002"))

    assert removed(asked, replace(LIVE, command=NAME), 1000, 10.5).event == ACKNOWLEDGED


def test_registration_is_reported_with_its_client_side_assignors() -> None:
    client = ClientProtocols(("lag", "sticky"), {"lag": "e30="})

    assert registered("c1", Registration("i1", {"t": 1}, host="h", client=client), None, 1).note == (
        "host h, static t:1, client-side lag, sticky"
    )
    assert registered("c1", Registration("i1", {}, "client", "h", client=client), None, 1).note == (
        "host h, client, client-side lag, sticky"
    )


# ---- records of a group's history as they are written and read; what a turn records is in `turns/history.txt`


def test_records_of_an_older_release_are_read_with_their_replacement() -> None:
    old = {"version": 1, "epoch": 1, "trigger": "joined a", "started_ms": 10}
    data = [{**old, "generation": 13, "stopped_ms": 11, "finished_ms": 15}, {**old, "generation": 12}]
    records = [Rebalance.parse("where", json.dumps(values).encode()) for values in data]

    twelve, thirteen = in_order(records)

    assert (twelve.generation, twelve.replaced_by) == (12, 13)
    assert (thirteen.to_last_stop_ms, thirteen.to_last_start_ms, thirteen.standstill_ms) == (1, 5, None)
    assert thirteen.replaced_by is None


def test_zkcli_shows_the_durations() -> None:
    times: dict[str, Any] = {
        "stopped_ms": 120,
        "finished_ms": 150,
        "standstill_ms": 45,
        "assignment_ms": 450,
        "attempts": 3,
    }
    record = Rebalance(2, 1, "why", 100, **times)
    written = json.loads(record.to_bytes())

    assert (written["to_last_stop_ms"], written["to_last_start_ms"], written["standstill_ms"]) == (20, 50, 45)
    assert (written["assignment_ms"], written["attempts"]) == (450, 3)
    assert Rebalance.parse("where", record.to_bytes()) == record


def test_a_last_fetch_before_the_epoch_is_one_at_its_beginning() -> None:
    snapshot = with_facts(snapshot_of("group 5/1 Stable range\nages now=50"), silences={"a": 9_100})

    record = history_of(snapshot, replace(snapshot.state, generation=2), True, False, "", ["a"])

    assert record is not None and (record.standing_since_ms, record.silent_since_ms) == (None, 0)
