"""Who is in a group, as one turn sees it: who lives, is away from a seat, is ended, evicted or refused. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .assignors import Assignor
from .planning.leases import UNKNOWN_LEASE_MS, is_exclusive, lease_ms
from .snapshot import ChannelView, SeatView, Snapshot
from .strategy import ESTABLISHED, NEWCOMER, RETURNING, Candidate, choose
from .target import is_live
from .zk.partitions import NONE, PartitionSet
from .zk.records import Registration
from .zk.refusals import GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL, INCONSISTENT_REGION, UNKNOWN_MEMBER_ID
from .zk.regions import CONSUMERS as REGION_OF_CONSUMERS
from .zk.regions import RegionMembership
from .zk.state import Mark
from .zk.sync import CLIENT, CONSUMER

FORMING_AT_MOST = 3
"""A group that forms waits for more members no longer than this many initial delays, however many still come."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What an operator has set for groups.

    :ivar assignment_timeout_s: a leader that has not answered for so long has failed.
    :ivar initial_delay_s: a group without members waits for more of them until nobody has joined for so long.
    :ivar max_size: members that a group may have.
    """

    initial_delay_s: float = 0.0
    max_size: int = 2**31 - 1
    assignment_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class End:
    """An incarnation that is ended in ZooKeeper.

    :ivar reason: what its channel will say.
    :ivar evicted: whether its `ids` znode is removed too.
    :ivar owners: owner znodes to remove.
    :ivar error: the reason in one of Kafka's words.
    :ivar seat: the seat that it loses with it, None for a dynamic member.
    """

    view: ChannelView
    reason: str
    evicted: bool
    owners: PartitionSet
    error: str = UNKNOWN_MEMBER_ID
    seat: SeatView | None = None


@dataclass(slots=True)
class Membership:
    """What a turn makes of who is there.

    :ivar live: consumer -> registration, of those that take commands.
    :ivar away: the same of static members that have left, whose seat is kept: they keep their part.
    :ivar forming: members that wait, with the group's others, for the first generation.
    :ivar given_up: seats to remove of which nobody's incarnation is ended.
    :ivar strategy: the one that the group uses.
    :ivar is_client_side: whether a member decides by it, and not this node.
    :ivar protocol_type: what the group assigns.
    :ivar region: the consistent region that the group is in.
    :ivar timers: seconds until something of this is due.
    """

    live: dict[str, Registration]
    away: dict[str, Registration] = field(default_factory=dict)
    forming: dict[str, Registration] = field(default_factory=dict)
    ends: list[End] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    given_up: list[SeatView] = field(default_factory=list)
    strategy: str = ""
    is_client_side: bool = False
    protocol_type: str = CONSUMER
    region: RegionMembership | None = None
    timers: list[float] = field(default_factory=list)

    @property
    def everybody(self) -> dict[str, Registration]:
        """Whoever has a part in the assignment."""
        return {**self.live, **self.away}


def membership(snapshot: Snapshot, assignors: Mapping[str, Assignor], rules: GroupRules) -> Membership:
    """Who has a part in this turn.

    :raises RebalanceFailed: when the members that the group has share no strategy that is known here.
    """
    found = Membership(_live_members(snapshot))
    _keep_marks(snapshot, found)
    _evict(snapshot, found)
    _end_the_gone(snapshot, found)
    _seats(snapshot, found)
    _refuse(snapshot, found, assignors, rules)
    _wait_for_more(snapshot, found, rules)
    return found


def unusable(snapshot: Snapshot, found: Membership) -> dict[str, str]:
    """Members that have no part, each with the reason."""
    reasons = {}
    for name, member in snapshot.members.items():
        view = snapshot.channels.get(name)
        if member.registration is None:
            reasons[name] = "its registration cannot be read"
        elif view is None or view.channel is None:
            reasons[name] = "its channel is missing or cannot be read"
    return {**reasons, **{end.view.consumer: end.reason for end in found.ends if end.evicted}}


def _live_members(snapshot: Snapshot) -> dict[str, Registration]:
    return {
        name: member.registration
        for name, member in snapshot.members.items()
        if member.registration is not None and is_live(member, snapshot.channels.get(name))
    }


# ---- evictions


def _keep_marks(snapshot: Snapshot, found: Membership) -> None:
    """The eviction marks whose lease still runs."""
    for mark in snapshot.state.marks:
        registration = found.live.get(mark.consumer)
        if registration is not None and registration.incarnation == mark.incarnation:
            continue  # its eviction was planned, but never happened: it lives
        left_s = mark.lease_ms / 1000 - snapshot.mark_age_s.get((mark.consumer, mark.incarnation), 0.0)
        if left_s > 0:
            found.marks.append(mark)
            found.timers.append(left_s)


def _evict(snapshot: Snapshot, found: Membership) -> None:
    """End those that do not acknowledge or give no sign of life; their partitions wait for their lease."""
    for name, registration in sorted(found.live.items()):
        view = snapshot.channels[name]
        limit_s = registration.max_poll_interval_ms / 1000
        waits_s = max((command.age_s for command in view.commands if not command.is_drain), default=0.0)
        waits_s = max(waits_s, view.waits_s)  # churn that replaces its commands does not postpone it
        if waits_s < limit_s and view.idle_s < limit_s:
            found.timers.append(limit_s - max(waits_s, view.idle_s))
            continue
        what, remedy = "gave no sign of life", "its process hangs, or max_poll_interval_ms is too short for it"
        if waits_s >= limit_s:
            what = "acknowledged no command"
            remedy = "raise max_poll_interval_ms, or lower max_poll_records so that it polls more often"
        reason = f"evicted: it {what} for {registration.max_poll_interval_ms} ms ({remedy})"
        _put_out(snapshot, found, name, reason)


def _put_out(snapshot: Snapshot, found: Membership, name: str, reason: str, error: str = UNKNOWN_MEMBER_ID) -> None:
    """End one that lives. What it runs it may fetch until its lease is over, so a mark covers it until then."""
    registration, view = found.live.pop(name), snapshot.channels[name]
    owners = view.running & snapshot.owners
    seat = snapshot.seats.get(name) if registration.instance_id == name else None
    found.ends.append(End(view, reason, True, owners, error, seat))
    runs_unowned = _runs_unowned(snapshot, view)
    if view.running or runs_unowned:
        lease = registration.lease_ms or (UNKNOWN_LEASE_MS if runs_unowned else 0)
        _mark(found, Mark(name, registration.incarnation, view.running, lease, reason))


def _runs_unowned(snapshot: Snapshot, view: ChannelView) -> bool:
    """Whether a member runs what no owner znode stands for: nobody else may begin before its lease is over."""
    return is_exclusive(snapshot) and view.channel is not None and bool(view.channel.ask)


def _mark(found: Membership, mark: Mark) -> None:
    found.marks.append(mark)
    found.timers.append(mark.lease_ms / 1000)


def _end_the_gone(snapshot: Snapshot, found: Membership) -> None:
    """End in ZooKeeper what has ended there: no `ids` znode of that incarnation, or ended half-way.

    A static member whose session has ended loses its seat with it: its session timeout is over by then.
    """
    put_out = {end.view.consumer for end in found.ends}
    for name, view in sorted(snapshot.channels.items()):
        channel = view.channel
        if name in found.live or name in put_out or channel is None or not channel.incarnation:
            continue
        member = snapshot.members.get(name)
        if member is not None and member.registration is None:
            continue  # a registration that cannot be read is no proof that nobody lives there
        owners = view.running & snapshot.owners
        if channel.is_live:
            seat = snapshot.seats.get(name)
            its_own = seat is not None and seat.incarnation == channel.incarnation
            reason = "its session ended"
            found.ends.append(End(view, reason, False, owners, seat=seat if its_own else None))
            if _runs_unowned(snapshot, view):
                _mark(found, Mark(name, channel.incarnation, NONE, lease_ms(snapshot, name), reason))
        elif view.running or _runs_unowned(snapshot, view):
            reason = channel.ended or ""
            found.ends.append(End(view, reason, False, owners, channel.error))
            if _runs_unowned(snapshot, view):
                _mark(found, Mark(name, channel.incarnation, NONE, lease_ms(snapshot, name), reason))


# ---- static members (KIP-345)


def _seats(snapshot: Snapshot, found: Membership) -> None:
    """Keep the seats of those that have left for a moment; give up those whose time is over, or that were removed.

    Somebody who has an `ids` znode and is not live is just registering, or cannot be read: its seat is left alone, and
    the next turn sees it whole. One that the group has nothing for yet has no part while it is away.
    """
    lost = {end.seat.instance for end in found.ends if end.seat is not None}
    for instance, view in sorted(snapshot.seats.items()):
        seat, live = view.seat, found.live.get(instance)
        if seat is None or instance in lost:
            continue
        is_expected = instance in snapshot.state.target
        left_s = seat.session_timeout_ms / 1000 - view.away_s
        if live is not None and live.instance_id == instance:
            if seat.removed is not None:
                _put_out(snapshot, found, instance, f"removed: {seat.removed}")
        elif live is None and instance in snapshot.members:
            if is_expected:
                found.away[instance] = seat.registration
        elif live is None and is_expected and seat.removed is None and left_s > 0:
            found.away[instance] = seat.registration
            found.timers.append(left_s)
        else:
            found.given_up.append(view)


# ---- who may come in


def _refuse(snapshot: Snapshot, found: Membership, assignors: Mapping[str, Assignor], rules: GroupRules) -> None:
    """Refuse those of another region, those that share no strategy with the others, and those that are too many."""
    found.region = _region_of(snapshot, found)
    for name, registration in sorted(found.everybody.items()):
        if reason := _inconsistent(found.region, registration):
            _turn_away(snapshot, found, name, f"refused: {reason}", INCONSISTENT_REGION)
    candidates = [
        Candidate(
            name,
            () if registration.pattern == CLIENT else registration.protocols,
            _rank(snapshot, name, registration),
            snapshot.members[name].czxid if name in snapshot.members else 0,
            registration.client,
        )
        for name, registration in found.everybody.items()
    ]
    before = snapshot.state
    choice = choose(candidates, before.strategy, assignors, rules.max_size, before.client is not None)
    found.strategy = choice.name or before.strategy
    if choice.offer is not None:
        found.is_client_side, found.protocol_type = choice.offer.is_client_side, choice.offer.protocol_type
    for name in sorted(choice.too_many):
        reason = f"refused: the group has {rules.max_size} members, as many as it may have (group_max_size)"
        _turn_away(snapshot, found, name, reason, GROUP_MAX_SIZE_REACHED)
    for name, reason in sorted(choice.refused.items()):
        _turn_away(snapshot, found, name, f"refused: {reason}", INCONSISTENT_GROUP_PROTOCOL)


def _region_of(snapshot: Snapshot, found: Membership) -> RegionMembership | None:
    """The region that the group is bound to; of one that is bound to none, that of its first member."""
    view = snapshot.region
    first = min(found.everybody.items(), key=lambda one: (_rank(snapshot, *one), _age(snapshot, one[0])), default=None)
    offered = first[1].region if first is not None else None
    if snapshot.state.region is not None or _is_bound(snapshot):
        name = snapshot.state.region.name if snapshot.state.region is not None else view.name if view else ""
        kind = view.record.kind if view is not None and view.record is not None else offered.kind if offered else ""
        return RegionMembership(name, kind or REGION_OF_CONSUMERS)
    if offered is None or view is None:
        return offered
    # The one that was read: where another member has just become the first, the next turn reads its region.
    return RegionMembership(view.name, view.record.kind if view.record is not None else offered.kind)


def _is_bound(snapshot: Snapshot) -> bool:
    view = snapshot.region
    is_listed = view is not None and view.record is not None and snapshot.group in view.record.groups
    return is_listed and not snapshot.state.target


def _age(snapshot: Snapshot, name: str) -> tuple[int, str]:
    return (snapshot.members[name].czxid if name in snapshot.members else 0), name


def _inconsistent(region: RegionMembership | None, registration: Registration) -> str:
    """Why a member cannot be in a group of this region; empty when it can."""
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
    return RETURNING if name in snapshot.seats and registration.instance_id == name else NEWCOMER


def _turn_away(snapshot: Snapshot, found: Membership, name: str, reason: str, error: str) -> None:
    if name in found.live:
        _put_out(snapshot, found, name, reason, error)
        return
    del found.away[name]
    if name not in snapshot.members:  # else it registers just now, and the next turn sees it whole
        found.given_up.append(snapshot.seats[name])


def _wait_for_more(snapshot: Snapshot, found: Membership, rules: GroupRules) -> None:
    """Let a group that nobody was in wait for more members before its first generation (KIP-134)."""
    if snapshot.state.target or any(snapshot.channels[name].running for name in found.live):
        return
    ages = [snapshot.members[name].age_s for name in found.live]
    if not ages:
        return
    left_s = min(rules.initial_delay_s - min(ages), FORMING_AT_MOST * rules.initial_delay_s - max(ages))
    if left_s > 0:
        found.forming, found.live = found.live, {}
        found.timers.append(left_s)
