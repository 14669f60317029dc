"""A group's membership in one turn: live, away from a seat, ended, evicted or refused members. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from ..assignors import Assignor
from ..zk.znodes.group_state import CLIENT, CONSUMER, Mark, Target
from ..zk.znodes.partitions import NONE, PartitionSet
from ..zk.znodes.records import (
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
    INCONSISTENT_REGION,
    UNKNOWN_MEMBER_ID,
    Registration,
)
from ..zk.znodes.regions import CONSUMERS as REGION_OF_CONSUMERS
from ..zk.znodes.regions import RegionMembership
from .agreement import ESTABLISHED, NEWCOMER, RETURNING, Agreement, Candidate, Offer, choose
from .snapshot import ChannelView, MemberFacts, SeatView, Snapshot
from .target import is_live

LEASE_REMEDY = "that of the longest session (max_session_timeout_ms of the nodes: the maxSessionTimeout of ZooKeeper)"
FORMING_AT_MOST = 3
"""A new group waits for more members for at most this many initial delays, even while members keep joining."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """An operator's settings for groups.

    :ivar assignment_timeout_s: seconds after which a leader without an answer has failed.
    :ivar initial_delay_s: an empty group waits until no member has joined for this long.
    :ivar max_size: maximum number of members of a group.
    """

    initial_delay_s: float = 0.0
    max_size: int = 2**31 - 1
    assignment_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Termination:
    """The end of an incarnation, to be written.

    :ivar reason: for its channel.
    :ivar evicted: whether its `ids` znode is removed too.
    :ivar owners: owner znodes to remove.
    :ivar foreign: partitions of its `running` that are left as they are: another incarnation owns or runs them, or they
        do not exist.
    :ivar error: the reason as a Kafka error name.
    :ivar seat: the seat to remove with it, None for a dynamic member.
    :ivar since_ms: as of its eviction hold.
    """

    view: ChannelView
    reason: str
    evicted: bool
    owners: PartitionSet
    error: str = UNKNOWN_MEMBER_ID
    seat: SeatView | None = None
    since_ms: int | None = None
    foreign: PartitionSet = NONE

    @property
    def partitions(self) -> PartitionSet:
        """The partitions whose offsets are written."""
        return self.view.running - self.foreign


@dataclass(frozen=True, slots=True)
class Membership:
    """The membership of a group in one turn.

    :ivar live: consumer -> registration, of members that take commands.
    :ivar away: the same of static members that have left and keep their seat, with its partitions.
    :ivar forming: members that wait for the group's first generation.
    :ivar holds: eviction holds: partitions that wait for the lease of an ended member.
    :ivar given_up: seats to remove without an incarnation to end.
    :ivar timers: seconds until the next timed action.
    """

    live: Mapping[str, Registration]
    away: Mapping[str, Registration]
    forming: Mapping[str, Registration]
    terminations: tuple[Termination, ...]
    holds: tuple[Mark, ...]
    given_up: tuple[SeatView, ...]
    agreed: Agreement
    timers: tuple[float, ...]

    @property
    def everybody(self) -> dict[str, Registration]:
        """The members included in the assignment: live and away."""
        return {**self.live, **self.away}

    def keeping_seats(self, names: Container[str]) -> Membership:
        """The same, with the seats of `names` retained."""
        seats = [(view.instance, view.seat) for view in self.given_up if view.instance in names]
        kept = {instance: seat.registration for instance, seat in seats if seat is not None}
        left = tuple(view for view in self.given_up if view.instance not in kept)
        return replace(self, given_up=left, away={**self.away, **kept})


@dataclass(slots=True)
class _Admission:
    """A membership under construction."""

    live: dict[str, Registration]
    away: dict[str, Registration] = field(default_factory=dict)
    forming: dict[str, Registration] = field(default_factory=dict)
    terminations: list[Termination] = field(default_factory=list)
    holds: list[Mark] = field(default_factory=list)
    given_up: list[SeatView] = field(default_factory=list)
    agreed: Agreement = field(default_factory=Agreement)
    timers: list[float] = field(default_factory=list)

    @property
    def everybody(self) -> dict[str, Registration]:
        return {**self.live, **self.away}

    def hold(self, hold: Mark) -> None:
        """Hold partitions until an ended member's lease expires."""
        self.holds.append(hold)
        self.timers.append(hold.lease_ms / 1000)

    def decided(self) -> Membership:
        """The decided membership."""
        lists = tuple(self.terminations), tuple(self.holds), tuple(self.given_up)
        return Membership(self.live, self.away, self.forming, *lists, self.agreed, tuple(self.timers))


