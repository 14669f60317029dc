"""A group of a consistent region in one turn: when a generation waits for a checkpoint, what a reset stops and starts.

Seed 002: whoever is told another partition, or is another process, begins from the last complete cut, and so does
everybody else in the region. A model of it (`tests/model/region.py`) has each rule with what its absence breaks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..membership import Membership
from ..moves import Moves, is_addressed, taken_partitions
from ..snapshot import ChannelView, RegionView, Snapshot
from ..target import Wanted
from ..zk.commands import DRAIN, START_FETCHER, STOP_FETCHER, Command
from ..zk.errors import RebalanceFailed
from ..zk.partitions import NONE, PartitionSet, TopicPartition, by_topic
from ..zk.regions import CONSUMERS, FAILED, RESETTING, RUNNING, Order, Progress, Region

HIGHEST_RESET = 2**53
MAX_GROUPS = 300
"""Of a region: its znode goes into multis beside others, and each reset concerns all of them."""
LONGEST_HOLD_S = 120.0
"""A generation waits no longer for a checkpoint, whatever keeps the region from one."""


@dataclass(frozen=True, slots=True)
class RegionStep:
    """What a group's turn does about its region.

    :ivar name: of the region.
    :ivar before: as it was read, None where there is none yet.  :ivar after: as it is once the turn is written.
    :ivar aborted: the checkpoint that is aborted by it; 0 when none is.
    :ivar open_s: seconds from its begin, by the wall clocks of the coordinators; known when it is written.
    :ivar held_for: the checkpoint that a new generation waits for; 0 when none does.
    :ivar is_touched: whether the region's version moves though nothing of it changes: no checkpoint begins meanwhile.
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


def region_step(snapshot: Snapshot, membership: Membership, want: Wanted, is_new: bool) -> RegionStep | None:
    """Whether this turn resets the group's region, or lets a generation wait; None for a group without a region.

    :param is_new: whether members, topics or an answer ask for another generation.
    :raises RebalanceFailed: when the region cannot be read.
    """
    member_of, view = membership.region, snapshot.region
    if member_of is None or view is None:
        return None
    before = view.record
    if view.is_unreadable:
        raise RebalanceFailed(f"consistent region {view.name} cannot be read: see its znode")
    if view.problem:
        remedy = f"restore it, or go back to another checkpoint (regions reset {view.name} --to NUMBER)"
        raise RebalanceFailed(f"{view.problem}: {remedy}")
    first_state = RESETTING if member_of.kind == CONSUMERS else RUNNING
    known = before or Region(member_of.kind, first_state, reset=_highest_reset(snapshot) + 1, since_ms=snapshot.now_ms)
    bound = known.including(snapshot.group, is_new=snapshot.state.region is None)
    if len(bound.groups) > MAX_GROUPS:
        raise RebalanceFailed(f"consistent region {view.name} has {MAX_GROUPS} groups, as many as it may have")
    step = RegionStep(view.name, before, bound)
    if not (is_new or _has_bounced(snapshot, membership, want)):
        return step
    if member_of.kind != CONSUMERS:  # what was sealed stays: only the cut that is being made is none
        return replace(step, after=replace(bound, open=0), aborted=known.open, is_touched=True)
    if is_new and _may_wait(snapshot, membership, known) and (held_for := _waits_for(view, known)):
        return replace(step, held_for=held_for)
    return replace(step, after=after_reset(bound, bound.sequence, snapshot.now_ms), aborted=known.open)


def _highest_reset(snapshot: Snapshot) -> int:
    """Of a region whose znode was lost: no member may take the new one's for the reset that it is in."""
    return min(max((_progress(view).reset for view in snapshot.channels.values()), default=0), HIGHEST_RESET)


