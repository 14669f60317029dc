"""The replayed znodes, each with the event that last wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.zk.znodes.group_state import Answer, Ask, MemberAnswer
from coordinator.zk.znodes.paths import ask_number
from coordinator.zk.znodes.records import BegunRecord, Registration, Topic
from coordinator.zk.znodes.segments import Query

from .channel_data import ChannelData
from .fast_json import Partition
from .reading import CommandData, OffsetData, Range, StateData
from .verdict import Event

THE_ASK, ENTRY, ANSWER, STRAY = "ask", "entry", "answer", "stray"


@dataclass(slots=True, eq=False)
class ChannelView:
    """A channel.

    :ivar data: None when it cannot be read.
    :ivar written: the last commit that wrote it.  :ivar since: the one that began this incarnation, or ended it.
    :ivar owner: the process that registered the incarnation.
    :ivar by_hand: whether it was written manually since the incarnation registered.
    :ivar applied: commands that it has named, since its creation.  :ivar withdrawn: those that a coordinator removed.
    """

    group: GroupView
    consumer: str
    written: Event
    since: Event
    data: ChannelData | None = None
    owner: str = ""
    by_hand: bool = False
    commands: dict[str, CommandView] = field(default_factory=dict)
    applied: dict[str, Event] = field(default_factory=dict)
    withdrawn: dict[str, Event] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        return self.data is not None and self.data.is_live


@dataclass(slots=True, eq=False)
class CommandView:
    """A command; `data` is None when it cannot be read."""

    name: str
    data: CommandData | None
    made: Event
    by_hand: bool


@dataclass(slots=True, eq=False)
class MemberView:
    """An `ids` znode; `registration` is None when it cannot be read."""

    consumer: str
    registration: Registration | None
    written: Event
    session: object
    czxid: int
    by_hand: bool = False
    subscribed: tuple[int, str | None, frozenset[str] | None] | None = None


@dataclass(slots=True, eq=False)
class OwnerView:
    """An owner znode; its data is parsed on demand."""

    text: str
    session: object
    made: Event
    by_hand: bool


@dataclass(slots=True, eq=False)
class OffsetView:
    """An offset; `data` is None when it cannot be read."""

    data: OffsetData | None
    written: Event
    by_hand: bool


@dataclass(slots=True, eq=False)
class SegmentView:
    """A sealed segment.

    :ivar ranges: None when it cannot be read.
    :ivar missing: partition -> number of offsets without a record.
    :ivar gone: the commit that removed it, None while it exists.
    """

    group: GroupView
    name: str
    czxid: int
    made: Event
    consumer: str = ""
    ranges: tuple[Range, ...] | None = None
    missing: Mapping[Partition, int] = field(default_factory=dict)
    gone: Event | None = None
    is_lost: bool = False


@dataclass(slots=True, eq=False)
class QueryView:
    """A query's znode.

    :ivar data: None when it cannot be read.
    :ivar steps: (finished, its commit), rising; restarted when it went back.
    """

    name: str
    data: Query | None
    written: Event
    steps: list[tuple[int, Event]] = field(default_factory=list)

    def continues(self, before: QueryView | None) -> None:
        """Add the step from the previous data."""
        finished = self.data.finished if self.data is not None else -1
        if before is not None and before.steps and before.steps[-1][0] <= finished:
            self.steps = before.steps
        if not self.steps or self.steps[-1][0] < finished:
            self.steps.append((finished, self.written))


@dataclass(slots=True, eq=False)
class StateView:
    """A group's state; `data` is None when it cannot be read."""

    data: StateData | None
    written: Event
    by_hand: bool


@dataclass(slots=True, eq=False)
class TopicView:
    """A topic; `data` is None when it cannot be read."""

    data: Topic | None
    written: Event
    czxid: int
    partitions: frozenset[int]


