"""The replayed znodes, each with the event that last wrote it."""

from __future__ import annotations

from collections.abc import Mapping

from coordinator.zk.znodes.paths import ask_number
from coordinator.zk.znodes.records import BegunRecord, Registration, Topic
from coordinator.zk.znodes.segments import Query
from coordinator.zk.znodes.sync import Answer, Ask, MemberAnswer

from .channel_data import ChannelData
from .fast_json import Partition
from .reading import CommandData, OffsetData, Range, StateData
from .verdict import Event

THE_ASK, ENTRY, ANSWER, STRAY = "ask", "entry", "answer", "stray"


class ChannelView:
    """A channel.

    :ivar data: None when it cannot be read.
    :ivar written: the last commit that wrote it.  :ivar since: the one that began this incarnation, or ended it.
    :ivar owner: the process that registered the incarnation.
    :ivar by_hand: whether it was written manually since the incarnation registered.
    :ivar applied: commands that it has named, since its creation.  :ivar withdrawn: those that a coordinator removed.
    """

    __slots__ = (
        "applied", "by_hand", "commands", "consumer", "data", "group", "owner", "since", "withdrawn", "written",
    )  # fmt: skip

    def __init__(self, group: GroupView, consumer: str, written: Event) -> None:
        self.group = group
        self.consumer = consumer
        self.data: ChannelData | None = None
        self.written = written
        self.since = written
        self.owner = ""
        self.by_hand = False
        self.commands: dict[str, CommandView] = {}
        self.applied: dict[str, Event] = {}
        self.withdrawn: dict[str, Event] = {}

    @property
    def is_live(self) -> bool:
        return self.data is not None and self.data.is_live


class CommandView:
    """A command; `data` is None when it cannot be read."""

    __slots__ = ("by_hand", "data", "made", "name")

    def __init__(self, name: str, data: CommandData | None, made: Event, by_hand: bool) -> None:
        self.name = name
        self.data = data
        self.made = made
        self.by_hand = by_hand


class MemberView:
    """An `ids` znode; `registration` is None when it cannot be read."""

    __slots__ = ("by_hand", "consumer", "czxid", "registration", "session", "subscribed", "written")

    def __init__(
        self, consumer: str, registration: Registration | None, written: Event, session: object, czxid: int
    ) -> None:
        self.consumer = consumer
        self.registration = registration
        self.written = written
        self.session = session
        self.czxid = czxid
        self.by_hand = False
        self.subscribed: tuple[int, str | None, frozenset[str] | None] | None = None


class OwnerView:
    """An owner znode; its data is parsed on demand."""

    __slots__ = ("by_hand", "made", "session", "text")

    def __init__(self, text: str, session: object, made: Event, by_hand: bool) -> None:
        self.text = text
        self.session = session
        self.made = made
        self.by_hand = by_hand


class OffsetView:
    """An offset; `data` is None when it cannot be read."""

    __slots__ = ("by_hand", "data", "written")

    def __init__(self, data: OffsetData | None, written: Event, by_hand: bool) -> None:
        self.data = data
        self.written = written
        self.by_hand = by_hand


class SegmentView:
    """A sealed segment.

    :ivar ranges: None when it cannot be read.
    :ivar missing: partition -> number of offsets without a record.
    :ivar gone: the commit that removed it, None while it exists.
    """

    __slots__ = ("consumer", "czxid", "gone", "group", "is_lost", "made", "missing", "name", "ranges")

    def __init__(self, group: GroupView, name: str, czxid: int, made: Event) -> None:
        self.group = group
        self.name = name
        self.czxid = czxid
        self.made = made
        self.consumer = ""
        self.ranges: tuple[Range, ...] | None = None
        self.missing: Mapping[Partition, int] = {}
        self.gone: Event | None = None
        self.is_lost = False


