"""A turn's view of a group, as immutable values: the whole input of `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..zk.znodes.cuts import NO_CUT, GroupCut
from ..zk.znodes.group_state import Answer, Ask, GroupState, MemberAnswer, Rebalance
from ..zk.znodes.partitions import NONE, PartitionSet, TopicPartition, topics_of
from ..zk.znodes.records import Channel, Command, Registration, Seat, Topic
from ..zk.znodes.regions import Region


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command in a channel.

    :ivar name: its znode's name.
    :ivar command: None when it cannot be read.
    :ivar age_s: seconds since this coordinator first saw it.
    """

    name: str
    command: Command | None
    age_s: float = 0.0

    @property
    def option(self) -> str:
        """The command's option; empty when it cannot be read."""
        return self.command.option if self.command is not None else ""


Wave = tuple[str, int, int, str, int]
"""Commands of one kind that a member gets for one target: option, epoch, generation, ask and reset."""


def wave_of(command: Command) -> Wave:
    """The wave of a stop or start."""
    reset = command.region.reset if command.region is not None else 0
    return command.option, command.epoch, command.generation, command.ask, reset


@dataclass(frozen=True, slots=True)
class Compliance:
    """How a member has complied with its commands, as this coordinator remembers.

    :ivar waits_s: seconds since the first command that it has not complied with was sent, replaced ones included.
    :ivar paced: wave -> seconds until its next command.
    :ivar loss_pause_s: seconds until another loss of its owner znodes begins a generation.
    """

    waits_s: float = 0.0
    paced: Mapping[Wave, float] = field(default_factory=dict)
    loss_pause_s: float = 0.0


COMPLIANT = Compliance()


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel znode with its commands, in the order of their sequence.

    :ivar channel: None when its data cannot be read.
    :ivar version: its data version, the consumer's fence.
    :ivar idle_s: seconds since this coordinator saw its data change.
    :ivar written_ms: when its data was written, by ZooKeeper's clock.
    """

    consumer: str
    version: int
    channel: Channel | None
    commands: tuple[SentCommand, ...] = ()
    idle_s: float = 0.0
    written_ms: int = 0
    compliance: Compliance = COMPLIANT

    @property
    def running(self) -> PartitionSet:
        """The running partitions, by its channel."""
        return frozenset(self.channel.running) if self.channel else NONE

    @property
    def ask(self) -> str:
        """The ask whose answer it runs, by its channel; empty without one."""
        return self.channel.ask if self.channel is not None else ""


@dataclass(frozen=True, slots=True)
class Member:
    """An `ids` znode. Its identity is (name, czxid); `registration` is None when it cannot be read.

    :ivar age_s: seconds since this coordinator first saw it.
    :ivar lease_ms: the longest lease that it has had here and that a session may have, 0 without one.
    :ivar created_ms: when it was created, by ZooKeeper's clock.
    """

    consumer: str
    czxid: int
    registration: Registration | None
    age_s: float = 0.0
    lease_ms: int = 0
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class SeatView:
    """A `seats` znode.

    :ivar seat: None when it cannot be read.
    :ivar away_s: seconds since this coordinator first saw the seat without an `ids` znode.
    """

    instance: str
    version: int
    seat: Seat | None
    away_s: float = 0.0
    czxid: int = 0

    @property
    def incarnation(self) -> str:
        """The seat's last incarnation."""
        return self.seat.registration.incarnation if self.seat is not None else ""


@dataclass(frozen=True, slots=True)
class RequestView:
    """A `sync/ask` znode with its children.

    :ivar ask: None when it cannot be read.
    :ivar answer: None without one, or with an unusable one: then `problem` has the reason.
    :ivar entries: consumer -> its entry; read only while the answer may still be adopted.
    :ivar children: the names of its children.
    :ivar age_s: seconds since this coordinator first saw it.
    """

    name: str
    ask: Ask | None
    answer: Answer | None = None
    problem: str = ""
    entries: Mapping[str, MemberAnswer] = field(default_factory=dict)
    children: tuple[str, ...] = ()
    age_s: float = 0.0

    @property
    def is_answered(self) -> bool:
        return self.answer is not None or bool(self.problem)


