"""Everything that `zk-coordinator status` shows and checks, read from ZooKeeper as it stands."""

from __future__ import annotations

from dataclasses import dataclass, field

from .groups import Reading, ShownGroup, group_names, read_group
from .regions.admin import ShownRegion, read_region, region_names
from .topics import list_topics
from .zk.asked import NOTHING_PAUSED, PausedRecord, TurnRequest
from .zk.errors import BadData
from .zk.paths import COORDINATOR, COORDINATOR_EPOCH, PAUSED, Brokers, GroupPaths
from .zk.patterns import TopicFilter
from .zk.records import STATIC, CoordinatorRecord, EpochRecord, Topic
from .zk.sealed import SegmentsRecord
from .zk.state import Rebalance
from .zk.store import Store
from .zk.sync import CLIENT

ELECTIONS = 3
"""So often the coordinator is read again before its epoch is believed not to be the one that counts."""


NEWEST_CHECKPOINTS = 25
"""So many of a region's checkpoints are read; of those that were aborted the coordinator keeps 20."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group, with what a check wants to know of it besides.

    :ivar rebalance: the record of its last rebalance.
    :ivar request: a turn that is requested and not taken yet.
    """

    shown: ShownGroup
    segments: SegmentsRecord = field(default_factory=SegmentsRecord)
    rebalance: Rebalance | None = None
    request: TurnRequest | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """All that `zk-coordinator status` shows.

    :ivar coordinator: who is elected, None when nobody is, or it cannot be read.
    :ivar coordinator_session: which session holds the coordinator's znode, 0 when it is persistent; None without one.
    """

    coordinator: CoordinatorRecord | None
    epoch: int | None
    groups: tuple[GroupStatus, ...]
    topics: tuple[Topic, ...]
    problems: dict[str, str]
    coordinator_session: int | None = None
    paused: PausedRecord = NOTHING_PAUSED
    regions: tuple[ShownRegion, ...] = ()


def read_status(store: Store, brokers: Brokers) -> Status:
    """Everything at once."""
    reading = Reading(store)
    epoch, elected = _coordinator(reading)
    paused = reading.parsed(PAUSED, lambda p, n: PausedRecord.parse(p, n.data)) or NOTHING_PAUSED
    groups = tuple(_group(reading, name) for name in group_names(reading))
    regions = tuple(read_region(reading, name, NEWEST_CHECKPOINTS) for name in region_names(reading))
    topics = list_topics(store, brokers)
    reading.problems.update({brokers.topic(t.name): t.error for t in topics if t.error})
    for group in groups:
        reading.problems.update(_bad_patterns(group.shown))
    return Status(
        coordinator=elected[0] if elected else None,
        epoch=epoch.epoch if epoch else None,
        groups=groups,
        topics=tuple(listed.topic for listed in topics if listed.topic is not None),
        problems=reading.problems,
        coordinator_session=elected[1] if elected else None,
        paused=paused,
        regions=regions,
    )


def _coordinator(reading: Reading) -> tuple[EpochRecord | None, tuple[CoordinatorRecord, int] | None]:
    """The epoch, and who is elected with its session; read again where an election came between the two."""
    for _ in range(ELECTIONS):
        epoch = reading.parsed(COORDINATOR_EPOCH, lambda p, n: EpochRecord.parse(p, n.data))
        elected = reading.parsed(COORDINATOR, lambda p, n: (CoordinatorRecord.parse(p, n.data), n.stat.ephemeral_owner))
        if epoch is None or elected is None or epoch.epoch == elected[0].epoch:
            break
    return epoch, elected


def _group(reading: Reading, name: str) -> GroupStatus:
    paths = GroupPaths(name)
    shown = read_group(reading, name)
    segments = reading.parsed(paths.segments, lambda p, n: SegmentsRecord.parse(p, n.data))
    path = paths.rebalance(shown.state.generation)
    rebalance = reading.parsed(path, lambda p, n: Rebalance.parse(p, n.data))
    request = reading.parsed(paths.request, lambda p, n: TurnRequest.parse(p, n.data))
    return GroupStatus(shown, segments or SegmentsRecord(), rebalance, request)


def _bad_patterns(group: ShownGroup) -> dict[str, str]:
    found = {}
    for member in group.members:
        registration = member.registration
        if registration is None or registration.pattern in (STATIC, CLIENT):
            continue
        for text in registration.subscription:
            try:
                TopicFilter(registration.pattern, text)
            except BadData as error:
                found[GroupPaths(group.group).id(member.consumer)] = str(error)
    return found
