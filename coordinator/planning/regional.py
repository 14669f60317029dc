"""A group of a consistent region in one turn: waits for a checkpoint, stops and starts of a reset.

Seed 002: a member with new partitions, and a new process, begins from the last complete cut, and so do all other
members of the region. A model of it (`tests/model/region.py`) tests each rule by its absence. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..zk.errors import RebalanceFailed
from ..zk.znodes.cuts import NO_CUT
from ..zk.znodes.json_fields import MAX_CONTINUED, MAX_COUNT
from ..zk.znodes.partitions import NONE, PartitionSet, topics_of
from ..zk.znodes.records import DRAIN, START_FETCHER, Command
from ..zk.znodes.regions import CONSUMERS, FAILED, RESETTING, RUNNING, Order, Progress, Region
from .membership import Membership
from .reconciliation import Moves, Round, addressed, sort_wanted, step_of, stop, taken_partitions
from .snapshot import ChannelView, RegionView, SentCommand, Snapshot
from .target import Wanted

SET_LOWER = "set a lower number in its znode by hand"
"""What to do about a number of a region that is used up."""
MAX_GROUPS = 300
"""Groups of one region: its znode goes into multis beside others, and each reset concerns all groups."""
LONGEST_HOLD_S = 120.0
"""Seconds that a generation waits for a checkpoint at most."""


@dataclass(frozen=True, slots=True)
class RegionStep:
    """A group's actions on its region in one turn.

    :ivar name: of the region.
    :ivar before: as read, None without one.  :ivar after: as written with the turn.
    :ivar aborted: the checkpoint that it aborts; 0 for none.
    :ivar open_s: seconds since its begin, by the wall clocks of the coordinators; known when it is written.
    :ivar held_for: the checkpoint that a new generation waits for; 0 for none.
    :ivar is_touched: whether the region's version is bumped without a change: no checkpoint begins meanwhile.
    """

    name: str
    before: Region | None
    after: Region
    aborted: int = 0
    open_s: float = 0.0
    held_for: int = 0
    is_touched: bool = False

    @property
    def is_reset(self) -> bool:
        return self.before is None or self.after.reset != self.before.reset


def region_step(snapshot: Snapshot, membership: Membership, assignment: Wanted, is_new: bool) -> RegionStep | None:
    """Whether this turn resets the group's region, or holds a generation back; None for a group without a region.

    :param is_new: whether members, topics or an answer require a new generation.
    :raises RebalanceFailed: when the region cannot be read.
    """
    member_of, view = membership.region, snapshot.region
    if member_of is None or view is None:
        return None
    before = view.record
    if view.is_unreadable:
        raise RebalanceFailed(f"consistent region {view.name} cannot be read: see its znode")
    if view.refusal:
        raise RebalanceFailed(view.refusal)
    first_state = RESETTING if member_of.kind == CONSUMERS else RUNNING
    # Of a region whose znode was lost: a new one must not reuse the reset of any member.
    highest = min(max((_progress(one).reset for one in snapshot.members.channels.values()), default=0), MAX_CONTINUED)
    known = before or Region(member_of.kind, first_state, reset=highest + 1, since_ms=snapshot.coordinator.now_ms)
    bound = known.including(snapshot.group, is_new=snapshot.state.region is None)
    if len(bound.groups) > MAX_GROUPS:
        raise RebalanceFailed(f"consistent region {view.name} has {MAX_GROUPS} groups, as many as it may have")
    step = RegionStep(view.name, before, bound)
    if not (is_new or _has_bounced(snapshot, assignment)):
        return step
    if member_of.kind != CONSUMERS:  # sealed segments stay: only the open checkpoint is void
        return replace(step, after=replace(bound, open=0), aborted=known.open, is_touched=True)
    if is_new and _may_wait(snapshot, membership, known) and (held_for := _waits_for(view, known)):
        return replace(step, held_for=held_for)
    return replace(step, after=after_reset(bound, bound.sequence, snapshot.coordinator.now_ms), aborted=known.open)


def after_reset(region: Region, sequence: int, now_ms: int) -> Region:
    """The region after the begin of a reset to a cut. A failed one stays failed until an operator resets it.

    :raises RebalanceFailed: when its number of resets leaves no room for another.
    """
    if region.reset >= MAX_COUNT:
        raise RebalanceFailed(f"reset {region.reset} is the last that a region may have: {SET_LOWER}")
    state = FAILED if region.state == FAILED else RESETTING
    reason = region.reason if region.state == FAILED else None
    return replace(
        region, state=state, sequence=sequence, open=0, reset=region.reset + 1, reason=reason, since_ms=now_ms
    )


def _has_bounced(snapshot: Snapshot, assignment: Wanted) -> bool:
    """Whether a static member has come back as another process, which belongs to no generation. It may have left again.

    A member that the target does not include yet, as a later incarnation of a dynamic member under client-side
    assignment, belongs to the generation that will.
    """
    before = snapshot.state.target
    return any(
        name in before and before[name].incarnation != one.incarnation for name, one in assignment.target.items()
    )


def _may_wait(snapshot: Snapshot, membership: Membership, region: Region) -> bool:
    """Whether every member of the target is present with its state: then a checkpoint saves its progress.

    An absent static member has nothing to save, nor has one whose seat is given up: it has left before. A new group
    has nothing either, and would cost the other groups of its region their progress.
    """
    state = snapshot.state
    may_begin = region.state == RUNNING and region.reason is None
    if not state.target:
        return may_begin and any(group != snapshot.group for group in region.groups)
    lives = {name: one.incarnation for name, one in membership.live.items()}
    absent = membership.away.keys() | {view.instance for view in membership.given_up}
    present = [(name, one) for name, one in state.target.items() if name not in absent]
    is_whole = bool(present) and all(lives.get(name) == one.incarnation for name, one in present)
    ready = state.region.ready if state.region is not None else 0
    return is_whole and may_begin and ready == region.reset


def _waits_for(view: RegionView, region: Region) -> int:
    """The checkpoint to wait for: the open one, else the next; 0 once it has ended, or is overdue."""
    needed = view.held_for or region.open or region.next_sequence
    has_ended = region.sequence >= needed or (region.next_sequence > needed and region.open != needed)
    return 0 if has_ended or view.held_s >= LONGEST_HOLD_S else needed


def regional_moves(now: Round, region: Region) -> tuple[Moves, bool]:
    """The step of each member that is due now; and whether all members of the target have their state back."""
    wanted = {name: _wanted(now, name, region) for name in addressed(now)}
    sent, withdrawn = sort_wanted(now, wanted)
    taken = taken_partitions(now)
    steps = {
        name: step_of(command, sent.get(name), _blocked(now, name, command, taken)) for name, command in wanted.items()
    }
    drains = {name: command for name, command in wanted.items() if command is not None and command.option == DRAIN}
    found = Moves(
        steps,
        withdrawn,
        drains=tuple((name, command) for name, command in drains.items() if name not in sent),
        draining={name: command for name, command in sent.items() if name in drains},
    )
    is_settled = (
        now.want.target.keys() <= {*wanted, *now.membership.away}
        and not _is_heir_away(now)
        and all(not _to_revoke(now, name, region) and _is_ready(now, name, region) for name in wanted)
    )
    return found, is_settled


def _blocked(now: Round, name: str, command: Command | None, taken: PartitionSet) -> PartitionSet | None:
    """What of a start its member does not run yet, and is not free; None without any."""
    return (
        ((command.started - now.snapshot.members.channels[name].running) & taken or None)
        if command is not None
        else None
    )


def _is_heir_away(now: Round) -> bool:
    """Whether a static member that is away is the one that is given the states of names that are gone."""
    return min(now.want.target, default="") in now.membership.away and bool(_gone(now))


def sealing_moves(now: Round, found: Moves, region: Region) -> Moves:
    """`found`, of a group in a region of slots, with the drains for the checkpoint that is open.

    A new generation or incarnation ends the checkpoint before its first command is sent: a contributor seals nothing
    between that and the end of the checkpoint, and no other member has its partitions.
    """
    wanted = {name: command for name in found.steps if (command := _wanted_drain(now, name, region)) is not None}
    draining: dict[str, SentCommand] = {}
    withdrawn = []
    for name, sent in found.withdrawn:
        if sent.command is not None and sent.command == wanted.get(name) and name not in draining:
            draining[name] = sent
        else:
            withdrawn.append((name, sent))
    drains = tuple((name, command) for name, command in wanted.items() if name not in draining)
    return replace(found, withdrawn=tuple(withdrawn), drains=drains, draining=draining)


def _wanted_drain(now: Round, name: str, region: Region) -> Command | None:
    view = now.snapshot.members.channels[name]
    is_waited_for = region.open and _progress(view).drained != region.open
    if not is_waited_for or view.running != now.want.target[name].partitions:
        return None
    return now.command(name, DRAIN, region=Order(region.reset, region.open))


def _progress(view: ChannelView) -> Progress:
    progress = view.channel.region if view.channel is not None else None
    return progress or Progress()


def _is_ready(now: Round, name: str, region: Region) -> bool:
    view = now.snapshot.members.channels[name]
    progress = _progress(view)
    is_commanded = (progress.reset, progress.ready) == (region.reset, region.reset)
    return is_commanded and view.running == now.want.target[name].partitions


def _to_revoke(now: Round, name: str, region: Region) -> PartitionSet:
    """All that it runs, where that is of an earlier reset, or not what it shall run."""
    view = now.snapshot.members.channels[name]
    topics = view.channel.topics if view.channel is not None else {}
    want = now.want
    other_topics = any(topics.get(part.topic) != want.topics.get(part.topic) for part in view.running)
    is_right = _progress(view).reset == region.reset and not other_topics and region.state != FAILED
    return NONE if is_right and view.running <= want.target[name].partitions else view.running


def _wanted(now: Round, name: str, region: Region) -> Command | None:
    """The one command that a member is to have now."""
    want, target = now.want, now.want.target[name]
    if revoked := _to_revoke(now, name, region):
        return stop(now, name, revoked, Order(region.reset))
    if region.state == FAILED:
        return None
    if not _is_ready(now, name, region):
        topics = {topic: want.topics[topic] for topic in topics_of(target.partitions)}
        order = _start_order(now, name, region)
        return now.command(name, START_FETCHER, threads=target.threads, topics=topics, ask=want.ask, region=order)
    return _wanted_drain(now, name, region)


def _start_order(now: Round, name: str, region: Region) -> Order:
    view = now.snapshot.region
    cut = view.cut if view is not None else NO_CUT
    target = now.want.target
    mine = {cut.sources[part] for part in target[name].partitions if part in cut.sources} | ({name} & set(cut.names))
    gone = _gone(now) if name == min(target) else ()
    return Order(region.reset, region.cut_of(now.snapshot.group), tuple(sorted(mine)), gone)


def _gone(now: Round) -> tuple[str, ...]:
    """Contributions of members that the target does not have; what was copied in part has no state of a member."""
    view = now.snapshot.region
    names = set(view.cut.names if view is not None else ()) - now.want.target.keys()
    return tuple(sorted(name for name in names if "~" not in name))
