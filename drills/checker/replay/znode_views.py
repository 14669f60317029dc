"""The replayed znodes, each with the event that last wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from zk_group.coordinator.zk.znodes.group_state import Answer, Ask, GroupState, MemberAnswer
from zk_group.coordinator.zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import ask_number
from zk_group.coordinator.zk.znodes.records import (
    ASSIGN,
    START_FETCHER,
    STOP_FETCHER,
    BegunRecord,
    Channel,
    Command,
    OffsetRecord,
    OwnerRecord,
    Registration,
    Running,
    Seat,
    Topic,
)
from zk_group.coordinator.zk.znodes.regions import COMPLETED, INITIAL, Checkpoint, Contribution, Region
from zk_group.coordinator.zk.znodes.segments import Query, SealedRange

from .sketches import Key, Sketch
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
    data: Channel | None = None
    owner: str = ""
    by_hand: bool = False
    commands: dict[str, CommandView] = field(default_factory=dict)
    applied: dict[str, Event] = field(default_factory=dict)
    withdrawn: dict[str, Event] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.consumer} of {self.group}"

    @property
    def is_live(self) -> bool:
        return self.data is not None and self.data.is_live

    @property
    def running(self) -> Running:
        """What it runs: nothing that cannot be read."""
        return self.data.running if self.data is not None else {}

    @property
    def has_owners(self) -> bool:
        """Whether each partition that it runs has an owner znode."""
        return self.running.keys() <= self.group.owners.keys()

    def lives_as(self, incarnation: str) -> bool:
        """Whether it is alive in an incarnation."""
        return self.data is not None and self.data.is_live and self.data.incarnation == incarnation


@dataclass(slots=True, eq=False)
class CommandView:
    """A command; `data` is None when it cannot be read. Only starts and stops change what runs."""

    name: str
    data: Command | None
    made: Event
    by_hand: bool

    @property
    def is_start(self) -> bool:
        return self.data is not None and self.data.option == START_FETCHER

    @property
    def is_stop(self) -> bool:
        return self.data is not None and self.data.option == STOP_FETCHER

    def asks_for(self, ask: str) -> bool:
        """Whether it is the `assign` for an ask."""
        return self.data is not None and self.data.option == ASSIGN and self.data.ask == ask

    @property
    def partitions(self) -> PartitionSet:
        """All of a start, or those to revoke of a stop (none: all)."""
        if self.data is None:
            return NONE
        return self.data.started if self.is_start else self.data.partitions


@dataclass(slots=True, eq=False)
class MemberView:
    """An `ids` znode; `registration` is None when it cannot be read."""

    consumer: str
    registration: Registration | None
    written: Event
    session: object
    by_hand: bool = False
    subscribed: tuple[int, str | None, frozenset[str] | None] | None = None


@dataclass(slots=True, eq=False)
class OwnerView:
    """An owner znode; `data` is None when it cannot be read."""

    data: OwnerRecord | None
    session: object
    made: Event
    by_hand: bool


@dataclass(slots=True, eq=False)
class OffsetView:
    """An offset; `data` is None when it cannot be read."""

    data: OffsetRecord | None
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
    ranges: tuple[SealedRange, ...] | None = None
    missing: Mapping[TopicPartition, int] = field(default_factory=dict)
    gone: Event | None = None
    is_lost: bool = False

    def __str__(self) -> str:
        return f"{self.name} of {self.group}"


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

    @property
    def is_expired(self) -> bool:
        return self.data is not None and bool(self.data.expired_ms)

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

    data: GroupState | None
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
    :ivar seat_data: what was last written into a seat, whether or not it exists; None when it cannot be read.
    :ivar asks: the existing ones.  :ivar newest_ask: the last one created, existing or not.
    :ivar requested: the commit of the leader's request for another ask, None without one.
    :ivar changed_at: the last join, leave or change of a member.
    :ivar seat_given_up_at: when a coordinator last gave up the seat of a departed member; minus infinity for never.
    :ivar queries_lost: those whose znode went with its session, and when, until they register again.
    :ivar readers_changed: the last event by which the set of queries changed.
    :ivar deleted_lives: consumer -> incarnations whose channel a hand has deleted, until a channel outlives its life.
    :ivar hand_at: the last manual write to the group; `state_hand_at` likewise to its state, whose marks are then lost;
        minus infinity for never.
    """

    name: str
    state: StateView | None = None
    channels: dict[str, ChannelView] = field(default_factory=dict)
    members: dict[str, MemberView] = field(default_factory=dict)
    seats: dict[str, int] = field(default_factory=dict)
    seat_data: dict[str, Seat | None] = field(default_factory=dict)
    asks: dict[str, AskView] = field(default_factory=dict)
    newest_ask: AskView | None = None
    requested: Event | None = None
    owners: dict[TopicPartition, OwnerView] = field(default_factory=dict)
    offsets: dict[TopicPartition, OffsetView] = field(default_factory=dict)
    begun: dict[str, BegunRecord | None] = field(default_factory=dict)
    segments: dict[str, SegmentView] = field(default_factory=dict)
    sealed: list[SegmentView] = field(default_factory=list)
    queries: dict[str, QueryView] = field(default_factory=dict)
    queries_lost: dict[str, tuple[QueryView, float]] = field(default_factory=dict)
    readers_changed: Event | None = None
    changed_at: float = float("-inf")
    seat_given_up_at: float = float("-inf")
    deleted_lives: dict[str, set[str]] = field(default_factory=dict)
    hand_at: float = float("-inf")
    state_hand_at: float = float("-inf")

    def __str__(self) -> str:
        return f"group {self.name}"

    @property
    def known(self) -> GroupState | None:
        """Its state's data; None without a readable one."""
        return self.state.data if self.state is not None else None

    @property
    def is_edited(self) -> bool:
        """Whether its state was written manually."""
        return self.state is not None and self.state.by_hand

    @property
    def written(self) -> Event | None:
        """The last commit that wrote its state; None without one."""
        return self.state.written if self.state is not None else None

    @property
    def is_led(self) -> bool:
        """Whether the group has client-side assignment."""
        return self.known is not None and self.known.client is not None

    def registration(self, consumer: str) -> Registration | None:
        """What a member has registered; None without a readable one."""
        member = self.members.get(consumer)
        return member.registration if member is not None else None

    def is_asked(self, ask: Ask) -> bool:
        """Whether the leader of an ask is alive, in the incarnation that was asked."""
        return self.live(ask.leader) and self.channels[ask.leader].lives_as(ask.incarnation)

    def live(self, consumer: str) -> bool:
        """Whether the registered incarnation is the channel's, not ended."""
        registration, channel = self.registration(consumer), self.channels.get(consumer)
        return registration is not None and channel is not None and channel.lives_as(registration.incarnation)

    @property
    def pending(self) -> Iterator[tuple[ChannelView, CommandView]]:
        """The commands in its channels."""
        return ((view, command) for view in self.channels.values() for command in view.commands.values())

    @property
    def live_members(self) -> list[str]:
        """The live members, in order."""
        return sorted(name for name in self.members if self.live(name))


