"""The data that `zk-coordinator status` shows and checks, read from ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..zk.errors import BadData
from ..zk.security.policy import AclPolicy
from ..zk.store import DENIED, Store
from ..zk.znodes import paths as znodes
from ..zk.znodes.group_state import CLIENT, Rebalance
from ..zk.znodes.records import (
    NOTHING_PAUSED,
    STATIC,
    CoordinatorRecord,
    EpochRecord,
    NodeRecord,
    PausedRecord,
    Topic,
    TurnRequest,
    TurnTimes,
)
from ..zk.znodes.segments import SegmentsRecord
from ..zk.znodes.topic_filter import TopicFilter
from .groups import Reading, ShownGroup, existing, read_group
from .queries import ShownQuery, silent_queries
from .regions import ShownRegion, read_region
from .topics import list_topics

ELECTIONS = 3
"""Attempts to read the coordinator with a matching epoch."""


NEWEST_CHECKPOINTS = 25
"""Number of a region's checkpoints that are read; the coordinator keeps 20 aborted ones."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group, with additional data for the checks.

    :ivar rebalance: the record of its last rebalance.
    :ivar request: a requested turn that has not been taken yet.
    :ivar silent: its silent queries.
    """

    shown: ShownGroup
    segments: SegmentsRecord = field(default_factory=SegmentsRecord)
    rebalance: Rebalance | None = None
    request: TurnRequest | None = None
    silent: tuple[ShownQuery, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """All that `zk-coordinator status` shows.

    :ivar coordinator: the elected node, None when there is none or it is unreadable.
    :ivar standby: the other nodes that run, by their names; nodes of releases before this znode are not listed.
    :ivar coordinator_session: session of the coordinator's znode, 0 when it is persistent; None without a znode.
    """

    coordinator: CoordinatorRecord | None
    epoch: int | None
    groups: tuple[GroupStatus, ...]
    topics: tuple[Topic, ...]
    problems: dict[str, str]
    coordinator_session: int | None = None
    paused: PausedRecord = NOTHING_PAUSED
    regions: tuple[ShownRegion, ...] = ()
    turn_times: TurnTimes | None = None
    standby: tuple[NodeRecord, ...] = ()


def read_status(store: Store, brokers: znodes.Brokers, now_ms: int | None = None) -> Status:
    """Read the complete status.

    :param now_ms: the wall clock; None to read no queries.
    """
    reading = Reading(store)
    epoch, elected, session = _coordinator(reading)
    reading.parsed(znodes.ACL_POLICY, lambda p, data: AclPolicy.parse(p, data) if data != DENIED else None)
    paused = reading.parsed(znodes.PAUSED, PausedRecord.parse) or NOTHING_PAUSED
    groups = tuple(_group(reading, name, now_ms) for name in reading.names(znodes.GROUPS))
    regions = tuple(read_region(reading, name, NEWEST_CHECKPOINTS) for name in reading.names(znodes.REGIONS))
    topics = list_topics(store, brokers)
    reading.problems.update({brokers.topic(t.name): t.error for t in topics if t.error})
    for group in groups:
        reading.problems.update(_bad_patterns(group.shown))
    return Status(
        coordinator=elected,
        epoch=epoch.epoch if epoch else None,
        groups=groups,
        topics=tuple(listed.topic for listed in topics if listed.topic is not None),
        problems=reading.problems,
        coordinator_session=session,
        paused=paused,
        regions=regions,
        turn_times=reading.parsed(znodes.TURN_TIMES, TurnTimes.parse),
        standby=_standby(reading, session or 0),
    )


def _coordinator(reading: Reading) -> tuple[EpochRecord | None, CoordinatorRecord | None, int | None]:
    """The epoch, the elected node, and the session of its znode; read again after an election between the two."""
    for _ in range(ELECTIONS):
        epoch = reading.parsed(znodes.COORDINATOR_EPOCH, EpochRecord.parse)
        node = reading.store.get(znodes.COORDINATOR)
        elected = reading.record(znodes.COORDINATOR, node, CoordinatorRecord.parse)
        if epoch is None or elected is None or epoch.epoch == elected.epoch:
            break
    return epoch, elected, node.stat.ephemeral_owner if node is not None and elected is not None else None


def _standby(reading: Reading, elected: int) -> tuple[NodeRecord, ...]:
    """The nodes that are listed by their own sessions, but the elected one.

    :param elected: its session; 0 without one.
    """
    found = []
    nodes = existing(reading.store, {name: f"{znodes.NODES}/{name}" for name in reading.names(znodes.NODES)})
    for name, node in nodes.items():
        path, session = f"{znodes.NODES}/{name}", node.stat.ephemeral_owner
        if session not in (0, elected) and path == znodes.node_path(session):
            found.append(reading.record(path, node, NodeRecord.parse))
    return tuple(sorted(filter(None, found), key=lambda node: (node.node, node.host)))


def _group(reading: Reading, name: str, now_ms: int | None) -> GroupStatus:
    paths = znodes.GroupPaths(name)
    shown = read_group(reading, name)
    segments = reading.parsed(paths.segments, SegmentsRecord.parse)
    path = paths.rebalance(shown.state.generation)
    rebalance = reading.parsed(path, Rebalance.parse)
    request = reading.parsed(paths.request, TurnRequest.parse)
    silent = tuple(silent_queries(reading, name, now_ms)) if now_ms is not None else ()
    return GroupStatus(shown, segments or SegmentsRecord(), rebalance, request, silent)


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
                found[znodes.GroupPaths(group.group).id(member.consumer)] = str(error)
    return found