@dataclass(slots=True, eq=False)
class GroupView:
    """A group.

    :ivar state: None without such a znode.
    :ivar sealed: every segment ever, in the order of their czxid; `segments` the existing ones.
    :ivar begun: topic -> the topic as of the group's begin; None when that cannot be read.
    :ivar seats: static members with a seat, each with its czxid; while one is away, it keeps its part.
    :ivar seats_lost: when each seat was last removed.
    :ivar seat_texts: what was last written into a seat, whether or not it exists.
    :ivar asks: the existing ones.  :ivar newest_ask: the last one created, existing or not.
    :ivar requested: the commit of the leader's request for another ask, None without one.
    :ivar changed_at: the last join, leave or change of a member.
    :ivar seat_given_up_at: when a coordinator last gave up the seat of a departed member; minus infinity for never.
    :ivar queries_lost: those whose znode went with its session, and when, until they register again.
    :ivar readers_changed: the last event by which the set of queries changed.
    :ivar hand_at: the last manual write to the group; `state_hand_at` likewise to its state, whose marks are then lost;
        minus infinity for never.
    """

    name: str
    state: StateView | None = None
    channels: dict[str, ChannelView] = field(default_factory=dict)
    members: dict[str, MemberView] = field(default_factory=dict)
    seats: dict[str, int] = field(default_factory=dict)
    seats_lost: dict[str, float] = field(default_factory=dict)
    seat_texts: dict[str, str] = field(default_factory=dict)
    asks: dict[str, AskView] = field(default_factory=dict)
    newest_ask: AskView | None = None
    requested: Event | None = None
    owners: dict[Partition, OwnerView] = field(default_factory=dict)
    offsets: dict[Partition, OffsetView] = field(default_factory=dict)
    begun: dict[str, BegunRecord | None] = field(default_factory=dict)
    segments: dict[str, SegmentView] = field(default_factory=dict)
    sealed: list[SegmentView] = field(default_factory=list)
    queries: dict[str, QueryView] = field(default_factory=dict)
    queries_lost: dict[str, tuple[QueryView, float]] = field(default_factory=dict)
    readers_changed: Event | None = None
    changed_at: float = float("-inf")
    seat_given_up_at: float = float("-inf")
    hand_at: float = float("-inf")
    state_hand_at: float = float("-inf")

    @property
    def is_led(self) -> bool:
        """Whether the group has client-side assignment."""
        return self.state is not None and self.state.data is not None and self.state.data.client is not None

    def is_asked(self, ask: Ask) -> bool:
        """Whether the leader of an ask is alive, in the incarnation that was asked."""
        member = self.members.get(ask.leader)
        registration = member.registration if member is not None else None
        return self.live(ask.leader) and registration is not None and registration.incarnation == ask.incarnation

    def has_identity(self, consumer: str, identity: str) -> bool:
        """Whether the live member of the name has an ask's identity: its incarnation, or a static member's seat."""
        if not self.live(consumer):
            return False
        registration = self.members[consumer].registration
        if consumer in self.seats and identity == f"seat-{self.seats[consumer]:x}":
            return True
        return registration is not None and registration.incarnation == identity

    def live(self, consumer: str) -> bool:
        """Whether the registered incarnation is the channel's, not ended."""
        member, channel = self.members.get(consumer), self.channels.get(consumer)
        return (
            member is not None
            and member.registration is not None
            and channel is not None
            and channel.data is not None
            and channel.data.is_live
            and channel.data.incarnation == member.registration.incarnation
        )

    @property
    def live_members(self) -> list[str]:
        """The live members, in order."""
        return sorted(name for name in self.members if self.live(name))


@dataclass(slots=True, eq=False)
class ChannelChange:
    """A channel was written or removed; `before` and `after` are None where it was not there or cannot be read."""

    view: ChannelView
    before: ChannelData | None
    after: ChannelData | None


@dataclass(slots=True, eq=False)
class AskView:
    """A `sync/ask` znode with its children.

    :ivar group: the group's name.
    :ivar ask: None when it cannot be read.
    :ivar entries: consumer -> its entry; None when it cannot be read.
    :ivar answer: None without one, and when it cannot be read: then `answered` is still set.
    :ivar gone: the commit that removed the ask, None while it exists.
    :ivar by_hand: whether it or a child was written manually.
    :ivar is_torn: whether a coordinator has begun to remove its children.
    """

    group: str
    name: str
    ask: Ask | None
    made: Event
    by_hand: bool
    entries: dict[str, MemberAnswer | None] = field(default_factory=dict)
    answer: Answer | None = None
    answered: Event | None = None
    gone: Event | None = None
    is_torn: bool = False

    @property
    def number(self) -> int:
        """0 when its name is not an ask's."""
        return ask_number(self.name)


@dataclass(slots=True, eq=False)
class AskChange:
    """One operation at or below an ask.

    :ivar what: `THE_ASK`, `ENTRY`, `ANSWER`, or `STRAY` for an unknown child.
    :ivar answered: the answer's commit before this operation.
    :ivar is_new: whether the znode is created; else it is set, or removed (`is_removed`).
    :ivar previous: the ask before this one, when this operation creates it.
    """

    view: AskView
    what: str
    is_new: bool
    is_removed: bool
    answered: Event | None
    previous: AskView | None = None
