"""The invariants of a plan, derived from the snapshot a second time and checked before the commit. Pure.

It shares no function with the planner, so that it does not repeat a mistake. Each invariant is tested by a mutation
that violates it (`tests/unit/test_turns.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

from ..zk.znodes.group_state import CONSUMER, STABLE, GroupState, Mark
from ..zk.znodes.partitions import NONE, PartitionSet, TopicPartition, united
from ..zk.znodes.records import START_FETCHER, STOP_FETCHER, Registration
from ..zk.znodes.regions import FAILED
from .plan import Plan
from .snapshot import Snapshot


def broken_invariants(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A sentence for each violated invariant."""
    for check in (_generation, _target, _commands, _one_command, _free, _holds, _stable, _barrier, _reset):
        yield from check(snapshot, plan)


def _generation(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Each is the next one, and has one target; the next one has another, unless owner znodes were lost."""
    before, after = snapshot.state, plan.state
    if after.generation != before.generation + plan.is_new_generation or after.epoch != snapshot.coordinator.epoch:
        yield f"generation {before.generation} is followed by {after.epoch}/{after.generation}"
    is_other = after.target and (before.topics != after.topics or before.strategy not in ("", after.strategy))
    static = {name for name, each in _registrations(snapshot) if each.instance_id}
    maybe = static | snapshot.members.seats.keys()  # a seat may be left of an earlier member of the name
    is_kept = not plan.is_new_generation and (before.target or after.client is None)
    if is_kept and (_shares(before, maybe) != _shares(after, maybe) or (is_other and after.client is None)):
        yield f"generation {after.generation} has another target than before"
    static |= snapshot.members.seats.keys() - {name for name, _ in _registrations(snapshot)}
    is_adopted = after.client is not None and (before.client is None or after.client.ask != before.client.ask)
    is_due = is_other or is_adopted or any(_lost_owners(snapshot)) or _flags(before) != _flags(after)
    if plan.is_new_generation and not is_due and _shares(before, static) == _shares(after, static):
        yield f"generation {after.generation} has the target of the one before"


def _shares(state: GroupState, static: Set[str]) -> dict[str, object]:
    """A target's members, static ones in any incarnation, with their threads."""
    return {name: (one.threads, "" if name in static else one.incarnation) for name, one in state.target.items()}


def _flags(state: GroupState) -> dict[str, object]:
    """What a target's members have of an answer besides partitions."""
    return {name: (one.has_state, one.is_sent) for name, one in state.target.items()}


def _lost_owners(snapshot: Snapshot) -> Iterator[PartitionSet]:
    """What live members run without owner znodes."""
    for name, registration in _registrations(snapshot):
        channel = snapshot.members.channel_of(name)
        if channel is not None and channel.is_live and channel.incarnation == registration.incarnation:
            yield frozenset(channel.running) - snapshot.partitions.owners


def _registrations(snapshot: Snapshot) -> Iterator[tuple[str, Registration]]:
    for name, member in snapshot.members.registered.items():
        if member.registration is not None:
            yield name, member.registration


def _target(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Each partition has one thread of one member, in a target that the plan has changed."""
    given: dict[TopicPartition, str] = {}
    if plan.state.target == snapshot.state.target:
        return
    for target in plan.state.target.values():
        for thread, partitions in target.threads.items():
            if twice := partitions & given.keys():
                yield f"{min(twice)} is assigned to {thread} and to {given[min(twice)]}"
            given |= dict.fromkeys(partitions, thread)


def _commands(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Each command is for a live incarnation, of this epoch and generation, with partitions that it may have."""
    order, ended = (snapshot.coordinator.epoch, plan.state.generation), {end.view.consumer for end in plan.terminations}
    for name, command in (*plan.stops, *plan.starts, *plan.drains):
        channel = snapshot.members.channel_of(name)
        is_its = channel is not None and channel.is_live and name not in ended
        if channel is None or not is_its or command.incarnation != channel.incarnation:
            yield f"{command.option} is sent to {name}, whose incarnation {command.incarnation} is not live"
            continue
        target, running = plan.state.target.get(name), frozenset(channel.running)
        if (command.epoch, command.generation) != order or target is None or target.incarnation != command.incarnation:
            yield f"{command.option} of {name} is of {command.epoch}/{command.generation}, not of its target"
        elif (
            _is_of_partitions(plan)
            and command.option == START_FETCHER
            and not (running <= command.started <= target.partitions)
        ):
            yield f"start-fetcher of {name} is not between what it runs and its target"
        elif command.option == STOP_FETCHER and not command.partitions <= running:
            yield f"stop-fetcher of {name} names partitions that it does not run"


def _one_command(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A member has one stop or start, and none of an earlier generation stays."""
    withdrawn = {(name, sent.name) for name, sent in plan.withdrawn}
    sent = Counter(name for name, _ in (*plan.stops, *plan.starts))
    order = snapshot.coordinator.epoch, plan.state.generation
    for name, view in snapshot.members.channels.items():
        left = [each.command for each in view.commands if (name, each.name) not in withdrawn and each.command]
        left = [command for command in left if command.option in (START_FETCHER, STOP_FETCHER)]
        if sent[name] + len(left) > 1:
            yield f"{name} gets a second command"
        if any((command.epoch, command.generation) != order for command in left):
            yield f"{name} keeps a command of an earlier generation"


def _free(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A newly started partition has no other fetcher, and no other outstanding start."""
    if not plan.starts:
        return
    ended = {end.view.consumer: end.owners for end in plan.terminations}
    taken: list[PartitionSet] = [snapshot.partitions.owners - united(ended.values())]
    taken += [hold.partitions for hold in plan.state.marks]
    for name, view in snapshot.members.channels.items():
        running = view.running if name not in ended else NONE
        commands = [sent.command for sent in view.commands if sent.command is not None]
        taken += [running, *(each.started - running for each in commands if each.option == START_FETCHER)]
    given = united(taken)
    for name, command in plan.starts:
        fresh = command.started - snapshot.members.channels[name].running
        if fresh & given:
            yield f"{min(fresh & given)} is started by {name}, and is not free"
        given |= fresh


def _holds(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """An evicted member's partitions are held until its lease expires, also by the next coordinator."""
    made = {(hold.consumer, hold.incarnation): hold for hold in plan.state.marks}
    for end in plan.terminations:
        running = snapshot.partitions.existing(end.view.running)
        if end.evicted and end.view.channel is not None and running:
            hold = made.get((end.view.consumer, end.view.channel.incarnation))
            if hold is None or not running <= hold.partitions:
                yield f"{end.view.consumer} is evicted without a hold on {min(running)}"
    for hold in snapshot.state.marks:
        age_s = snapshot.members.hold_age_s.get((hold.consumer, hold.incarnation), 0.0)
        if age_s < hold.lease_ms / 1000 and hold not in plan.state.marks and not _lives(snapshot, hold):
            yield f"the hold of {hold.consumer} is given up before its lease has expired"


def _lives(snapshot: Snapshot, hold: Mark) -> bool:
    """Whether the eviction of a hold was planned, but never committed."""
    member, channel = snapshot.members.registered.get(hold.consumer), snapshot.members.channel_of(hold.consumer)
    registration = member.registration if member is not None else None
    lives = {each.incarnation for each in (registration, channel) if each is not None}
    return registration is not None and lives == {hold.incarnation} and channel is not None and channel.is_live


def _is_of_partitions(plan: Plan) -> bool:
    """Whether a channel's `running` says what its member runs: not in a group of another protocol type."""
    return plan.state.client is None or plan.state.client.protocol_type == CONSUMER


def _stable(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A Stable group runs its target; a static member whose registration cannot be read keeps its part."""
    if plan.state.state != STABLE or (plan.region is not None and plan.region.after.state == FAILED):
        return
    if plan.stops or plan.starts:
        yield "the group is Stable, and a member gets a command"
    ended = {end.view.consumer for end in plan.terminations}
    lives = {name: each.incarnation for name, each in _registrations(snapshot) if name not in ended}
    for name, target in plan.state.target.items() if _is_of_partitions(plan) else ():
        channel = snapshot.members.channel_of(name) if lives.get(name) == target.incarnation else None
        is_its = channel is not None and channel.is_live and channel.incarnation == target.incarnation
        if channel is not None and is_its and frozenset(channel.running) != target.partitions:
            yield f"the group is Stable, and {name} does not run its target"


def _barrier(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Without owner znodes, no member starts while another may run an earlier assignment.

    A start at a region's cut is of partitions, which have owner znodes.
    """
    client, ended = plan.state.client, {end.view.consumer for end in plan.terminations}
    if client is None or _is_of_partitions(plan) or all(command.region for _, command in plan.starts):
        return
    channels = snapshot.members.channels.items()
    earlier = [
        name
        for name, view in channels
        if view.channel is None or (name not in ended and view.channel.is_live and view.ask not in ("", client.ask))
    ]
    earlier += [hold.consumer for hold in plan.state.marks]
    if earlier:
        yield f"{plan.starts[0][0]} is started, and {earlier[0]} may run an earlier assignment"


def _reset(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A member of a stateful region is started at the region's cut, as of its last reset."""
    region = plan.region.after if plan.region is not None else None
    orders = [(name, command.region) for name, command in plan.starts if command.region is not None]
    for name, order in orders:
        if region is None or (order.reset, order.checkpoint) != (region.reset, region.cut_of(snapshot.group)):
            yield f"{name} is started at checkpoint {order.checkpoint} of reset {order.reset}"
