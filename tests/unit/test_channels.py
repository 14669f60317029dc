"""A plan as multis: their operations, order and sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.planning.plan import End, Plan
from coordinator.planning.snapshot import ChannelView, SentCommand, Snapshot
from coordinator.rebalance.rebalancer import PARTITIONS_A_STEP, Step, steps, with_state
from coordinator.zk.errors import RebalanceFailed
from coordinator.zk.store import (
    MAX_COMMIT_BYTES,
    MAX_OPERATIONS,
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    operation_bytes,
)
from coordinator.zk.znodes.group_state import GroupState, Mark, Rebalance, Target
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH, GroupPaths
from coordinator.zk.znodes.records import (
    START_FETCHER,
    STOP_FETCHER,
    BegunRecord,
    Channel,
    Command,
    OffsetRecord,
    Topic,
    parsed_channel,
)
from tests.property.tree import MemoryTree, MemoryTreeStore
from tests.support.terms import a_term
from tests.unit.manual import ManualRuntime

PATHS = GroupPaths("g")
STATE = GroupState(state="PreparingRebalance", generation=2, epoch=5)


def partitions(count: int, topic: str = "t") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def view(count: int, commands: int = 0, ended: str | None = None, version: int = 7) -> ChannelView:
    channel = Channel("a1", 4, 1, running=dict.fromkeys(partitions(count), 10), topics={"t": "t-1"}, ended=ended)
    sent = tuple(SentCommand(f"command-{n:010d}", None) for n in range(commands))
    return ChannelView("a", version, channel, sent)


def end(seen: ChannelView, evicted: bool = False) -> End:
    return End(seen, "its session ended", evicted, seen.running)


def snapshot(*views: ChannelView, **fields: object) -> Snapshot:
    known: dict[str, object] = {"offset_parents": frozenset("t"), "owner_parents": frozenset("t"), **fields}
    before = GroupState(generation=1, epoch=4)
    return Snapshot("g", 5, before, 3, {each.consumer: each for each in views}, **known)  # type: ignore[arg-type]


class Committed(MemoryTreeStore):
    """Records commits without applying them."""

    def __init__(self) -> None:
        super().__init__(MemoryTree(), 1, lambda: None, 3.0)
        self.commits: list[list[Operation]] = []

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        self.commits.append(list(operations))
        return [""] * len(operations)


def multis(seen: Snapshot, plan: Plan) -> list[list[Operation]]:
    """The multis that a term commits for the plan."""
    store = Committed()
    term = a_term(store, ManualRuntime(), seen.epoch, 9)
    for nth, step in enumerate(steps(seen, plan)):
        term.commit(with_state(seen, nth, step))
    return store.commits


def start(consumer: str, *parts: TopicPartition, topic_id: str = "t-1") -> tuple[str, Command]:
    topics = {part.topic: topic_id for part in parts}
    return consumer, Command(START_FETCHER, 5, 2, f"{consumer}1", {f"{consumer}-0": frozenset(parts)}, topics=topics)


def withdrawn(*views: ChannelView) -> tuple[tuple[str, SentCommand], ...]:
    return tuple((each.consumer, sent) for each in views for sent in each.commands)


def written(operations: Sequence[Operation], path: str) -> list[Operation]:
    return [operation for operation in operations if operation.path == path]


def assert_within_limits(found: Sequence[Sequence[Operation]]) -> None:
    assert max(len(operations) for operations in found) <= MAX_OPERATIONS
    assert max(sum(operation_bytes(each) for each in operations) for operations in found) <= MAX_COMMIT_BYTES


def test_every_multi_checks_the_epoch_and_moves_the_states_version_by_one() -> None:
    seen = snapshot(view(1000))

    found = multis(seen, Plan(STATE, ends=(end(seen.channels["a"]),)))

    assert len(found) > 5
    for nth, (check, state, *_) in enumerate(found):
        assert check == Check(COORDINATOR_EPOCH, 9)
        assert isinstance(state, SetData)
        assert (state.path, state.version) == (PATHS.state, 3 + nth)


def test_a_plan_with_nothing_but_a_state_is_one_multi() -> None:
    (only,) = multis(snapshot(), Plan(STATE))

    assert only == [Check(COORDINATOR_EPOCH, 9), SetData(PATHS.state, STATE.to_bytes(), 3)]


def test_a_small_end_is_one_multi_with_fence_offsets_and_owners() -> None:
    seen = snapshot(view(2), offsets=frozenset([TopicPartition("t", 0)]))

    (only,) = multis(seen, Plan(STATE, ends=(end(seen.channels["a"], evicted=True),)))

    channel, first, second, *gone = only[2:]
    offset = OffsetRecord(10, "t-1", 1).to_bytes()
    assert isinstance(channel, SetData)
    assert (channel.path, channel.version) == (PATHS.channel("a"), 7)
    after = parsed_channel("channel", channel.data)
    assert (after.incarnation, dict(after.running), after.ended) == ("a1", {}, "its session ended")
    assert first == SetData(PATHS.offset("t", 0), offset)
    assert second == Create(PATHS.offset("t", 1), offset)
    assert gone == [Delete(PATHS.owner("t", 0)), Delete(PATHS.owner("t", 1)), Delete(PATHS.id("a"))]


def test_unread_offset_is_left_unchanged() -> None:
    channel = Channel("a1", running={TopicPartition("t", 0): None}, topics={"t": "t-1"})
    seen = snapshot(ChannelView("a", 7, channel))

    (only,) = multis(seen, Plan(STATE, ends=(end(seen.channels["a"]),)))

    assert not written(only, PATHS.offset("t", 0))


def test_large_end_moves_the_fence_before_offsets_are_written() -> None:
    seen = snapshot(view(3 * PARTITIONS_A_STEP, commands=2))

    found = multis(seen, Plan(STATE, ends=(end(seen.channels["a"], evicted=True),)))

    fence, *rest = found[0][2:]
    assert isinstance(fence, SetData)
    after = parsed_channel("channel", fence.data)
    assert (fence.version, after.ended, len(after.running)) == (7, "its session ended", 3 * PARTITIONS_A_STEP)
    assert {each.path for each in rest} == {
        PATHS.command("a", "command-0000000000"),
        PATHS.command("a", "command-0000000001"),
        PATHS.id("a"),
    }


def test_large_end_removes_partitions_from_the_channel_with_offsets_and_owners() -> None:
    count = 2 * PARTITIONS_A_STEP + 1
    seen = snapshot(view(count))

    found = multis(seen, Plan(STATE, ends=(end(seen.channels["a"]),)))

    gone: set[str] = set()
    left = count
    for nth, operations in enumerate(found[1:4], 1):
        (moved,) = written(operations, PATHS.channel("a"))
        assert isinstance(moved, SetData)
        assert moved.version == 7 + nth
        running = parsed_channel("channel", moved.data).running
        offsets = {each.path for each in operations if isinstance(each, Create)}
        owners = {each.path for each in operations if isinstance(each, Delete)}
        assert len(offsets) == len(owners) == left - len(running)
        assert not any(PATHS.owner(*part) in owners for part in running)
        gone |= owners
        left = len(running)
    assert left == 0
    assert gone == {PATHS.owner(*part) for part in partitions(count)}


def test_large_end_in_progress_keeps_marks_in_the_state_without_the_new_target() -> None:
    mark = Mark("a", "a1", frozenset(partitions(500)), 2000, "evicted")
    state = GroupState(generation=2, target={"b": Target("b1", {})}, marks=(mark,))
    seen = snapshot(view(500))

    found = list(steps(seen, Plan(state, ends=(end(seen.channels["a"], evicted=True),))))

    assert all(step.state.marks == (mark,) for step in found)
    assert all(step.state.generation == 1 for step in found[:-1])
    assert found[-1].state == state


def test_ends_precede_withdrawals_which_precede_stops_which_precede_starts() -> None:
    other = ChannelView("b", 1, Channel("b1"), (SentCommand("command-0000000004", None),))
    seen = snapshot(view(1), other)
    stop = ("b", Command(STOP_FETCHER, 5, 2, "b1"))
    plan = Plan(
        STATE,
        ends=(end(seen.channels["a"]),),
        withdrawn=withdrawn(other),
        stops=(stop,),
        starts=(start("c", TopicPartition("t", 0)),),
        rebalance=Rebalance(2, 5, "test", 1),
    )

    (only,) = multis(seen, plan)

    paths = [each.path for each in only]
    order = [
        PATHS.channel("a"),
        PATHS.owner("t", 0),
        PATHS.command("b", "command-0000000004"),
        PATHS.rebalance(2),
        PATHS.command_prefix("b"),
        PATHS.command_prefix("c"),
    ]
    assert [path for path in paths if path in order] == order


def test_start_creates_the_parents_of_its_claims() -> None:
    seen = snapshot(offset_parents=frozenset(), owner_parents=frozenset())

    (only,) = multis(seen, Plan(STATE, starts=(start("a", TopicPartition("t", 0)),)))

    made = [each.path for each in only if isinstance(each, Create)]
    assert made == [PATHS.owners_of("t"), PATHS.offsets_of("t"), PATHS.command_prefix("a")]


@pytest.mark.parametrize(
    ("made_at", "there"), [(10, {0, 1, 2}), (30, set())], ids=["made before the group", "made after the group"]
)
def test_first_start_of_a_topic_records_the_partitions_the_group_begins_with(made_at: int, there: set[int]) -> None:
    topic = Topic("t", "t-1", (0, 1, 2), made_at)
    seen = snapshot(offset_parents=frozenset(), topics={"t": topic}, czxid=20)

    (only,) = multis(seen, Plan(STATE, starts=(start("a", TopicPartition("t", 0)),)))

    (note,) = [each.data for each in only if isinstance(each, Create) and each.path == PATHS.offsets_of("t")]
    assert BegunRecord.parse("", note) == BegunRecord("t-1", frozenset(there))


@pytest.mark.parametrize("ended", [None, "it left"], ids=["live", "half ended"])
@pytest.mark.parametrize("running", [3, PARTITIONS_A_STEP + 1], ids=["small", "large"])
@pytest.mark.parametrize("commands", [2, 500])
def test_every_withdrawn_command_is_removed_once_with_the_end_of_its_consumer(
    ended: str | None, running: int, commands: int
) -> None:
    seen = snapshot(view(running, commands, ended))
    plan = Plan(STATE, ends=(end(seen.channels["a"]),), withdrawn=withdrawn(seen.channels["a"]))

    found = multis(seen, plan)

    removed = [each.path for operations in found for each in operations if isinstance(each, Delete)]
    names = [sent.name for sent in seen.channels["a"].commands]
    assert sorted(path for path in removed if "/command-" in path) == [PATHS.command("a", name) for name in names]
    assert_within_limits(found)


def test_many_partitions_commands_and_members_stay_within_the_limits_of_a_multi() -> None:
    views = [
        ChannelView(f"c{n}", 1, Channel(f"c{n}1", running=dict.fromkeys(partitions(100, f"t{n}"), 1)))
        for n in range(60)
    ]
    starts = [start(f"d{n}", *partitions(100, f"t{n}")) for n in range(60)]
    seen = snapshot(*views)
    ends = tuple(End(each, "over", False, each.running) for each in views)

    found = multis(seen, Plan(STATE, ends=ends, starts=tuple(starts)))

    assert_within_limits(found)
    assert sum(isinstance(each, Delete) for operations in found for each in operations) == 6000


@pytest.mark.parametrize("is_torn", [False, True])
def test_the_parents_of_many_new_topics_stay_within_the_limits_of_a_multi(is_torn: bool) -> None:
    topics = [f"topic-{n:03d}" for n in range(300)]
    seen = snapshot(view(500 if is_torn else 1), offset_parents=frozenset(), owner_parents=frozenset())
    plan = Plan(
        STATE,
        ends=(end(seen.channels["a"]),),
        starts=(start("b", *(TopicPartition(topic, 0) for topic in topics)),),
    )

    found = multis(seen, plan)

    assert_within_limits(found)
    made = [each.path for operations in found for each in operations if isinstance(each, Create)]
    assert {PATHS.owners_of(topic) for topic in topics} <= set(made)
    assert len(made) == len(set(made))


def test_a_multi_with_a_large_state_and_many_large_commands_stays_within_512_kb() -> None:
    topics = {f"c{n}": [f"{n}-{m:03d}-" + "x" * 240 for m in range(90)] for n in range(7)}
    parts = {name: frozenset(TopicPartition(topic, 0) for topic in some) for name, some in topics.items()}
    state = GroupState(
        generation=2,
        target={name: Target(f"{name}1", {f"{name}-0": some}) for name, some in parts.items()},
        topics={topic: "a-topic-id-of-22-chars" for some in topics.values() for topic in some},
    )
    every = frozenset(state.topics)
    seen = snapshot(offset_parents=every, owner_parents=every)
    starts = tuple(start(name, *some, topic_id="a-topic-id-of-22-chars") for name, some in parts.items())

    found = multis(seen, Plan(state, starts=starts))

    assert_within_limits(found)


def test_state_over_the_znode_limit_fails_the_rebalance_with_a_reason() -> None:
    topics = {f"{n:04d}-" + "x" * 244: "id" for n in range(2500)}
    step = Step(GroupState(topics=topics), [])

    with pytest.raises(RebalanceFailed, match="over the 512000 of a znode"):
        with_state(snapshot(), 0, step)


def test_command_over_the_multi_limit_fails_the_rebalance_with_a_reason() -> None:
    parts = [TopicPartition(f"{n:04d}-" + "x" * 244, 0) for n in range(1100)]
    every = frozenset(part.topic for part in parts)
    seen = snapshot(offset_parents=every, owner_parents=every)

    with pytest.raises(RebalanceFailed, match=r"one change has \d+ bytes, over the \d+ that"):
        list(steps(seen, Plan(STATE, starts=(start("a", *parts),))))


def test_history_writes_one_record_and_removes_expired_ones() -> None:
    seen = snapshot(history=(1, 2))
    record = Rebalance(2, 5, "test", 1)

    (only,) = multis(seen, Plan(STATE, rebalance=record, forgotten=(1,)))

    assert only[2:] == [Delete(PATHS.rebalance(1)), SetData(PATHS.rebalance(2), record.to_bytes())]
