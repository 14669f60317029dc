"""Changes of one transaction, routes of paths, and the terms of coordinators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .event_schema import CREATE
from .fast_json import Partition
from .region_views import RegionChange
from .verdict import Event
from .znode_views import (
    AskChange,
    ChannelChange,
    ChannelView,
    CommandView,
    GroupView,
    MemberView,
    OffsetView,
    OwnerView,
    QueryView,
    SegmentView,
    StateView,
    TopicView,
)

HAND, SERVER = "hand", "server"
LIAR = "liar"
"""The kind of a process with a member that lies."""

CHANNEL, LIFE, RUNNING, NAMED = 1, 2, 4, 8
"""A channel was written; and its changes: another incarnation, other running partitions, another applied command."""
STATE, SENT, GONE, MEMBER, OWNER, OFFSET = 16, 32, 64, 128, 256, 512
SEALED, COLLECTED, QUERY, TOPIC, EPOCH, IN_GROUP = 1024, 2048, 4096, 8192, 16384, 32768
HISTORY, ASK, REGION, SEAT = 65536, 131072, 262144, 524288
ANYTHING = -1

CLOCKS = 0.02
"""How far apart two clocks may go, as a share of the time that they measure."""


class Commit:
    """The changes of one transaction, or of the end of a session.

    :ivar by_hand: whether it was written manually, or by a member that lies: what that writes is not judged, either.
    :ivar mask: kinds of changes; each has its list below.
    :ivar made: commands sent, each with its channel.  :ivar gone: commands removed, likewise.
    :ivar states: (group, state before, state after).  :ivar members: (group, before, after).
    :ivar offsets: (group, partition, offset), of written offsets.
    :ivar sealed: segments created.  :ivar removed: segments removed.
    :ivar queries: (group, before, after).  :ivar topics: (name, before, after).
    :ivar owners: (group, partition, before, after).
    :ivar seats: (group, consumer) of removed seats.
    :ivar left: channels whose process has left of its own accord, each with what it was still fetching.
    :ivar asks: writes at or below asks.  :ivar regions: likewise of consistent regions.
    """

    mask = 0
    channels: tuple[ChannelChange, ...] = ()
    made: tuple[tuple[ChannelView, CommandView], ...] = ()
    gone: tuple[tuple[ChannelView, CommandView], ...] = ()
    states: tuple[tuple[GroupView, StateView | None, StateView | None], ...] = ()
    members: tuple[tuple[GroupView, MemberView | None, MemberView | None], ...] = ()
    offsets: tuple[tuple[GroupView, Partition, OffsetView], ...] = ()
    sealed: tuple[SegmentView, ...] = ()
    removed: tuple[SegmentView, ...] = ()
    queries: tuple[tuple[GroupView, QueryView | None, QueryView | None], ...] = ()
    topics: tuple[tuple[str, TopicView | None, TopicView | None], ...] = ()
    owners: tuple[tuple[GroupView, Partition, OwnerView | None, OwnerView | None], ...] = ()
    seats: tuple[tuple[GroupView, str], ...] = ()
    left: tuple[tuple[ChannelView, frozenset[Partition]], ...] = ()
    asks: tuple[AskChange, ...] = ()
    regions: tuple[RegionChange, ...] = ()

    def __init__(self, event: Event, by_liar: bool = False) -> None:
        self.event = event
        self.at: float = event["at"]
        self.who: str = event["who"]
        self.zxid: int = event["zxid"]
        self.session: object = event.get("session")
        self.by_hand = by_liar or self.who == HAND

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
    def partition(self) -> Partition:
        """Of an owner or an offset."""
        return self.parent, int(self.name)


@dataclass(slots=True, eq=False)
class KnownProcess:
    """A process of the history."""

    who: str
    kind: str = ""
    group: str = ""
    consumer: str = ""
    is_node: bool = False


class Terms:
    """The elections of a history. A coordinator's timers count from its own, at the earliest."""

    def __init__(self) -> None:
        self._elections: dict[object, Event] = {}

    def on_commit(self, commit: Commit) -> None:
        if commit.mask & EPOCH and not commit.by_hand:
            self._elections[commit.who, commit.session] = commit.event

    def elected(self, commit: Commit) -> Event | None:
        """The election of the coordinator that sent a commit; None when it is unknown."""
        return self._elections.get((commit.who, commit.session))

    def measured(self, seconds: float) -> float:
        """The least time by the history's clock in which a coordinator's clock passes so many seconds."""
        return seconds * (1 - CLOCKS)
