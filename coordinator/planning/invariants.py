"""What every plan must keep, spelled out from the snapshot once more: checked before anything of it is written. Pure.

No function that has decided is used here: a mistake there is not repeated. Each invariant has a mutation of the product
that it stops (`tests/unit/test_turns.py`).
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
    """A sentence for each invariant that a plan breaks."""
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
    is_due = is_other or is_adopted or any(_lost_owners(snapshot))
    if plan.is_new_generation and not is_due and _shares(before, static) == _shares(after, static):
        yield f"generation {after.generation} has the target of the one before"


def _shares(state: GroupState, static: Set[str]) -> dict[str, object]:
    """A target's members, static ones in any incarnation, with their threads."""
    return {name: (one.threads, "" if name in static else one.incarnation) for name, one in state.target.items()}


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
    """Each partition has one thread of one member."""
    given: dict[TopicPartition, str] = {}
    for target in plan.state.target.values():
        for thread, partitions in target.threads.items():
            if twice := partitions & given.keys():
                yield f"{min(twice)} is assigned to {thread} and to {given[min(twice)]}"
            given |= dict.fromkeys(partitions, thread)


def _commands(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Each is for the live incarnation, of this epoch and generation, and names what that may have."""
    order, ended = (snapshot.coordinator.epoch, plan.state.generation), {end.view.consumer for end in plan.ends}
    for name, command in (*plan.stops, *plan.starts, *plan.drains):
        channel = snapshot.members.channel_of(name)
        is_its = channel is not None and channel.is_live and name not in ended
        if channel is None or not is_its or command.incarnation != channel.incarnation:
            yield f"{command.option} is sent to {name}, whose incarnation {command.incarnation} is not live"
            continue
        target, running = plan.state.target.get(name), frozenset(channel.running)
        if (command.epoch, command.generation) != order or target is None or target.incarnation != command.incarnation:
            yield f"{command.option} of {name} is of {command.epoch}/{command.generation}, not of its target"
        elif command.option == START_FETCHER and not running <= command.started <= target.partitions:
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
    """What is started newly has no other fetcher, and cannot get one by a command that is out."""
    if not plan.starts:
        return
    ended = {end.view.consumer: end.owners for end in plan.ends}
    taken: list[PartitionSet] = [snapshot.partitions.owners - united(ended.values())]
    taken += [mark.partitions for mark in plan.state.marks]
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
    """What an evicted member runs waits for its lease, also under the next coordinator."""
    made = {(mark.consumer, mark.incarnation): mark for mark in plan.state.marks}
    for end in plan.ends:
        running = snapshot.partitions.existing(end.view.running)
        if end.evicted and end.view.channel is not None and running:
            hold = made.get((end.view.consumer, end.view.channel.incarnation))
            if hold is None or not running <= hold.partitions:
                yield f"{end.view.consumer} is evicted without a hold on {min(running)}"
    for mark in snapshot.state.marks:
        age_s = snapshot.members.mark_age_s.get((mark.consumer, mark.incarnation), 0.0)
        if age_s < mark.lease_ms / 1000 and mark not in plan.state.marks and not _lives(snapshot, mark):
            yield f"the hold of {mark.consumer} is given up before its lease has expired"


def _lives(snapshot: Snapshot, mark: Mark) -> bool:
    """Whether the eviction of a hold was planned, but never happened."""
    member, channel = snapshot.members.registered.get(mark.consumer), snapshot.members.channel_of(mark.consumer)
    registration = member.registration if member is not None else None
    lives = {each.incarnation for each in (registration, channel) if each is not None}
    return registration is not None and lives == {mark.incarnation} and channel is not None and channel.is_live


def _stable(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A Stable group runs its target."""
    if plan.state.state != STABLE or (plan.region is not None and plan.region.after.state == FAILED):
        return
    if plan.stops or plan.starts:
        yield "the group is Stable, and a member gets a command"
    for name, target in plan.state.target.items():
        channel = snapshot.members.channel_of(name)
        is_its = channel is not None and channel.is_live and channel.incarnation == target.incarnation
        if channel is not None and is_its and frozenset(channel.running) != target.partitions:
            yield f"the group is Stable, and {name} does not run its target"


def _barrier(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Where no owner znode prevents it, no member starts while another may run an earlier assignment."""
    client, ended = plan.state.client, {end.view.consumer for end in plan.ends}
    if client is None or client.protocol_type == CONSUMER or not plan.starts:
        return
    channels = snapshot.members.channels.items()
    earlier = [
        name
        for name, view in channels
        if view.channel is None or (name not in ended and view.channel.is_live and view.ask not in ("", client.ask))
    ]
    earlier += [mark.consumer for mark in plan.state.marks]
    if earlier:
        yield f"{plan.starts[0][0]} is started, and {earlier[0]} may run an earlier assignment"


def _reset(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """A member of a stateful region is started at the region's cut, as of its last reset."""
    region = plan.region.after if plan.region is not None else None
    orders = [(name, command.region) for name, command in plan.starts if command.region is not None]
    for name, order in orders:
        if region is None or (order.reset, order.checkpoint) != (region.reset, region.cut_of(snapshot.group)):
            yield f"{name} is started at checkpoint {order.checkpoint} of reset {order.reset}"
