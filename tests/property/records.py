"""Records of every kind, as the project writes them into znodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.property.effort import ANY, Draw
from zk_group.coordinator.zk.security.policy import AclPolicy
from zk_group.coordinator.zk.znodes import group_state, records, regions, segments
from zk_group.coordinator.zk.znodes.partitions import Discontinuity, TopicPartition
from zk_group.coordinator.zk.znodes.paths import MAX_NAME

Build = Callable[[Draw], Any]


def made(kind: Callable[..., Any], *fields: Build, **named: Build) -> Build:
    """A record of these fields, in their order or by name."""
    return lambda draw: kind(*(each(draw) for each in fields), **{name: each(draw) for name, each in named.items()})


def texts(most: int, alphabet: str = ANY, least: int = 0) -> Build:
    return lambda draw: draw.text(most, alphabet, least)


def numbers(most: int, least: int = 0) -> Build:
    return lambda draw: draw.number(most, least)


def one_of(*values: Any) -> Build:
    return lambda draw: draw.choice(values)


def maybe(build: Build) -> Build:
    return lambda draw: draw.maybe(build)


def items(key: Build, value: Build, most: int = 3, least: int = 0) -> Build:
    return lambda draw: {key(draw): value(draw) for _ in range(draw.upto(most, least))}


def tuples(build: Build, most: int = 2, least: int = 0) -> Build:
    return lambda draw: tuple(draw.many(build, most, least))


def ordered(build: Build, most: int = 3) -> Build:
    return lambda draw: tuple(sorted(set(draw.many(build, most))))


def sets(build: Build, most: int = 5, least: int = 0) -> Build:
    return lambda draw: frozenset(draw.many(build, most, least))


def name(draw: Draw) -> str:
    return draw.choice([draw.text(6, "azAZ09_-", 1)] * 5 + ["a.b", "...", "a" * MAX_NAME])


text, life, number, offset = texts(20), texts(8, "0123456789abcdef", 1), numbers(2**31 - 1), numbers(2**63 - 1)
flag, positive, interval = Draw.truth, numbers(2**31 - 1, 1), numbers(86_400_000)
partition = made(TopicPartition, name, numbers(99_999))
partitions, topic_ids = sets(partition), items(name, text)
ownership = items(text, sets(partition, least=1))
discontinuity = made(Discontinuity, one_of("reset", "lost"), number)
causes = items(partition, discontinuity, 4)
mark = made(group_state.Mark, text, life, partitions, number, text)
pause = made(records.Pause, text, number, maybe(text))
target, asked = made(group_state.Target, life, ownership), made(group_state.AskMember, life, life, number)
order = number, number, life


def state(draw: Draw) -> str:
    """A group's; a later release may have others."""
    return draw.usually(draw.choice(group_state.GROUP_STATES), draw.text(20))


def registration(draw: Draw) -> records.Registration:
    pattern = draw.choice(["static", "white_list", "black_list"])
    topics = items(name, numbers(10_000, 1)) if pattern == "static" else items(text, numbers(9, 1), 1, 1)
    protocols = (text(draw), *draw.many(text, 1))
    times = interval(draw), positive(draw)
    return records.Registration(
        life(draw), topics(draw), pattern, text(draw), protocols, *times, text(draw), number(draw)
    )


def sealed_ranges(draw: Draw) -> tuple[segments.SealedRange, ...]:
    firsts = {part: number(draw) for part in sorted(partitions(draw))}
    return tuple(
        segments.SealedRange(part.topic, "id", part.partition, first, first + 1) for part, first in firsts.items()
    )


def region(draw: Draw) -> regions.Region:
    groups = ordered(name)(draw)
    state = draw.choice(sorted(regions.KINDS)), draw.choice(sorted(regions.REGION_STATES))
    sequences = number(draw), positive(draw), number(draw), positive(draw)
    resets, reason, since_ms, interval_ms = number(draw), draw.maybe(text), number(draw), number(draw)
    first = {group: number(draw) for group in groups if draw.truth()}
    return regions.Region(*state, *sequences, groups, resets, reason, since_ms, interval_ms, first)


def identity(draw: Draw) -> str:
    return draw.choice([f"sasl:{life(draw)}", f"x509:CN={life(draw)}", f"digest:{life(draw)}:{'a' * 27}=", "ip:::1"])


RECORDS: dict[str, Build] = {
    "topic": made(records.Topic, name, life, ordered(numbers(1_000_000), 5)),
    "policy": made(AclPolicy, flag, flag, *[tuples(identity, 3, 1)] * 4, tuples(texts(6, "ab", 1), 3)),
    "coordinator": made(records.CoordinatorRecord, text, text, number),
    "epoch": made(records.EpochRecord, number),
    "registration": registration,
    "channel": made(
        records.Channel,
        *(life, number, number, text, items(partition, maybe(offset), 4), topic_ids, maybe(text), partitions, text),
        touched=number,
        discontinuities=causes,
    ),
    "owner": made(records.OwnerRecord, text, text, life, number),
    "offset": made(records.OffsetRecord, offset, life, number),
    "reset": made(records.OffsetRecord, offset, life, number, discontinuity=discontinuity),
    "start": made(records.OffsetRecord, offset, life, number, one_of("beginning", "end")),
    "begun": made(records.BegunRecord, life, sets(numbers(10_000), 20)),
    "start command": made(records.Command, one_of(records.START_FETCHER), *order, ownership, topics=topic_ids),
    "stop command": made(
        records.Command, one_of(records.STOP_FETCHER), *order, partitions=partitions, topics=topic_ids
    ),
    "state": made(
        group_state.GroupState,
        *(state, number, number, text, items(name, target), topic_ids),
        *(tuples(mark), maybe(text), items(text, text, 2)),
    ),
    "rebalance": made(
        group_state.Rebalance, number, number, text, number, tuples(text), tuples(text), number, *[maybe(number)] * 5
    ),
    "paused": made(records.PausedRecord, maybe(pause), items(name, pause, 2)),
    "request": made(records.TurnRequest, texts(250), number, maybe(texts(1000))),
    "segment": made(
        segments.Segment,
        *(name, lambda draw: text(draw).replace("\0", ""), number, number, sealed_ranges, text, life, number),
        discontinuities=causes,
    ),
    "segments": made(segments.SegmentsRecord, offset, maybe(texts(20, least=1)), maybe(numbers(10_000, 1))),
    "query": made(segments.Query, life, offset, number, number, maybe(made(segments.Rewind, number, offset, flag))),
    "seat": made(records.Seat, registration, interval, maybe(text)),
    "ask": made(group_state.Ask, text, text, life, items(name, asked), text, number, text, number, number),
    "member's answer": made(group_state.MemberAnswer, ownership, text, text),
    "answer": made(group_state.Answer, ordered(name), topic_ids, items(name, sets(numbers(10_000))), flag, maybe(text)),
    "sync request": made(group_state.SyncRequest, text, life, text),
    "region": region,
    "region's request": made(regions.RegionRequest, one_of(*regions.REQUESTS), text, text, maybe(number), flag, number),
    "checkpoint": made(
        regions.Checkpoint, text, number, number, items(name, items(name, life)), number, items(name, tuples(name))
    ),
    "contribution": made(
        regions.Contribution,
        *(life, number, items(partition, offset, 4), topic_ids, items(partition, text), text),
        *(maybe(made(regions.StateFile, text, number, numbers(2**32 - 1))), number),
    ),
    "checkpoint's end": made(regions.CheckpointEnd, number, number, text, tuples(number)),
    "pool": made(segments.Pool, numbers(10_000), life),
}
