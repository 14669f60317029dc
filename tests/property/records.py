"""Records of every kind, as the project writes them into znodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.zk.security.policy import AclPolicy
from coordinator.zk.znodes.group_state import (
    GROUP_STATES,
    Answer,
    Ask,
    AskMember,
    GroupState,
    Mark,
    MemberAnswer,
    Rebalance,
    SyncRequest,
    Target,
)
from coordinator.zk.znodes.partitions import Discontinuity, PartitionSet, TopicPartition
from coordinator.zk.znodes.paths import MAX_NAME
from coordinator.zk.znodes.records import (
    START_FETCHER,
    STOP_FETCHER,
    BegunRecord,
    Channel,
    Command,
    CoordinatorRecord,
    EpochRecord,
    OffsetRecord,
    OwnerRecord,
    Pause,
    PausedRecord,
    Registration,
    Seat,
    Topic,
    TurnRequest,
)
from coordinator.zk.znodes.regions import (
    KINDS,
    REGION_STATES,
    REQUESTS,
    Checkpoint,
    CheckpointEnd,
    Contribution,
    Region,
    RegionRequest,
    StateFile,
)
from coordinator.zk.znodes.segments import Pool, Query, Rewind, SealedRange, Segment, SegmentsRecord
from tests.property.effort import Draw

Build = Callable[[Draw], Any]


def text(draw: Draw) -> str:
    return draw.text(20)


def name(draw: Draw) -> str:
    return draw.choice([draw.text(6, "azAZ09_-", 1)] * 5 + ["a.b", "...", "a" * MAX_NAME])


def life(draw: Draw) -> str:
    return draw.text(8, "0123456789abcdef", 1)


def number(draw: Draw) -> int:
    return draw.number(2**31 - 1)


def offset(draw: Draw) -> int:
    return draw.number(2**63 - 1)


def partition(draw: Draw) -> TopicPartition:
    return TopicPartition(name(draw), draw.number(99_999))


def partitions(draw: Draw, least: int = 0) -> PartitionSet:
    return frozenset(draw.many(partition, 5, least))


def items(draw: Draw, key: Build, value: Build, most: int = 3, least: int = 0) -> dict[Any, Any]:
    return {key(draw): value(draw) for _ in range(draw.upto(most, least))}


def tuples(draw: Draw, build: Build) -> tuple[Any, ...]:
    return tuple(draw.many(build, 2))


def topic_ids(draw: Draw) -> dict[str, str]:
    return items(draw, name, text)


def ownership(draw: Draw) -> dict[str, PartitionSet]:
    return items(draw, text, lambda draw: partitions(draw, 1))


def target(draw: Draw) -> Target:
    return Target(life(draw), ownership(draw))


def mark(draw: Draw) -> Mark:
    return Mark(text(draw), life(draw), partitions(draw), number(draw), text(draw))


def registration(draw: Draw) -> Registration:
    pattern = draw.choice(["static", "white_list", "black_list"])
    if pattern == "static":
        subscription = items(draw, name, lambda draw: draw.number(10_000, 1))
    else:
        subscription = {text(draw): draw.randint(1, 9)}
    times = draw.number(86_400_000), draw.number(2**31 - 1, 1)
    protocols = (text(draw), *draw.many(text, 1))
    return Registration(life(draw), subscription, pattern, text(draw), protocols, *times, text(draw), number(draw))


def channel(draw: Draw) -> Channel:
    return Channel(
        incarnation=life(draw),
        epoch=number(draw),
        generation=number(draw),
        command=text(draw),
        running=items(draw, partition, lambda draw: draw.maybe(offset), 4),
        topics=topic_ids(draw),
        ended=draw.maybe(text),
        refused=partitions(draw),
        sealed=text(draw),
        touched=number(draw),
        discontinuities=items(draw, partition, discontinuity, 4),
    )


def discontinuity(draw: Draw) -> Discontinuity:
    return Discontinuity(draw.choice(["reset", "lost"]), number(draw))


def command(draw: Draw, option: str) -> Command:
    order = option, number(draw), number(draw), life(draw)
    if option == START_FETCHER:
        return Command(*order, ownership(draw), topics=topic_ids(draw))
    return Command(*order, partitions=partitions(draw), topics=topic_ids(draw))


def state(draw: Draw) -> GroupState:
    return GroupState(
        state=draw.choice(GROUP_STATES),
        generation=number(draw),
        epoch=number(draw),
        strategy=text(draw),
        target=items(draw, name, target),
        topics=topic_ids(draw),
        marks=tuples(draw, mark),
        reason=draw.maybe(text),
        left_out=items(draw, text, text, 2),
    )


def rebalance(draw: Draw) -> Rebalance:
    causes = number(draw), number(draw), text(draw), number(draw), tuples(draw, text), tuples(draw, text)
    return Rebalance(*causes, number(draw), *[draw.maybe(number) for _ in range(5)])


def segment(draw: Draw) -> Segment:
    firsts = {part: number(draw) for part in sorted(partitions(draw))}
    sealed = tuple(SealedRange(part.topic, "id", part.partition, first, first + 1) for part, first in firsts.items())
    sizes = number(draw), number(draw)
    causes = items(draw, partition, discontinuity, 4)
    folder = text(draw).replace("\0", "")
    return Segment(name(draw), folder, *sizes, sealed, text(draw), life(draw), number(draw), (), causes)


def pause(draw: Draw) -> Pause:
    return Pause(text(draw), number(draw), draw.maybe(text))


def rewind(draw: Draw) -> Rewind:
    return Rewind(number(draw), offset(draw), draw.truth())


def ask(draw: Draw) -> Ask:
    members = items(draw, name, lambda draw: AskMember(life(draw), life(draw), number(draw)))
    asked = text(draw), text(draw), life(draw), members, text(draw)
    return Ask(*asked, number(draw), text(draw), number(draw), number(draw))


def answer(draw: Draw) -> Answer:
    members = tuple(sorted({name(draw) for _ in range(draw.upto(3))}))
    numbers = items(draw, name, lambda draw: frozenset(draw.many(lambda draw: draw.number(10_000), 5)))
    return Answer(members, topic_ids(draw), numbers, draw.truth(), draw.maybe(text))


def region(draw: Draw) -> Region:
    groups = tuple(sorted({name(draw) for _ in range(draw.upto(3))}))
    sequences = number(draw), draw.number(2**31 - 1, 1), number(draw), draw.number(2**31 - 1, 1)
    return Region(
        draw.choice(sorted(KINDS)),
        draw.choice(sorted(REGION_STATES)),
        *sequences,
        groups,
        number(draw),
        draw.maybe(text),
        number(draw),
        number(draw),
        {group: number(draw) for group in groups if draw.truth()},
    )


def checkpoint(draw: Draw) -> Checkpoint:
    participants = items(draw, name, lambda draw: items(draw, name, life))
    away = items(draw, name, lambda draw: tuples(draw, name))
    return Checkpoint(text(draw), number(draw), number(draw), participants, number(draw), away)


def contribution(draw: Draw) -> Contribution:
    states = items(draw, partition, text)
    file = draw.maybe(lambda draw: StateFile(text(draw), number(draw), draw.number(2**32 - 1)))
    of_member = items(draw, partition, offset, 4), topic_ids(draw), states, text(draw), file
    return Contribution(life(draw), number(draw), *of_member, number(draw))


def identity(draw: Draw) -> str:
    return draw.choice([f"sasl:{life(draw)}", f"x509:CN={life(draw)}", f"digest:{life(draw)}:{'a' * 27}=", "ip:::1"])


def policy(draw: Draw) -> AclPolicy:
    parties = [tuple(draw.many(identity, 3, 1)) for _ in range(4)]
    return AclPolicy(draw.truth(), draw.truth(), *parties, tuple(draw.many(lambda draw: draw.text(6, "ab", 1), 3)))


RECORDS: dict[str, Build] = {
    "topic": lambda draw: Topic(
        name(draw), life(draw), tuple(sorted({draw.number(1_000_000) for _ in range(draw.upto(5))}))
    ),
    "policy": policy,
    "coordinator": lambda draw: CoordinatorRecord(text(draw), text(draw), number(draw)),
    "epoch": lambda draw: EpochRecord(number(draw)),
    "registration": registration,
    "channel": channel,
    "owner": lambda draw: OwnerRecord(text(draw), text(draw), life(draw), number(draw)),
    "offset": lambda draw: OffsetRecord(offset(draw), life(draw), number(draw)),
    "reset": lambda draw: OffsetRecord(offset(draw), life(draw), number(draw), "", discontinuity(draw)),
    "start": lambda draw: OffsetRecord(offset(draw), life(draw), number(draw), draw.choice(["beginning", "end"])),
    "begun": lambda draw: BegunRecord(life(draw), frozenset(draw.many(lambda draw: draw.number(10_000), 20))),
    "start command": lambda draw: command(draw, START_FETCHER),
    "stop command": lambda draw: command(draw, STOP_FETCHER),
    "state": state,
    "rebalance": rebalance,
    "paused": lambda draw: PausedRecord(draw.maybe(pause), items(draw, name, pause, 2)),
    "request": lambda draw: TurnRequest(draw.text(250), number(draw), draw.maybe(lambda draw: draw.text(1000))),
    "segment": segment,
    "segments": lambda draw: SegmentsRecord(
        offset(draw), draw.maybe(lambda draw: draw.text(20, least=1)), draw.maybe(lambda draw: draw.number(10_000, 1))
    ),
    "query": lambda draw: Query(life(draw), offset(draw), number(draw), number(draw), draw.maybe(rewind)),
    "seat": lambda draw: Seat(registration(draw), draw.number(86_400_000), draw.maybe(text)),
    "ask": ask,
    "member's answer": lambda draw: MemberAnswer(ownership(draw), text(draw), text(draw)),
    "answer": answer,
    "sync request": lambda draw: SyncRequest(text(draw), life(draw), text(draw)),
    "region": region,
    "region's request": lambda draw: RegionRequest(
        draw.choice(REQUESTS), text(draw), text(draw), draw.maybe(number), draw.truth(), number(draw)
    ),
    "checkpoint": checkpoint,
    "contribution": contribution,
    "checkpoint's end": lambda draw: CheckpointEnd(number(draw), number(draw), text(draw), tuples(draw, number)),
    "pool": lambda draw: Pool(draw.number(10_000), life(draw)),
}