@dataclass(slots=True, eq=False)
class AskView:
    """A `sync/ask` znode with its children.

    :ivar ask: None when it cannot be read.
    :ivar entries: consumer -> its entry; None when it cannot be read.
    :ivar answer: None without one, and when it cannot be read: then `answered` is still set.
    :ivar gone: the commit that removed the ask, None while it exists.
    :ivar by_hand: whether it or a child was written manually.
    :ivar is_torn: whether a coordinator has begun to remove its children.
    """

    group: GroupView
    name: str
    ask: Ask | None
    made: Event
    by_hand: bool
    entries: dict[str, MemberAnswer | None] = field(default_factory=dict)
    answer: Answer | None = None
    answered: Event | None = None
    gone: Event | None = None
    is_torn: bool = False

    def __str__(self) -> str:
        return f"{self.name} of {self.group}"

    @property
    def number(self) -> int:
        """0 when its name is not an ask's."""
        return ask_number(self.name)


ROOT, CHECKPOINT, CONTRIBUTION, END = "region", "checkpoint", "contribution", "end"


@dataclass(slots=True, eq=False)
class CheckpointView:
    """A checkpoint with its children.

    :ivar region: the name of its region.
    :ivar data: None when it cannot be read.
    :ivar contributions: name -> its content (None when it cannot be read), and the commit that created it.
    :ivar members: name -> the member's own state, as reported by its application.
    :ivar ends: `completed`, `aborted`, `abandoned` -> the commit that created it.
    :ivar by_hand: whether any part of it was written manually.
    """

    region: str
    number: int
    data: Checkpoint | None
    made: Event
    contributions: dict[str, tuple[Contribution | None, Event]] = field(default_factory=dict)
    members: dict[str, Mapping[Key, Sketch]] = field(default_factory=dict)
    ends: dict[str, Event] = field(default_factory=dict)
    by_hand: bool = False

    def __str__(self) -> str:
        return f"checkpoint {self.number} of region {self.region}"

    def of(self, group: str) -> Iterator[tuple[str, Contribution]]:
        """The valid contributions of a group: of its participants and absent members, then copies."""
        participants = self.data.participants.get(group) if self.data is not None else None
        away = self.away(group)
        prefix = f"{group}~"
        names = [name for name in self.contributions if name.startswith(prefix)]
        for name in sorted(names, key=lambda name: (name.count("~") > 1, name)):
            given, rest = self.contributions[name][0], name[len(prefix) :]
            if given is not None and (participants is None or "~" in rest or rest in participants or rest in away):
                yield rest, given

    def away(self, group: str) -> tuple[str, ...]:
        """Static members of a group that were away at its begin."""
        return self.data.away.get(group, ()) if self.data is not None else ()

    def offsets(self, group: str) -> dict[TopicPartition, tuple[int, str]]:
        """Offset and topic id of each partition of a group."""
        found: dict[TopicPartition, tuple[int, str]] = {}
        for _, given in self.of(group):
            for (topic, number), offset in given.offsets.items():
                found.setdefault(TopicPartition(topic, number), (offset, given.topics.get(topic, "")))
        return found


