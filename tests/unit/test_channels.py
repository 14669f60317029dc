"""A plan as multis: their operations, order and sizes; and client-side assignment in a turn where sizes matter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.support.terms import RANGE, a_term
from tests.support.turns import snapshot_of, with_facts
from tests.unit.manual import ManualRuntime
from zk_group.coordinator.planning.membership import GroupRules
from zk_group.coordinator.planning.plan import Plan, plan
from zk_group.coordinator.planning.snapshot import Snapshot
from zk_group.coordinator.rebalance.group_reader import GroupZnodes
from zk_group.coordinator.rebalance.rebalancer import PARTITIONS_A_STEP, Step, steps, with_state
from zk_group.coordinator.zk.errors import RebalanceFailed
from zk_group.coordinator.zk.store import (
    MAX_COMMIT_BYTES,
    MAX_OPERATIONS,
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    operation_bytes,
)
from zk_group.coordinator.zk.znodes.group_state import Answer, GroupState, MemberAnswer
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import COORDINATOR_EPOCH, GroupPaths
from zk_group.coordinator.zk.znodes.records import (
    START_FETCHER,
    BegunRecord,
    Command,
    OffsetRecord,
    Topic,
    parsed_channel,
)

PATHS = GroupPaths("g")
HANGS, HAS_DIED = "idle=300.0", "gone"


def a_group(text: str, **facts: Any) -> Snapshot:
    """A group with what `text` says, in which topic t is known."""
    common = "group 4/1 Stable range\ncoordinator 5\nevery wants=t lease=2000\ntopic t t-1 0-1999\n"
    return with_facts(snapshot_of(common + text), **facts)


def znodes(offsets: Iterable[str] = "t", owners: Iterable[str] = "t") -> GroupZnodes:
    """Those of a group with parents of these topics."""
    return GroupZnodes(1, 20, frozenset(owners), frozenset(offsets), has_sync=True)


def numbered(count: int, topic: str = "t") -> str:
    return ",".join(f"{topic}-{number}" for number in range(count))


def running(count: int, how: str = HAS_DIED, commands: int = 0) -> str:
    """Member `a`, which is to be ended."""
    return f"member a runs={numbered(count)} at=4/1 {how}\n" + "a gets start 4/1 t-0\n" * commands


def multis(seen: Snapshot, beside: GroupZnodes | None = None) -> list[list[Operation]]:
    """The multis that a term commits for the plan of a turn."""
    store = Mock(**{"commit.side_effect": lambda operations: [""] * len(operations)})
    term = a_term(store, ManualRuntime(), seen.coordinator.epoch, 9)
    for version, step in enumerate(steps(seen, beside or znodes(), plan(seen, RANGE)), 1):
        term.commit(with_state(PATHS, version, step))
    return [list(call.args[0]) for call in store.commit.call_args_list]


def written(operations: Sequence[Operation], path: str) -> list[Operation]:
    return [operation for operation in operations if operation.path == path]


def assert_within_limits(found: Sequence[Sequence[Operation]]) -> None:
    assert max(len(operations) for operations in found) <= MAX_OPERATIONS
    assert max(sum(operation_bytes(each) for each in operations) for operations in found) <= MAX_COMMIT_BYTES


def test_every_multi_checks_the_epoch_and_moves_the_states_version_by_one() -> None:
    found = multis(a_group(running(1000)))

    assert len(found) > 5
    for nth, (check, state, *_) in enumerate(found):
        assert check == Check(COORDINATOR_EPOCH, 9)
        assert isinstance(state, SetData) and (state.path, state.version) == (PATHS.state, 1 + nth)


def test_a_plan_with_nothing_but_a_state_is_one_multi() -> None:
    seen = a_group("")

    assert multis(seen) == [[Check(COORDINATOR_EPOCH, 9), SetData(PATHS.state, plan(seen, RANGE).state.to_bytes(), 1)]]


def test_a_small_end_is_one_multi_with_fence_offsets_and_owners() -> None:
    (only,) = multis(a_group(running(2, HANGS), offsets=frozenset([TopicPartition("t", 0)])))

    channel, first, second, *gone = only[2:]
    offset = OffsetRecord(5, "t-1", 1).to_bytes()
    assert isinstance(channel, SetData)
    assert (channel.path, channel.version) == (PATHS.channel("a"), 1)
    after = parsed_channel("channel", channel.data)
    assert (after.incarnation, dict(after.running)) == ("a-1", {})
    assert (after.ended or "").startswith("evicted: it gave no sign of life for 300000 ms")
    assert first == SetData(PATHS.offset("t", 0), offset)
    assert second == Create(PATHS.offset("t", 1), offset)
    assert gone == [Delete(PATHS.owner("t", 0)), Delete(PATHS.owner("t", 1)), Delete(PATHS.id("a"))]


def test_unread_offset_is_left_unchanged() -> None:
    seen = a_group(running(1))
    view = seen.members.channels["a"]
    assert view.channel is not None
    unread = replace(view.channel, running={TopicPartition("t", 0): None})

    (only,) = multis(with_facts(seen, channels={"a": replace(view, channel=unread)}))

    assert written(only, PATHS.channel("a")) and not written(only, PATHS.offset("t", 0))


def test_large_end_moves_the_fence_then_removes_partitions_offsets_and_owners() -> None:
    left = count = 2 * PARTITIONS_A_STEP + 1

    first, *found = multis(a_group(running(count, HANGS, commands=2)))

    fence, *rest = first[2:]
    assert isinstance(fence, SetData)
    after = parsed_channel("channel", fence.data)
    assert (fence.version, after.is_live, len(after.running)) == (1, False, count)
    commands = [PATHS.command("a", f"command-000000000{number}") for number in (1, 2)]
    assert {each.path for each in rest} == {*commands, PATHS.id("a")}
    gone: set[str] = set()
    for nth, operations in enumerate(found[:3], 1):
        (moved,) = written(operations, PATHS.channel("a"))
        assert isinstance(moved, SetData) and moved.version == 1 + nth
        kept = parsed_channel("channel", moved.data).running
        offsets = {each.path for each in operations if isinstance(each, Create)}
        owners = {each.path for each in operations if isinstance(each, Delete)}
        assert len(offsets) == len(owners) == left - len(kept)
        assert not any(PATHS.owner(*part) in owners for part in kept)
        gone |= owners
        left = len(kept)
    assert left == 0
    assert gone == {PATHS.owner("t", number) for number in range(count)}


def test_large_end_in_progress_keeps_marks_in_the_state_without_the_new_target() -> None:
    seen = a_group(running(500, HANGS) + "member b")
    decided = plan(seen, RANGE)

    found = list(steps(seen, znodes(), decided))

    assert [(mark.consumer, len(mark.partitions)) for mark in decided.state.marks] == [("a", 500)]
    assert len(found) > 1 and all(step.state.marks == decided.state.marks for step in found)
    assert all(step.state.generation == 1 for step in found[:-1])
    assert found[-1].state == decided.state and decided.state.target


def test_ends_precede_withdrawals_which_precede_stops_which_precede_starts() -> None:
    died = "topic t t-1 0-2\nmember a gone runs=t-2 at=4/1\n"
    (only,) = multis(a_group(died + "member b runs=t-0 at=4/1\nb gets start 4/1 t-0\nmember c"))

    order = [
        PATHS.channel("a"),
        PATHS.owner("t", 2),
        PATHS.command("b", "command-0000000001"),
        PATHS.rebalance(2),
        PATHS.command_prefix("b"),
        PATHS.command_prefix("c"),
    ]
    assert [each.path for each in only if each.path in order] == order


def test_start_creates_the_parents_of_its_claims() -> None:
    (only,) = multis(a_group("member a"), znodes("", ""))

    made = [each.path for each in only if isinstance(each, Create)]
    assert made == [PATHS.owners_of("t"), PATHS.offsets_of("t"), PATHS.rebalance(2), PATHS.command_prefix("a")]


@pytest.mark.parametrize(
    ("made_at", "there"), [(10, {0, 1, 2}), (30, set())], ids=["made before the group", "made after the group"]
)
def test_first_start_of_a_topic_records_the_partitions_the_group_begins_with(made_at: int, there: set[int]) -> None:
    topic = Topic("t", "t-1", (0, 1, 2), made_at)

    (only,) = multis(a_group("member a", topics={"t": topic}), znodes(offsets=""))

    (note,) = [each.data for each in only if isinstance(each, Create) and each.path == PATHS.offsets_of("t")]
    assert BegunRecord.parse("", note) == BegunRecord("t-1", frozenset(there))


@pytest.mark.parametrize("how", [HAS_DIED, "left"], ids=["live", "half ended"])
@pytest.mark.parametrize("count", [3, PARTITIONS_A_STEP + 1], ids=["small", "large"])
@pytest.mark.parametrize("commands", [2, 500])
def test_every_withdrawn_command_is_removed_once_with_its_consumer(how: str, count: int, commands: int) -> None:
    found = multis(a_group(running(count, how, commands)))

    removed = [each.path for operations in found for each in operations if isinstance(each, Delete)]
    names = [f"command-{number:010d}" for number in range(1, commands + 1)]
    assert sorted(path for path in removed if "/command-" in path) == [PATHS.command("a", name) for name in names]
    assert_within_limits(found)


def test_many_partitions_commands_and_members_stay_within_the_limits_of_a_multi() -> None:
    text = "".join(
        f"topic t{n} t{n}-1 0-99\nmember c{n} gone runs={numbered(100, f't{n}')} at=4/1\nmember d{n} wants=t{n}\n"
        for n in range(60)
    )

    found = multis(a_group(text))

    assert_within_limits(found)
    every = [each for operations in found for each in operations]
    assert sum(isinstance(each, Delete) for each in every) == 6000
    assert sum(each.path.endswith("/command-") for each in every) == 60


@pytest.mark.parametrize("count", [1, 500], ids=["beside a small end", "after a large end"])
def test_the_parents_of_many_new_topics_stay_within_the_limits_of_a_multi(count: int) -> None:
    topics = [f"topic-{n:03d}" for n in range(300)]
    text = running(count) + f"member b wants={','.join(topics)}\n" + "".join(f"topic {name} id 0\n" for name in topics)

    found = multis(a_group(text), znodes("", ""))

    assert_within_limits(found)
    made = [each.path for operations in found for each in operations if isinstance(each, Create)]
    assert {PATHS.owners_of(topic) for topic in topics} <= set(made)
    assert len(made) == len(set(made))


def test_a_multi_with_a_large_state_and_many_large_commands_stays_within_512_kb() -> None:
    topics = {f"c{n}": [f"{n}-{m:03d}-" + "x" * 240 for m in range(90)] for n in range(7)}
    text = "".join(f"member {name} wants={','.join(some)}\n" for name, some in topics.items())
    every = frozenset(topic for some in topics.values() for topic in some)
    text += "".join(f"topic {topic} a-topic-id-of-22-chars 0\n" for topic in every)

    found = multis(a_group(text), znodes(every, every))

    assert_within_limits(found)
    assert sum(each.path.endswith("/command-") for operations in found for each in operations) == 7


def test_state_or_command_over_its_limit_fails_the_rebalance_with_a_reason() -> None:
    topics = [f"{n:04d}-" + "x" * 244 for n in range(2500)]
    start = Command(
        START_FETCHER, 5, 2, "a1", {"a-0": frozenset(TopicPartition(topic, 0) for topic in topics[:1100])},
        topics=dict.fromkeys(topics[:1100], "t-1"),
    )  # fmt: skip
    seen = a_group("")

    with pytest.raises(RebalanceFailed, match="over the 512000 of a znode"):
        with_state(PATHS, 0, Step(GroupState(topics=dict.fromkeys(topics, "id")), []))
    with pytest.raises(RebalanceFailed, match=r"one change has \d+ bytes, over the \d+ that"):
        list(steps(seen, znodes(topics, topics), Plan(seen.state, starts=(("a", start),))))


def test_history_writes_one_record_and_removes_expired_ones() -> None:
    seen = a_group(f"member a\nhistory {' '.join(map(str, range(1, 22)))}")
    record = plan(seen, RANGE).rebalance
    assert record is not None

    (only,) = multis(seen)

    of_history = [each for each in only if each.path.startswith(PATHS.history)]
    assert of_history == [Delete(PATHS.rebalance(1)), SetData(PATHS.rebalance(2), record.to_bytes())]


# ---- client-side assignment where sizes matter; all else is in `turns/asking.txt` and `jobs.txt`


def led(text: str) -> Snapshot:
    """A group of client-side assignment, with what `text` says."""
    common = "every wants=t offers=p lease=5000\ntopic t id-t 0,1\n"
    return snapshot_of(common + ("" if text.startswith("group") else "group 1/0 Empty type=consumer\n") + text)


def decided(snapshot: Snapshot) -> Plan:
    return plan(snapshot, RANGE, "", GroupRules(assignment_timeout_s=30.0))


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 4])
def test_an_answer_whose_start_does_not_fit_beside_the_state_fails_its_leader(count: int) -> None:
    """A start also names the id of each topic: it is larger than the entry that it comes from."""
    names = "abcd"[:count]
    topics = {f"topic-{number:05d}": Topic(f"topic-{number:05d}", "i" * 22, (0,)) for number in range(5000)}
    given = {
        name: [p for place, p in enumerate(sorted(topics)) if place % count == nth] for nth, name in enumerate(names)
    }
    entries = {
        name: MemberAnswer({f"{name}-0": frozenset(TopicPartition(topic, 0) for topic in some)})
        for name, some in given.items()
    }
    reply = Answer(tuple(names), {t: one.id for t, one in topics.items()}, {t: frozenset({0}) for t in topics})
    group = led("".join(f"member {name}\n" for name in names) + f"ask 1 p a members={','.join(names)}")
    view = replace(group.requests.asks[0], answer=reply, entries=entries, children=("answer",))
    snapshot = with_facts(group, topics=topics, asks=(view,))

    found = decided(snapshot)

    for step in steps(snapshot, znodes(), found):
        assert len(with_state(PATHS, 1, step)) > 1
    assert found.asking.has_failed == (count == 1)


@pytest.mark.parametrize("error", ["\U0001f600" * 1000, "x" * 4096], ids=["in bytes", "to the limit of the state"])
def test_failure_reason_of_a_leader_is_truncated(error: str) -> None:
    found = decided(led(f"member a\nask 1 p a members=a error={error}"))

    assert found.state.reason is not None and len(json.dumps(found.state.reason)) <= 1002
    assert GroupState.parse("state", found.state.to_bytes()) == found.state


def test_unreadable_thread_number_fails_its_leader_only() -> None:
    found = decided(led(f"member a\nask 1 p a members=a a-{'9' * 5000}=t-0"))

    assert found.asking.has_failed and "which is no thread of a" in (found.state.reason or "")


def test_an_ask_that_does_not_fit_is_not_made_and_the_rest_of_the_turn_is_written() -> None:
    members = "".join(f"member {'n' * 240}{number:04d}\n" for number in range(1500))

    found = decided(led(members + "member x gone runs=t-0"))

    assert found.asking.made is None and found.state.state == "RebalanceFailed"
    assert "an ask of 1500 members takes" in (found.state.reason or "")
    assert [end.view.consumer for end in found.terminations] == ["x"]


def test_asks_with_more_children_than_a_turn_removes_are_removed_in_several() -> None:
    group = led("group 1/1 Stable p type=consumer ask=1\nmember a gone has=t-0\nask 1 p a members=a unread a-0=t-0")
    children = tuple(f"stray-{number:05d}" for number in range(2500))
    snapshot = with_facts(group, asks=(replace(group.requests.asks[0], children=children),))

    found = decided(snapshot)
    removed = [
        each.path for step in steps(snapshot, znodes(), found) for each in step.operations if isinstance(each, Delete)
    ]

    assert len(removed) == 2000 and found.again_s == 0.0
    assert not any(path.endswith("ask-0000000001") for path in removed)