def after_reset(region: Region, sequence: int, now_ms: int) -> Region:
    """The region once a reset to a cut has begun. One that has failed stays so until an operator resets it."""
    state = FAILED if region.state == FAILED else RESETTING
    reason = region.reason if region.state == FAILED else None
    return replace(
        region, state=state, sequence=sequence, open=0, reset=region.reset + 1, reason=reason, since_ms=now_ms
    )


def _has_bounced(snapshot: Snapshot, membership: Membership, want: Wanted) -> bool:
    """Whether a static member has come back as another process, to which no generation belongs.

    One that the target does not take in yet, as the later life of a dynamic member under client-side assignment, is of
    the generation that will.
    """
    before = snapshot.state.target
    return any(
        name in before
        and name in want.target
        and before[name].incarnation != one.incarnation == want.target[name].incarnation
        for name, one in membership.live.items()
    )


def _may_wait(snapshot: Snapshot, membership: Membership, region: Region) -> bool:
    """Whether every member of the target is there with its state: then a checkpoint saves what they have taken in.

    A static member that is away has nothing that could be saved. A group that begins has nothing either, and would cost
    the others in its region what they have.
    """
    state = snapshot.state
    may_begin = region.state == RUNNING and region.reason is None
    if not state.target:
        return may_begin and any(group != snapshot.group for group in region.groups)
    lives = {name: one.incarnation for name, one in membership.live.items()}
    present = [(name, one) for name, one in state.target.items() if name not in membership.away]
    is_whole = bool(present) and all(lives.get(name) == one.incarnation for name, one in present)
    ready = state.region.ready if state.region is not None else 0
    return is_whole and may_begin and ready == region.reset


def _waits_for(view: RegionView, region: Region) -> int:
    """The checkpoint to wait for: the open one, else the next; 0 once it has ended, or has not begun in time."""
    needed = view.held_for or region.open or region.next_sequence
    has_ended = region.sequence >= needed or (region.next_sequence > needed and region.open != needed)
    return 0 if has_ended or view.held_s >= LONGEST_HOLD_S else needed


def regional_moves(
    snapshot: Snapshot, membership: Membership, want: Wanted, generation: int, region: Region
) -> tuple[Moves, bool]:
    """The stops, starts and drains that are due now; and whether all members of the target have their state back."""
    found = Moves(snapshot, membership, want, generation, is_eager=True)
    addressed = [name for name in sorted(membership.live) if is_addressed(membership, want, name)]
    for name in addressed:
        found.to_stop[name] = _to_stop(found, name, region)
    wanted = {name: _wanted(found, name, region) for name in addressed}
    for name, view in sorted(snapshot.channels.items()):
        for sent in view.commands:
            if (name, sent.name) in want.kept:
                continue
            command = wanted.get(name)
            if command is not None and sent.command == command and name not in (*found.kept, *found.draining):
                (found.draining if command.option == DRAIN else found.kept)[name] = sent
            else:
                found.withdrawn.append((name, sent))
    taken = taken_partitions(found)
    for name, command in wanted.items():
        if command is None or name in found.kept or name in found.draining:
            continue
        if command.option == STOP_FETCHER:
            found.stops.append((name, command))
        elif command.option == DRAIN:
            found.drains.append((name, command))
        elif blocked := (command.started - snapshot.channels[name].running) & taken:
            found.waiting[name] = blocked
        else:
            found.starts.append((name, command))
    is_settled = (
        want.target.keys() <= {*addressed, *membership.away}
        and not _heir_is_away(found)
        and all(not found.to_stop[name] and _is_ready(found, name, region) for name in addressed)
    )
    return found, is_settled


def _heir_is_away(found: Moves) -> bool:
    """Whether a static member that is away is the one that is given the states of names that are gone."""
    return min(found.want.target, default="") in found.who.away and bool(_gone(found))


