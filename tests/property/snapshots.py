"""Snapshots of a group that a turn may read, likely or not."""

from __future__ import annotations

from dataclasses import replace

from tests.property.effort import Draw
from tests.support.terms import only
from tests.support.turns import with_facts
from zk_group.coordinator.assignors import Assignor, RangeAssignor
from zk_group.coordinator.assignors.sticky import CooperativeStickyAssignor, StickyAssignor
from zk_group.coordinator.planning.plan import plan
from zk_group.coordinator.planning.snapshot import (
    ChannelView,
    Compliance,
    CoordinatorFacts,
    HistoryFacts,
    Member,
    MemberFacts,
    PartitionFacts,
    SentCommand,
    Snapshot,
)
from zk_group.coordinator.zk.znodes.group_state import GroupState, Mark, Rebalance, Target
from zk_group.coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition, by_topic
from zk_group.coordinator.zk.znodes.records import (
    NO_CHANNEL,
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    Registration,
    Topic,
)

EPOCH, GENERATION = 5, 7
CONSUMERS = ("a", "b", "c", "d")
PARTITIONS = [TopicPartition(topic, number) for topic, count in (("t", 4), ("u", 2)) for number in range(count)]
MAX_POLL_MS = 4000
PROTOCOLS = ("range", "cooperative-range", "sticky", "cooperative-sticky")
LEASE_MS = 2000


class CooperativeRange(RangeAssignor):
    """Range, but only what moves is stopped."""

    name = "cooperative-range"
    is_eager = False


ASSIGNORS: tuple[Assignor, ...] = (RangeAssignor(), CooperativeRange(), StickyAssignor(), CooperativeStickyAssignor())
AGES = (0.0, 0.3, 0.5, 1.9, 2.0, 3.9, 4.0, 60.0)
SUBSCRIPTIONS: tuple[tuple[str, dict[str, int]], ...] = (
    ("static", {"t": 1}),
    ("static", {"t": 2, "u": 1}),
    ("static", {"u": 1}),
    ("static", {"missing": 1}),
    ("white_list", {".*": 1}),
    ("black_list", {"u": 2}),
    ("white_list", {"(": 1}),
)


def some_partitions(draw: Draw) -> PartitionSet:
    return frozenset(draw.some(PARTITIONS))


def incarnation(consumer: str, life: str) -> str:
    return f"{consumer}{life}"


def topics(draw: Draw) -> dict[str, Topic]:
    """t and u as they are, grown, shrunk to nothing, created again, or deleted."""
    found = {}
    for name, count in (("t", 4), ("u", 2)):
        there = draw.usually(count, count - 1, count + 1, 0, None)
        if there is not None:
            found[name] = Topic(name, f"{name}-{draw.usually('1', '2')}", tuple(range(there)))
    return found


def sent_command(draw: Draw, consumer: str) -> Command | None:
    """Of this epoch, generation and life, or of others; None for one that cannot be read."""
    if draw.randrange(8) == 7:
        return None
    life = incarnation(consumer, draw.usually("1", "2"))
    order = draw.usually(EPOCH, EPOCH - 1), draw.usually(GENERATION, GENERATION - 1, GENERATION + 1)
    partitions = some_partitions(draw)
    ids = {part.topic: f"{part.topic}-{draw.usually('1', '2')}" for part in sorted(partitions)}
    if draw.randrange(2):
        return Command(START_FETCHER, *order, life, {f"{consumer}-0": partitions} if partitions else {}, topics=ids)
    return Command(STOP_FETCHER, *order, life, {}, partitions, ids)


def channel_view(draw: Draw, consumer: str, running: PartitionSet) -> ChannelView:
    sent = draw.many(lambda draw: (sent_command(draw, consumer), draw.usually(*AGES)), 2)
    views = tuple(SentCommand(f"command-{n:010d}", command, age_s) for n, (command, age_s) in enumerate(sent))
    kind = draw.usually("live", "ended", "new", "unreadable")
    channel: Channel | None = None
    if kind == "new":
        channel = NO_CHANNEL
    elif kind != "unreadable":
        channel = Channel(
            incarnation(consumer, "1"),
            epoch=draw.randint(EPOCH - 1, EPOCH),
            generation=draw.usually(GENERATION, GENERATION - 1, 0),
            running={part: draw.choice([None, 10]) for part in sorted(running)},
            topics={topic: f"{topic}-{draw.usually('1', '2')}" for topic in sorted({p.topic for p in running})},
            ended="it left" if kind == "ended" else None,
        )
    version, compliance = draw.randrange(10), Compliance(draw.usually(*AGES))
    return ChannelView(consumer, version, channel, views, draw.usually(*AGES), compliance=compliance)


