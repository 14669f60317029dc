"""Hypothesis strategies for what a turn may read of a group, likely or not."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from coordinator.assignors import Assignor
from coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from coordinator.assignors.range import RangeAssignor
from coordinator.assignors.sticky import StickyAssignor
from coordinator.planning.plan import plan
from coordinator.planning.snapshot import ChannelView, Member, SentCommand, Snapshot
from coordinator.zk.znodes.commands import START_FETCHER, STOP_FETCHER, Command
from coordinator.zk.znodes.group_state import GroupState, Mark, Rebalance, Target
from coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from coordinator.zk.znodes.records import NO_CHANNEL, Channel, Registration, Topic
from tests.support.strategies import only

EPOCH, GENERATION = 5, 7
CONSUMERS = ("a", "b", "c")
PARTITIONS = [TopicPartition(topic, number) for topic, count in (("t", 4), ("u", 2)) for number in range(count)]
MAX_POLL_MS = 4000
PROTOCOLS = ("range", "cooperative-range", "sticky", "cooperative-sticky")
LEASE_MS = 2000


class CooperativeRange(RangeAssignor):
    """Range, but only what moves is stopped."""

    name = "cooperative-range"
    is_eager = False


assignors: st.SearchStrategy[Assignor] = st.sampled_from(
    [RangeAssignor(), CooperativeRange(), StickyAssignor(), CooperativeStickyAssignor()]
)
some_partitions: st.SearchStrategy[PartitionSet] = st.frozensets(st.sampled_from(PARTITIONS), max_size=5)
ages = st.sampled_from([0.0, 0.0, 0.3, 0.5, 1.9, 2.0, 3.9, 4.0, 60.0])
subscriptions = st.sampled_from(
    [
        ("static", {"t": 1}),
        ("static", {"t": 2, "u": 1}),
        ("static", {"u": 1}),
        ("static", {"missing": 1}),
        ("white_list", {".*": 1}),
        ("black_list", {"u": 2}),
        ("white_list", {"(": 1}),
    ]
)


def incarnation(consumer: str, life: str) -> str:
    return f"{consumer}{life}"


@st.composite
def topics(draw: st.DrawFn) -> dict[str, Topic]:
    """t and u as they are, grown, shrunk to nothing, made anew, or gone."""
    found = {}
    for name, count in (("t", 4), ("u", 2)):
        there = draw(st.sampled_from([count, count, count, count - 1, count + 1, 0, None]))
        if there is not None:
            topic_id = draw(st.sampled_from([f"{name}-1", f"{name}-1", f"{name}-2"]))
            found[name] = Topic(name, topic_id, tuple(range(there)))
    return found


@st.composite
def commands(draw: st.DrawFn, consumer: str) -> Command | None:
    """Of this epoch, generation and life, or of others; None for one that cannot be read."""
    if draw(st.integers(0, 7)) == 7:
        return None
    life = incarnation(consumer, draw(st.sampled_from("1112")))
    order = draw(st.sampled_from([EPOCH, EPOCH, EPOCH, EPOCH - 1])), draw(st.integers(GENERATION - 1, GENERATION + 1))
    partitions = draw(some_partitions)
    ids = {part.topic: f"{part.topic}-{draw(st.sampled_from('112'))}" for part in sorted(partitions)}
    if draw(st.booleans()):
        return Command(START_FETCHER, *order, life, {f"{consumer}-0": partitions} if partitions else {}, topics=ids)
    return Command(STOP_FETCHER, *order, life, {}, partitions, ids)


@st.composite
def channels(draw: st.DrawFn, consumer: str, running: PartitionSet) -> ChannelView:
    sent = draw(st.lists(st.tuples(commands(consumer), ages), max_size=2))
    views = tuple(SentCommand(f"command-{n:010d}", command, age_s) for n, (command, age_s) in enumerate(sent))
    kind = draw(st.sampled_from(["live"] * 6 + ["ended", "new", "unreadable"]))
    channel: Channel | None = None
    if kind == "new":
        channel = NO_CHANNEL
    elif kind != "unreadable":
        channel = Channel(
            incarnation(consumer, "1"),
            epoch=draw(st.integers(EPOCH - 1, EPOCH)),
            generation=draw(st.sampled_from([GENERATION, GENERATION, GENERATION - 1, 0])),
            running={part: draw(st.sampled_from([None, 10])) for part in sorted(running)},
            topics={topic: f"{topic}-{draw(st.sampled_from('1112'))}" for topic in sorted({p.topic for p in running})},
            ended="it left" if kind == "ended" else None,
        )
    return ChannelView(consumer, draw(st.integers(0, 9)), channel, views, draw(ages))


@st.composite
def members(draw: st.DrawFn, consumer: str) -> Member | None:
    kind = draw(st.sampled_from(["live"] * 5 + ["other life", "unreadable", "gone"]))
    if kind == "gone":
        return None
    pattern, subscription = draw(subscriptions)
    life = incarnation(consumer, "2" if kind == "other life" else "1")
    registration = Registration(life, subscription, pattern, "", PROTOCOLS, LEASE_MS, MAX_POLL_MS)
    return Member(consumer, draw(st.integers(1, 99)), None if kind == "unreadable" else registration)


@st.composite
def marks(draw: st.DrawFn) -> dict[tuple[str, str], tuple[Mark, float]]:
    found = {}
    for consumer, life in draw(st.sets(st.tuples(st.sampled_from(CONSUMERS), st.sampled_from("012")), max_size=2)):
        mark = Mark(consumer, incarnation(consumer, life), draw(some_partitions), LEASE_MS, "evicted")
        found[consumer, mark.incarnation] = mark, draw(ages)
    return found


@st.composite
def snapshots(draw: st.DrawFn, assignor: Assignor | None = None) -> Snapshot:
    """No two channels run the same partition, as the fences see to it; everything else may be as it likes.

    :param assignor: then the state is often one that a plan with it has written: a turn in the midst of things.
    """
    names = [name for name in CONSUMERS if draw(st.integers(0, 4))]
    holders = {part: draw(st.sampled_from([*CONSUMERS, "nobody"])) for part in PARTITIONS}
    running = {name: frozenset(part for part in PARTITIONS if holders[part] == name) for name in CONSUMERS}
    views = {name: draw(channels(name, running[name])) for name in names}
    there = {name: member for name in CONSUMERS if (member := draw(members(name))) is not None}
    held = frozenset(part for view in views.values() for part in view.running)
    odd = draw(some_partitions) if draw(st.integers(0, 3)) == 0 else frozenset()
    marked = draw(marks()) if draw(st.integers(0, 2)) == 0 else {}
    history = tuple(range(GENERATION - draw(st.integers(0, 3)), GENERATION + 1))
    finished = draw(st.sampled_from([None, 5]))
    state = GroupState(
        state=draw(st.sampled_from(["Stable", "PreparingRebalance", "CompletingRebalance", "RebalanceFailed"])),
        generation=GENERATION,
        epoch=draw(st.integers(EPOCH - 1, EPOCH)),
        target=draw(targets(names)),
        topics={"t": "t-1", "u": "u-1"},
        marks=tuple(mark for mark, _ in marked.values()),
    )
    snapshot = Snapshot(
        group="g",
        epoch=EPOCH,
        state=state,
        state_version=draw(st.integers(0, 9)),
        channels=views,
        members=there,
        owners=held ^ odd,
        offsets=draw(some_partitions),
        owner_parents=draw(st.frozensets(st.sampled_from("tu"))),
        offset_parents=draw(st.frozensets(st.sampled_from("tu"))),
        topics=draw(topics()),
        mark_age_s={key: age_s for key, (_, age_s) in marked.items()},
        history=history,
        rebalance=Rebalance(GENERATION, EPOCH, "", 1, finished_ms=finished) if draw(st.booleans()) else None,
        now_ms=1000,
    )
    if assignor is not None and draw(st.integers(0, 3)):
        decided = plan(snapshot, only(assignor)).state
        snapshot = replace(snapshot, state=replace(snapshot.state, target=decided.target, topics=decided.topics))
    return snapshot


@st.composite
def targets(draw: st.DrawFn, names: list[str]) -> dict[str, Target]:
    """Disjoint, as every plan's are."""
    found = {}
    left = frozenset(PARTITIONS)
    for name in names:
        partitions = draw(some_partitions) & left
        left -= partitions
        found[name] = Target(incarnation(name, "1"), {f"{name}-0": partitions} if partitions else {})
    return found