@dataclass(frozen=True, slots=True)
class SyncRequestView:
    """A `sync_request` znode: a leader's request for another ask."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class RegionView:
    """The consistent region of a group.

    :ivar record: None without one.  :ivar version: its data version, None likewise.
    :ivar cut: the group's contributions to the region's cut.
    :ivar held_for: the checkpoint that a generation of the group waits for, 0 for none; `held_s` for how long.
    :ivar has_initial: for a group not bound to it: whether `initial` has offsets of a previous group of its name.
    :ivar refusal: why the group cannot be rebalanced in it: its cut cannot be read, or the access policy refuses the
        binding; empty when it can.
    """

    name: str
    record: Region | None = None
    version: int | None = None
    cut: GroupCut = NO_CUT
    held_for: int = 0
    held_s: float = 0.0
    has_initial: bool = False
    refusal: str = ""

    @property
    def is_unreadable(self) -> bool:
        """Whether there is a region that cannot be read."""
        return self.record is None and self.version is not None


# ---- the facts of a turn


@dataclass(frozen=True, slots=True)
class CoordinatorFacts:
    """The coordinator that decides.

    :ivar now_ms: its wall clock.
    :ivar longest_lease_ms: of the longest session that ZooKeeper grants.
    """

    epoch: int
    now_ms: int = 0
    longest_lease_ms: int = 40_000


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """The group's members by name.

    :ivar registered: their `ids` znodes.
    :ivar seats: instance id -> seat, of static members, present or away.
    :ivar slots: the consumers of the group's fetcher pools; read only before its first generation.
    :ivar hold_age_s: (consumer, incarnation) of each eviction hold -> seconds since it was made or first read here.
    """

    channels: Mapping[str, ChannelView] = field(default_factory=dict)
    registered: Mapping[str, Member] = field(default_factory=dict)
    seats: Mapping[str, SeatView] = field(default_factory=dict)
    slots: frozenset[str] = frozenset()
    hold_age_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def channel_of(self, consumer: str) -> Channel | None:
        """The data of a member's channel; None without a readable one."""
        return self.channels[consumer].channel if consumer in self.channels else None


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Topics and partitions.

    :ivar topics: every existing topic.
    :ivar owners: partitions whose owner znode exists.  :ivar offsets: those whose offset znode exists.
    :ivar on_thread: partition -> the thread in its owner znode, of members that have several threads.
    """

    topics: Mapping[str, Topic] = field(default_factory=dict)
    owners: PartitionSet = NONE
    offsets: PartitionSet = NONE
    on_thread: Mapping[TopicPartition, str] = field(default_factory=dict)

    def existing(self, partitions: PartitionSet) -> PartitionSet:
        """Those of `partitions` that exist, or have an owner or offset znode: a channel may name any."""
        other = partitions - self.owners - self.offsets
        numbers = {topic: frozenset(self.topics[topic].partitions) for topic in topics_of(other) & self.topics.keys()}
        return partitions - {part for part in other if part.partition not in numbers.get(part.topic, ())}


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """Assignment requests to leaders.

    :ivar asks: in the order of their numbers.
    :ivar failed_age_s: seconds since this coordinator saw the last one fail.
    :ivar grown_age_s: seconds since this coordinator saw added partitions of a topic of the adopted assignment.
    """

    asks: tuple[RequestView, ...] = ()
    sync_request: SyncRequestView | None = None
    failed_age_s: float = 0.0
    grown_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """The group's history.

    :ivar generations: those with a history znode.  :ivar last: the current one's record.
    :ivar silences: member of the target that has run something -> milliseconds since its incarnation there fetched.
    :ivar returned: the same of a restarted member's previous incarnation, until the group is Stable.
    """

    generations: tuple[int, ...] = ()
    last: Rebalance | None = None
    silences: Mapping[str, int] = field(default_factory=dict)
    returned: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One group, as a turn read it: state, channels (commands before data), requests, ids, owners, in this order.

    :ivar region: the group's region, or that of its members' registrations.
    """

    group: str
    coordinator: CoordinatorFacts
    state: GroupState
    members: MemberFacts = field(default_factory=MemberFacts)
    partitions: PartitionFacts = field(default_factory=PartitionFacts)
    requests: RequestFacts = field(default_factory=RequestFacts)
    region: RegionView | None = None
    history: HistoryFacts = field(default_factory=HistoryFacts)