def sealing_moves(found: Moves, region: Region) -> Moves:
    """`found`, of a group in a region of slots, with the drains for the checkpoint that is open.

    A generation, and another incarnation, has ended the checkpoint before its first command is sent: who contributes
    seals nothing between that and the end of the checkpoint, and nobody else has its partitions.
    """
    wanted = {name: command for name in found.to_stop if (command := _wanted_drain(found, name, region)) is not None}
    withdrawn = []
    for name, sent in found.withdrawn:
        if sent.command is not None and sent.command == wanted.get(name) and name not in found.draining:
            found.draining[name] = sent
        else:
            withdrawn.append((name, sent))
    found.withdrawn = withdrawn
    found.drains = [(name, command) for name, command in wanted.items() if name not in found.draining]
    return found


def _wanted_drain(found: Moves, name: str, region: Region) -> Command | None:
    view = found.snapshot.channels[name]
    is_waited_for = region.open and _progress(view).drained != region.open
    if not is_waited_for or view.running != found.want.target[name].partitions:
        return None
    incarnation = found.want.target[name].incarnation
    order = Order(region.reset, region.open)
    return Command(DRAIN, found.snapshot.epoch, found.generation, incarnation, region=order)


def _progress(view: ChannelView) -> Progress:
    progress = view.channel.region if view.channel is not None else None
    return progress or Progress()


def _is_ready(found: Moves, name: str, region: Region) -> bool:
    view = found.snapshot.channels[name]
    progress = _progress(view)
    is_told = (progress.reset, progress.ready) == (region.reset, region.reset)
    return is_told and view.running == found.want.target[name].partitions


def _to_stop(found: Moves, name: str, region: Region) -> PartitionSet:
    """All that it runs, where that is of an earlier reset, or not what it shall run."""
    view = found.snapshot.channels[name]
    topics = view.channel.topics if view.channel is not None else {}
    want = found.want
    other_topics = any(topics.get(part.topic) != want.topics.get(part.topic) for part in view.running)
    is_right = _progress(view).reset == region.reset and not other_topics and region.state != FAILED
    return NONE if is_right and view.running <= want.target[name].partitions else view.running


def _wanted(found: Moves, name: str, region: Region) -> Command | None:
    """The one command that a member is to have now."""
    snapshot, want = found.snapshot, found.want
    view, target = snapshot.channels[name], want.target[name]
    progress, epoch = _progress(view), snapshot.epoch
    if found.to_stop[name]:
        topics = dict(view.channel.topics) if view.channel is not None else {}
        order = Order(region.reset)
        return Command(STOP_FETCHER, epoch, found.generation, target.incarnation, {}, NONE, topics, region=order)
    if region.state == FAILED:
        return None
    is_told = (progress.reset, progress.ready) == (region.reset, region.reset)
    if not is_told or view.running != target.partitions:
        topics = {topic: want.topics[topic] for topic in by_topic(target.partitions)}
        order = _start_order(found, name, region)
        return Command(
            START_FETCHER, epoch, found.generation, target.incarnation, target.threads, NONE, topics, want.ask,
            region=order,
        )  # fmt: skip
    if region.open and progress.ready == region.reset and progress.drained != region.open:
        order = Order(region.reset, region.open)
        return Command(DRAIN, epoch, found.generation, target.incarnation, region=order)
    return None


def _start_order(found: Moves, name: str, region: Region) -> Order:
    view = found.snapshot.region
    sources: Mapping[TopicPartition, str] = view.sources if view is not None else {}
    names = view.names if view is not None else ()
    target = found.want.target
    mine = {sources[part] for part in target[name].partitions if part in sources} | ({name} & set(names))
    gone = _gone(found) if name == min(target) else ()
    return Order(region.reset, region.cut_of(found.snapshot.group), tuple(sorted(mine)), gone)


def _gone(found: Moves) -> tuple[str, ...]:
    """Contributions of members that the target does not have; what was copied in part has no state of a member."""
    view = found.snapshot.region
    names = set(view.names if view is not None else ()) - found.want.target.keys()
    return tuple(sorted(name for name in names if "~" not in name))