def membership(snapshot: Snapshot, assignors: Mapping[str, Assignor], rules: GroupRules) -> Membership:
    """The membership of this turn.

    :raises RebalanceFailed: when the group's members share no strategy that is installed here.
    """
    admission = _Admission(
        {
            name: member.registration
            for name, member in snapshot.members.registered.items()
            if member.registration is not None and is_live(member, snapshot.members.channels.get(name))
        }
    )
    _retain_holds(snapshot, admission)
    _evict(snapshot, admission)
    _end_departed(snapshot, admission)
    _seats(snapshot, admission)
    _refuse(snapshot, admission, assignors, rules)
    _delay_first_generation(snapshot, admission, rules)
    _hold_replaced(snapshot, admission)
    return admission.decided()


def unusable(facts: MemberFacts, members: Membership) -> dict[str, str]:
    """Members excluded from the assignment, each with the reason."""
    reasons = {}
    for name, member in facts.registered.items():
        if member.registration is None:
            reasons[name] = "its registration cannot be read"
        elif facts.channel_of(name) is None:
            reasons[name] = "its channel is missing or cannot be read"
    return {**reasons, **{end.view.consumer: end.reason for end in members.terminations if end.evicted}}


# ---- evictions


def _retain_holds(snapshot: Snapshot, admission: _Admission) -> None:
    """Retain the eviction holds whose lease has not expired."""
    for hold in snapshot.state.marks:
        registration = admission.live.get(hold.consumer)
        if registration is not None and registration.incarnation == hold.incarnation:
            continue  # its eviction was planned, but never committed: it lives
        left_s = hold.lease_ms / 1000 - snapshot.members.hold_age_s.get((hold.consumer, hold.incarnation), 0.0)
        if left_s > 0:
            admission.holds.append(hold)
            admission.timers.append(left_s)


def _evict(snapshot: Snapshot, admission: _Admission) -> None:
    """Evict members that do not comply with a command, or show no activity; their partitions wait for their lease.

    A member whose channel has a later epoch (both znodes of the epoch were lost) takes all commands for stale ones.
    """
    for name, registration in sorted(admission.live.items()):
        view = snapshot.members.channels[name]
        if view.channel is not None and view.channel.epoch > snapshot.coordinator.epoch:
            epoch = snapshot.coordinator.epoch
            reason = f"evicted: its channel has epoch {view.channel.epoch}, and this coordinator is of {epoch}"
            _end_live(snapshot, admission, name, reason, since_ms=_before(snapshot, 0.0))
            continue
        limit_s = registration.max_poll_interval_ms / 1000
        waits_s = view.compliance.waits_s
        if waits_s < limit_s and view.idle_s < limit_s:
            admission.timers.append(limit_s - max(waits_s, view.idle_s))
            continue
        what, remedy = "gave no sign of life", "its process hangs, or max_poll_interval_ms is too short for it"
        if waits_s >= limit_s:
            what = "carried out no command"
            remedy = "raise max_poll_interval_ms, or lower max_poll_records so that it polls more often"
        reason = f"evicted: it {what} for {registration.max_poll_interval_ms} ms ({remedy})"
        since_ms = _before(snapshot, waits_s if waits_s >= limit_s else view.idle_s)
        _end_live(snapshot, admission, name, reason, since_ms=since_ms)


def _before(snapshot: Snapshot, seconds: float) -> int:
    """The wall-clock time `seconds` before the turn."""
    return max(0, snapshot.coordinator.now_ms - round(1000 * seconds))


def _end_live(
    snapshot: Snapshot,
    admission: _Admission,
    name: str,
    reason: str,
    error: str = UNKNOWN_MEMBER_ID,
    since_ms: int | None = None,
) -> None:
    """End a live member. It may fetch until its lease expires: a hold covers its partitions until then."""
    registration, view = admission.live.pop(name), snapshot.members.channels[name]
    owners = view.running & snapshot.partitions.owners
    seat = snapshot.members.seats.get(name) if registration.instance_id == name else None
    admission.terminations.append(Termination(view, reason, True, owners, error, seat, since_ms))
    runs_unowned = _runs_unowned(snapshot, view)
    if view.running or runs_unowned:
        longest_ms = snapshot.coordinator.longest_lease_ms if runs_unowned else 0
        lease = _lease_ms(snapshot, name, registration) or longest_ms
        running = snapshot.partitions.existing(view.running)
        admission.hold(Mark(name, registration.incarnation, running, lease, reason, since_ms))


def _lease_ms(snapshot: Snapshot, name: str, registration: Registration) -> int:
    """An ended member's longest lease, for which it may still fetch.

    A longer lease than any session's is believed only of a member that this coordinator has never seen with another.
    """
    return snapshot.members.registered[name].lease_ms or registration.lease_ms


def _runs_unowned(snapshot: Snapshot, view: ChannelView) -> bool:
    """Whether a member runs resources without owner znodes: no other may start them before its lease expires."""
    return needs_barrier(snapshot) and bool(view.ask)