class QueryView:
    """A query's znode.

    :ivar data: None when it cannot be read.
    :ivar steps: (finished, its commit), rising; restarted when it went back.
    """

    __slots__ = ("data", "name", "steps", "written")

    def __init__(self, name: str, data: Query | None, written: Event) -> None:
        self.name = name
        self.data = data
        self.written = written
        self.steps: list[tuple[int, Event]] = []

    def continues(self, before: QueryView | None) -> None:
        """Add the step from the previous data."""
        finished = self.data.finished if self.data is not None else -1
        if before is not None and before.steps and before.steps[-1][0] <= finished:
            self.steps = before.steps
        if not self.steps or self.steps[-1][0] < finished:
            self.steps.append((finished, self.written))


class StateView:
    """A group's state; `data` is None when it cannot be read."""

    __slots__ = ("by_hand", "data", "written")

    def __init__(self, data: StateData | None, written: Event, by_hand: bool) -> None:
        self.data = data
        self.written = written
        self.by_hand = by_hand


class TopicView:
    """A topic; `data` is None when it cannot be read."""

    __slots__ = ("czxid", "data", "partitions", "written")

    def __init__(self, data: Topic | None, written: Event, czxid: int) -> None:
        self.data = data
        self.written = written
        self.czxid = czxid
        self.partitions = frozenset(data.partitions) if data is not None else frozenset()


# Large: an attribute for each kind of znode below a group.
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

    __slots__ = (
        "asks", "begun", "changed_at", "channels", "hand_at", "members", "name", "newest_ask", "offsets", "owners",
        "queries", "queries_lost", "readers_changed", "requested", "sealed", "seat_given_up_at", "seat_texts", "seats",
        "seats_lost", "segments", "state", "state_hand_at",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: StateView | None = None
        self.channels: dict[str, ChannelView] = {}
        self.members: dict[str, MemberView] = {}
        self.seats: dict[str, int] = {}
        self.seats_lost: dict[str, float] = {}
        self.seat_texts: dict[str, str] = {}
        self.asks: dict[str, AskView] = {}
        self.newest_ask: AskView | None = None
        self.requested: Event | None = None
        self.owners: dict[Partition, OwnerView] = {}
        self.offsets: dict[Partition, OffsetView] = {}
        self.begun: dict[str, BegunRecord | None] = {}
        self.segments: dict[str, SegmentView] = {}
        self.sealed: list[SegmentView] = []
        self.queries: dict[str, QueryView] = {}
        self.queries_lost: dict[str, tuple[QueryView, float]] = {}
        self.readers_changed: Event | None = None
        self.changed_at = float("-inf")
        self.seat_given_up_at = float("-inf")
        self.hand_at = float("-inf")
        self.state_hand_at = float("-inf")

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


class ChannelChange:
    """A channel was written or removed; `before` and `after` are None where it was not there or cannot be read."""

    __slots__ = ("after", "before", "view")

    def __init__(self, view: ChannelView, before: ChannelData | None, after: ChannelData | None) -> None:
        self.view = view
        self.before = before
        self.after = after


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

    __slots__ = ("answer", "answered", "ask", "by_hand", "entries", "gone", "group", "is_torn", "made", "name")

    def __init__(self, group: str, name: str, ask: Ask | None, made: Event, by_hand: bool) -> None:
        self.group = group
        self.name = name
        self.ask = ask
        self.made = made
        self.by_hand = by_hand
        self.entries: dict[str, MemberAnswer | None] = {}
        self.answer: Answer | None = None
        self.answered: Event | None = None
        self.gone: Event | None = None
        self.is_torn = False

    @property
    def number(self) -> int:
        """0 when its name is not an ask's."""
        return ask_number(self.name)


class AskChange:
    """One operation at or below an ask.

    :ivar what: `THE_ASK`, `ENTRY`, `ANSWER`, or `STRAY` for an unknown child.
    :ivar answered: the answer's commit before this operation.
    :ivar is_new: whether the znode is created; else it is set, or removed (`is_removed`).
    :ivar previous: the ask before this one, when this operation creates it.
    """

    __slots__ = ("answered", "is_new", "is_removed", "previous", "view", "what")

    def __init__(
        self, view: AskView, what: str, is_new: bool, is_removed: bool, previous: AskView | None = None
    ) -> None:
        self.view = view
        self.what = what
        self.is_new = is_new
        self.is_removed = is_removed
        self.answered = view.answered
        self.previous = previous