def member(draw: Draw, consumer: str) -> Member | None:
    kind = draw.usually("live", "other life", "unreadable", "gone")
    if kind == "gone":
        return None
    pattern, subscription = draw.choice(SUBSCRIPTIONS)
    life = incarnation(consumer, "2" if kind == "other life" else "1")
    registration = Registration(life, subscription, pattern, "", PROTOCOLS, LEASE_MS, MAX_POLL_MS)
    return Member(consumer, draw.randint(1, 99), None if kind == "unreadable" else registration)


def marks(draw: Draw) -> dict[tuple[str, str], tuple[Mark, float]]:
    found = {}
    for consumer, life in draw.some([(consumer, life) for consumer in CONSUMERS for life in "012"], 2):
        mark = Mark(consumer, incarnation(consumer, life), some_partitions(draw), LEASE_MS, "evicted")
        found[consumer, mark.incarnation] = mark, draw.usually(*AGES)
    return found


def turn(draw: Draw) -> tuple[Snapshot, Assignor]:
    """No two channels run the same partition, as the fences see to it; everything else may be as it likes.

    The state is often one that a plan with the assignor has written: a turn in the midst of things.
    """
    assignor = draw.choice(ASSIGNORS)
    consumers = CONSUMERS[: draw.upto(len(CONSUMERS), 1)]
    names = [name for name in consumers if draw.randrange(8)]
    holders = {part: draw.choice([*consumers, "unknown"]) for part in PARTITIONS}
    running = {name: frozenset(part for part in PARTITIONS if holders[part] == name) for name in consumers}
    views = {name: channel_view(draw, name, running[name]) for name in names}
    held = frozenset(part for view in views.values() for part in view.running)
    marked = marks(draw) if draw.randrange(3) == 0 else {}
    state = GroupState(
        state=draw.choice(["Stable", "PreparingRebalance", "CompletingRebalance", "RebalanceFailed"]),
        generation=GENERATION,
        epoch=draw.randint(EPOCH - 1, EPOCH),
        target=targets(draw, names),
        topics={"t": "t-1", "u": "u-1"},
        marks=tuple(mark for mark, _ in marked.values()),
    )
    finished = draw.choice([None, 5])
    there = {name: one for name in consumers if (one := member(draw, name)) is not None}
    owners = held ^ some_partitions(draw) if draw.randrange(4) == 0 else held
    offsets = some_partitions(draw)
    snapshot = Snapshot(
        "g",
        CoordinatorFacts(EPOCH, 1000),
        state,
        MemberFacts(views, there, hold_age_s={key: age_s for key, (_, age_s) in marked.items()}),
        PartitionFacts(topics(draw), owners, offsets),
        history=HistoryFacts(
            tuple(range(GENERATION - draw.randrange(4), GENERATION + 1)),
            Rebalance(GENERATION, EPOCH, "", 1, finished_ms=finished) if draw.randrange(2) else None,
        ),
    )
    if draw.randrange(4):
        decided = plan(snapshot, only(assignor)).state
        snapshot = replace(snapshot, state=replace(snapshot.state, target=decided.target, topics=decided.topics))
        if draw.truth():
            snapshot = carried_out(draw, snapshot)
    return snapshot, assignor


def carried_out(draw: Draw, snapshot: Snapshot) -> Snapshot:
    """Members with a target run it, or nothing yet; the others run nothing of it."""
    views = dict(snapshot.members.channels)
    targets = {name: target.partitions for name, target in snapshot.state.target.items()}
    of_others = frozenset().union(*targets.values())
    for name, view in views.items():
        if view.channel is not None:
            running = draw.usually(targets.get(name, view.running - of_others), NONE)
            topics = {topic: snapshot.state.topics.get(topic, f"{topic}-1") for topic in by_topic(running)}
            channel = replace(view.channel, running=dict.fromkeys(running, 10), topics=topics)
            views[name] = replace(view, channel=channel, commands=() if name in targets else view.commands)
    owners = frozenset().union(*(view.running for view in views.values()))
    return with_facts(snapshot, channels=views, owners=owners)


def targets(draw: Draw, names: list[str]) -> dict[str, Target]:
    """Disjoint, as every plan's are."""
    found = {}
    left = frozenset(PARTITIONS)
    for name in names:
        partitions = some_partitions(draw) & left
        left -= partitions
        found[name] = Target(incarnation(name, "1"), {f"{name}-0": partitions} if partitions else {})
    return found