def _end_departed(snapshot: Snapshot, admission: _Admission) -> None:
    """End incarnations that are over: without an `ids` znode, or ended in part.

    A static member whose session has expired loses its seat: its session timeout is over by then.
    """
    ended = {end.view.consumer for end in admission.terminations}
    for name, view in sorted(snapshot.members.channels.items()):
        channel = view.channel
        if name in admission.live or name in ended or channel is None or not channel.incarnation:
            continue
        member = snapshot.members.registered.get(name)
        if member is not None and member.registration is None:
            continue  # an unreadable registration may be a live member's
        seat = snapshot.members.seats.get(name)
        if channel.is_live:
            reason, error = "its session ended", UNKNOWN_MEMBER_ID
            seat = seat if seat is not None and seat.incarnation == channel.incarnation else None
        elif view.running or _runs_unowned(snapshot, view):
            reason, error, seat = channel.ended or "", channel.error, None
        else:
            continue
        owners = view.running & snapshot.partitions.owners
        admission.terminations.append(Termination(view, reason, False, owners, error, seat))
        if _runs_unowned(snapshot, view):
            admission.hold(Mark(name, channel.incarnation, NONE, lease_ms(snapshot, name), reason))


# ---- static members (KIP-345)


def _seats(snapshot: Snapshot, admission: _Admission) -> None:
    """Keep the seats of members that have left recently; give up those that timed out, or were removed.

    A member with an `ids` znode that is not live is registering, or unreadable: its seat is left for a later turn. A
    seat outside the target gets no partitions while its member is away.
    """
    lost = {end.seat.instance for end in admission.terminations if end.seat is not None}
    for instance, view in sorted(snapshot.members.seats.items()):
        seat, live = view.seat, admission.live.get(instance)
        if seat is None or instance in lost:
            continue
        is_expected = instance in snapshot.state.target
        left_s = seat.session_timeout_ms / 1000 - view.away_s
        if live is not None and live.instance_id == instance:
            if seat.removed is not None:
                _end_live(snapshot, admission, instance, f"removed: {seat.removed}")
        elif live is None and instance in snapshot.members.registered:
            if is_expected:
                admission.away[instance] = seat.registration
        elif live is None and is_expected and seat.removed is None and left_s > 0:
            admission.away[instance] = seat.registration
            admission.timers.append(left_s)
        else:
            admission.given_up.append(view)


# ---- admission


def _refuse(snapshot: Snapshot, admission: _Admission, assignors: Mapping[str, Assignor], rules: GroupRules) -> None:
    """Refuse members of another region, without a common strategy, or over the maximum size."""
    region = _region_of(snapshot, admission)
    for name, registration in sorted(admission.everybody.items()):
        if reason := _inconsistent(region, registration):
            _refuse_member(snapshot, admission, name, f"refused: {reason}", INCONSISTENT_REGION)
    for name, registration in sorted(admission.live.items()):
        longest_ms = snapshot.coordinator.longest_lease_ms
        if registration.lease_ms > longest_ms:
            reason = f"refused: its lease_ms of {registration.lease_ms} is over {longest_ms}, {LEASE_REMEDY}"
            _refuse_member(snapshot, admission, name, reason, INCONSISTENT_GROUP_PROTOCOL)
    candidates = [
        Candidate(
            name,
            () if registration.pattern == CLIENT else registration.protocols,
            _rank(snapshot, name, registration),
            _czxid(snapshot, name),
            registration.client,
        )
        for name, registration in admission.everybody.items()
    ]
    before = snapshot.state
    choice = choose(candidates, before.strategy, assignors, rules.max_size, before.client is not None)
    offer = choice.offer or Offer(before.strategy)
    admission.agreed = Agreement(offer.name, offer.is_client_side, offer.protocol_type, region)
    for name in sorted(choice.too_many):
        reason = f"refused: the group has {rules.max_size} members, as many as it may have (group_max_size)"
        _refuse_member(snapshot, admission, name, reason, GROUP_MAX_SIZE_REACHED)
    for name, reason in sorted(choice.refused.items()):
        _refuse_member(snapshot, admission, name, f"refused: {reason}", INCONSISTENT_GROUP_PROTOCOL)


def _region_of(snapshot: Snapshot, admission: _Admission) -> RegionMembership | None:
    """The group's region; without one, that of its first member."""
    view, bound = snapshot.region, snapshot.state.region
    record = view.record if view is not None else None
    everybody = admission.everybody
    first = min(everybody, key=lambda n: (_rank(snapshot, n, everybody[n]), _czxid(snapshot, n), n), default=None)
    offered = everybody[first].region if first is not None else None
    kind = record.kind if record is not None else offered.kind if offered is not None else REGION_OF_CONSUMERS
    if bound is not None:
        return RegionMembership(bound.name, kind)
    is_listed = record is not None and snapshot.group in record.groups and not snapshot.state.target
    if view is None or (offered is None and not is_listed):
        return offered
    # The region that was read: when another member has just become the first, the next turn reads its region.
    return RegionMembership(view.name, kind)


