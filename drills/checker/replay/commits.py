"""The changes of one transaction, and the routes of paths."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import NamedTuple

from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import Channel, Running
from zk_group.coordinator.zk.znodes.regions import Region

from .verdict import Event, moment
from .znode_views import (
    AskView,
    ChannelView,
    CheckpointView,
    CommandView,
    GroupView,
    MemberView,
    OffsetView,
    OwnerView,
    QueryView,
    RegionView,
    SegmentView,
    StateView,
)

CREATE, SET, DELETE, CHECK = "create", "set", "delete", "check"
"""Kinds of operations of a `commit`."""

HAND, SERVER = "hand", "server"
LIAR = "liar"
"""The kind of a process with a lying member."""


class Changed:
    """Kinds of changes of a commit: bits of its mask.

    A channel was written (`CHANNEL`), and its changes: another incarnation (`LIFE`), other running partitions
    (`RUNNING`), another applied command (`NAMED`).
    """

    CHANNEL, LIFE, RUNNING, NAMED = 1, 2, 4, 8
    STATE, SENT, GONE, MEMBER, OWNER, OFFSET = 16, 32, 64, 128, 256, 512
    SEALED, COLLECTED, QUERY, TOPIC, EPOCH, IN_GROUP = 1024, 2048, 4096, 8192, 16384, 32768
    HISTORY, ASK, REGION, SEAT = 65536, 131072, 262144, 524288
    ANYTHING = -1


@dataclass(slots=True, eq=False)
class ChannelChange:
    """A channel was written or removed; `before` and `after` are None where it was not there or cannot be read."""

    view: ChannelView
    before: Channel | None
    after: Channel | None

    @property
    def same(self) -> Channel | None:
        """`before`, if it is of the incarnation of `after`."""
        one, other = self.before, self.after
        return one if one is not None and other is not None and one.incarnation == other.incarnation else None

    @property
    def left(self) -> Set[TopicPartition]:
        """The partitions that have left `running`."""
        return _running(self.before).keys() - _running(self.after).keys()

    @property
    def entered(self) -> Set[TopicPartition]:
        """The partitions new in `running`."""
        return _running(self.after).keys() - _running(self.before).keys()


def _running(data: Channel | None) -> Running:
    return data.running if data is not None else {}


class StateChange(NamedTuple):
    """A group's state was written or removed."""

    group: GroupView
    before: StateView | None
    after: StateView | None

    @property
    def was(self) -> GroupState | None:
        """The data before; None where there was none, or a manually written one."""
        return self.before.data if self.before is not None and not self.before.by_hand else None

    @property
    def now(self) -> GroupState | None:
        """Likewise after."""
        return self.after.data if self.after is not None and not self.after.by_hand else None


class MemberChange(NamedTuple):
    """An `ids` znode was written or removed."""

    group: GroupView
    before: MemberView | None
    after: MemberView | None


@dataclass(slots=True, eq=False)
class AskChange:
    """One operation at or below an assignment request.

    :ivar what: `THE_ASK`, `ENTRY`, `ANSWER`, or `STRAY` for an unknown child.
    :ivar answered: the commit of `answer` before this operation.
    :ivar is_new: whether the znode is created; else it is set, or removed (`is_removed`).
    :ivar previous: the request before this one, when this operation creates it.
    """

    view: AskView
    what: str
    is_new: bool
    is_removed: bool
    answered: Event | None
    previous: AskView | None = None


@dataclass(slots=True, eq=False)
class RegionChange:
    """One operation at or below a region.

    :ivar name: of a contribution, or of an end.
    :ivar before: the previous data of the region's own znode.  :ivar after: the new one.
    :ivar is_new: whether the znode is created; else it is set, or removed (`is_removed`).
    """

    view: RegionView
    what: str
    is_new: bool
    is_removed: bool
    checkpoint: CheckpointView | None = None
    name: str = ""
    before: Region | None = None
    after: Region | None = None


class Commit:
    """The changes of one transaction, or of the end of a session.

    :ivar by_hand: whether it was written manually, or by a lying member, whose writes are not judged, either.
    :ivar mask: kinds of changes; each has its list below.
    :ivar made: commands sent, each with its channel.  :ivar gone: commands removed, likewise.
    :ivar states: written states.  :ivar members: written registrations.
    :ivar offsets: (group, partition, offset), of written offsets.
    :ivar sealed: segments created.  :ivar removed: segments removed.
    :ivar queries: (group, before, after).
    :ivar owners: (group, partition, before, after).
    :ivar seats: (group, consumer) of removed seats.
    :ivar left: channels whose process has left voluntarily, each with its open fetch intervals.
    :ivar asks: writes at or below assignment requests.  :ivar regions: likewise of consistent regions.
    """

    mask = 0
    channels: tuple[ChannelChange, ...] = ()
    made: tuple[tuple[ChannelView, CommandView], ...] = ()
    gone: tuple[tuple[ChannelView, CommandView], ...] = ()
    states: tuple[StateChange, ...] = ()
    members: tuple[MemberChange, ...] = ()
    offsets: tuple[tuple[GroupView, TopicPartition, OffsetView], ...] = ()
    sealed: tuple[SegmentView, ...] = ()
    removed: tuple[SegmentView, ...] = ()
    queries: tuple[tuple[GroupView, QueryView | None, QueryView | None], ...] = ()
    owners: tuple[tuple[GroupView, TopicPartition, OwnerView | None, OwnerView | None], ...] = ()
    seats: tuple[tuple[GroupView, str], ...] = ()
    left: tuple[tuple[ChannelView, frozenset[TopicPartition]], ...] = ()
    asks: tuple[AskChange, ...] = ()
    regions: tuple[RegionChange, ...] = ()

    def __init__(self, event: Event, by_liar: bool = False) -> None:
        self.event = event
        self.at: float = event["at"]
        self.who: str = event["who"]
        self.zxid: int = event["zxid"]
        self.session: object = event.get("session")
        self.by_hand = by_liar or self.who == HAND

    @property
    def moment(self) -> str:
        """Its time in messages."""
        return moment(self.at)

    def removed_from(self, view: ChannelView) -> list[CommandView]:
        """The commands removed by it from a channel."""
        return [command for of, command in self.gone if of is view]

    def removed_command(self, view: ChannelView, name: str) -> CommandView | None:
        """The command of that name removed by it from a channel."""
        return next((command for command in self.removed_from(view) if command.name == name), None)

    def creates(self, path: str) -> bool:
        """Whether it creates a znode; of a group, as `groups create` does, everything in it is new and not edited."""
        return any(op["op"] == CREATE and op["path"] == path for op in self.event.get("ops", ()))


Handler = Callable[[Commit, "Route", str, Event], None]


@dataclass(slots=True, eq=False)
class Route:
    """The handler of a path, and the names in it."""

    path: str
    handler: Handler
    group: GroupView
    parent: str = ""
    name: str = ""

    @property
    def partition(self) -> TopicPartition:
        """Of an owner or an offset."""
        return TopicPartition(self.parent, int(self.name))


@dataclass(slots=True, eq=False)
class KnownProcess:
    """A process of the history."""

    who: str
    kind: str = ""
    group: str = ""
    is_node: bool = False