@dataclass(slots=True, eq=False)
class RegionView:
    """A region.

    :ivar data: None while there is no readable one.
    :ivar written: the last commit that wrote it.  :ivar reset_at: the one that began its current reset.
    :ivar initial: group and partition -> initial offset, and the topic's id.
    """

    name: str
    data: Region | None = None
    written: Event | None = None
    reset_at: Event | None = None
    checkpoints: dict[int, CheckpointView] = field(default_factory=dict)
    initial: dict[tuple[str, TopicPartition], tuple[int, str]] = field(default_factory=dict)
    by_hand: bool = False

    def offsets(self, group: str, checkpoint: int) -> dict[TopicPartition, tuple[int, str]] | None:
        """A group's offsets in a cut: none in one from before it joined; None when unknown."""
        if checkpoint == INITIAL or (self.data is not None and checkpoint < self.data.first.get(group, 1)):
            return {}
        view = self.checkpoints.get(checkpoint)
        if view is None or view.by_hand or COMPLETED not in view.ends:
            return None
        return view.offsets(group)

    def paused(self, group: str, consumer: str, incarnation: str) -> CheckpointView | None:
        """The open checkpoint that an incarnation has contributed to: it waits for its end."""
        view = self.checkpoints.get(self.data.open) if self.data is not None and self.data.open else None
        if view is None or view.ends:
            return None
        given = view.contributions.get(f"{group}~{consumer}", (None, None))[0]
        return view if given is not None and given.incarnation == incarnation else None