def _czxid(snapshot: Snapshot, name: str) -> int:
    """When a member has registered; 0 for one that is away."""
    return snapshot.members.registered[name].czxid if name in snapshot.members.registered else 0


def _inconsistent(region: RegionMembership | None, registration: Registration) -> str:
    """Why a member does not fit a group of this region; empty when it does."""
    offered = registration.region
    if offered is not None and registration.protocol_type != CONSUMER:
        return "a consistent region is for consumers of partitions"
    if offered == region:
        return ""
    if region is None:
        return f"the group is in no consistent region, and it registers for {offered.name if offered else '-'}"
    if offered is None:
        return f"the group is in consistent region {region.name}, and it registers for none"
    if offered.name == region.name:
        return f"region {region.name} is one of {region.kind}, and it registers for one of {offered.kind}"
    return f"the group is in consistent region {region.name}, and it registers for {offered.name}"


def _rank(snapshot: Snapshot, name: str, registration: Registration) -> int:
    target = snapshot.state.target.get(name)
    if target is None:
        return NEWCOMER
    if target.incarnation == registration.incarnation:
        return ESTABLISHED
    return RETURNING if name in snapshot.members.seats and registration.instance_id == name else NEWCOMER


def _refuse_member(snapshot: Snapshot, admission: _Admission, name: str, reason: str, error: str) -> None:
    if name in admission.live:
        _end_live(snapshot, admission, name, reason, error)
        return
    del admission.away[name]
    if name not in snapshot.members.registered:  # else it is registering: left for a later turn
        admission.given_up.append(snapshot.members.seats[name])


def _delay_first_generation(snapshot: Snapshot, admission: _Admission, rules: GroupRules) -> None:
    """Delay the first generation of an empty group until more members have joined (KIP-134), or all slots of pools."""
    if snapshot.state.target or any(snapshot.members.channels[name].running for name in admission.live):
        return
    ages = [snapshot.members.registered[name].age_s for name in admission.live]
    if not ages or (snapshot.members.slots and snapshot.members.slots <= admission.live.keys()):
        return
    left_s = min(rules.initial_delay_s - min(ages), FORMING_AT_MOST * rules.initial_delay_s - max(ages))
    if left_s > 0:
        admission.forming, admission.live = admission.live, {}
        admission.timers.append(left_s)


LONGEST_LEASE_MS = 40_000
"""The default for an unknown member: 2/3 of the longest session (60 s) of an ensemble with ticks of 3 s."""


def needs_barrier(snapshot: Snapshot) -> bool:
    """Whether the group's resources have no owners, by `state`, else by its members."""
    client = snapshot.state.client
    if client is not None:
        return client.protocol_type != CONSUMER
    registrations = (member.registration for member in snapshot.members.registered.values())
    return any(each is not None and each.protocol_type != CONSUMER for each in registrations)


def lease_ms(snapshot: Snapshot, consumer: str) -> int:
    """A departed member's lease, for which it may continue: of the adopted request, else the maximum."""
    client = snapshot.state.client
    for view in snapshot.requests.asks:
        if client is not None and view.name == client.ask and view.ask is not None and consumer in view.ask.members:
            asked = view.ask.members[consumer]
            # A seat may have had a later incarnation than the one in the ask, with another lease.
            return asked.lease_ms if asked.lease_ms and not asked.is_seat else snapshot.coordinator.longest_lease_ms
    return snapshot.coordinator.longest_lease_ms


UNKNOWN = "unknown"


def _hold_replaced(snapshot: Snapshot, admission: _Admission) -> None:
    """Wait for the lease of started members whose name was taken over: they may not know it yet.

    Where `state` was lost, one hold covers all members.
    """
    if not needs_barrier(snapshot):
        return
    known = {(hold.consumer, hold.incarnation) for hold in admission.holds}
    runs = any(view.ask for view in snapshot.members.channels.values())
    if snapshot.state.client is None and runs and all(consumer != UNKNOWN for consumer, _ in known):
        life, lease = f"epoch-{snapshot.coordinator.epoch}", snapshot.coordinator.longest_lease_ms
        admission.hold(Mark(UNKNOWN, life, NONE, lease, "the state was lost"))
    for name, before in sorted(snapshot.state.target.items()):
        if before.is_sent and _is_taken_over(snapshot, name, before) and (name, before.incarnation) not in known:
            why = "another process has taken its name"
            admission.hold(Mark(name, before.incarnation, NONE, lease_ms(snapshot, name), why))


def _is_taken_over(snapshot: Snapshot, name: str, before: Target) -> bool:
    channel = snapshot.members.channel_of(name)
    return channel is None or channel.incarnation != before.incarnation
