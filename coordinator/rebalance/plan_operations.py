"""Step 3 of a turn: a plan as ZooKeeper operations, in the order in which they must happen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..planning.membership import End
from ..planning.plan import ASK_ZNODES_A_TURN, Plan
from ..planning.snapshot import SeatView, SentCommand, Snapshot
from ..zk.errors import RebalanceFailed
from ..zk.store import MAX_COMMIT_BYTES, MAX_OPERATIONS, Check, Create, Delete, Operation, SetData, operation_bytes
from ..zk.update import batches
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import GroupPaths, RegionPaths
from ..zk.znodes.records import BegunRecord, Channel, Command
from ..zk.znodes.regions import ABORTED, CheckpointEnd, ended_checkpoint

Unit = list[Operation]
ROOM = MAX_OPERATIONS - 2
FENCE_BYTES = 1000
PARTITIONS_A_STEP = (ROOM - 4) // 2
"""An incarnation with more partitions is ended in several multis; each partition takes an offset and an owner."""


@dataclass(frozen=True, slots=True)
class Step:
    """One multi of a turn: the new state, and the other operations."""

    state: GroupState
    operations: Sequence[Operation]


def with_state(snapshot: Snapshot, nth: int, step: Step) -> list[Operation]:
    """The `nth` multi (from 0) of a turn: it replaces the state that was read, or that of the multi before."""
    paths = GroupPaths(snapshot.group)
    data = step.state.to_bytes()
    if len(data) > MAX_COMMIT_BYTES:
        raise RebalanceFailed(f"the group's state has {len(data)} bytes, over the {MAX_COMMIT_BYTES} of a znode")
    return [SetData(paths.state, data, snapshot.state_version + nth), *step.operations]


def steps(snapshot: Snapshot, plan: Plan) -> Iterator[Step]:
    """The multis of a turn, each to be committed after the one before."""
    paths = GroupPaths(snapshot.group)
    before = replace(snapshot.state, marks=plan.state.marks, epoch=snapshot.epoch)
    parents = _parents(snapshot, plan)
    torn = [end for end in plan.ends if len(end.partitions) > PARTITIONS_A_STEP]
    if torn:
        yield from (Step(before, operations) for operations in batches(parents, ROOM, _room_beside(before)))
        parents = []
    for end in torn:
        for operations in _torn_end(snapshot, paths, end):
            yield Step(before, operations)
    units = (
        _region(snapshot, plan) + parents + [_whole_end(snapshot, paths, end) for end in plan.ends if end not in torn]
    )
    gone = {(end.view.consumer, sent.name) for end in torn for sent in _gone_with_the_fence(end)}
    again = _sent_again(plan)
    units += [
        [Delete(paths.command(consumer, sent.name))]
        for consumer, sent in plan.withdrawn
        if (consumer, sent.name) not in gone and (consumer, sent) not in again
    ]
    units += [_given_up(snapshot, paths, seat) for seat in plan.given_up]
    units += _asks(snapshot, plan, paths)
    units += _history(snapshot, plan, paths)
    units += [[_sent(paths, *each)] for each in (*plan.stops, *plan.starts, *plan.drains)]
    notices: list[Unit] = [[_sent(paths, *each)] for each in plan.asking.notices]
    room = _room_beside(plan.state)
    largest = max((sum(operation_bytes(o) for o in unit) for unit in units), default=0)
    if largest > room:
        raise RebalanceFailed(
            f"one change has {largest} bytes, over the {room} that the group's state leaves of a multi's "
            f"{MAX_COMMIT_BYTES}: spread the group's partitions"
        )
    written = list(batches(notices + units, ROOM, room)) or [[]]
    # `assignment-failed` is sent before `state` records it.
    notice_multis = len(list(batches(notices, ROOM, room)))
    is_torn = len(written) > 1 and bool(notices)
    for nth, operations in enumerate(written, 1):
        yield Step(before if is_torn and nth < notice_multis else plan.state, operations)


def _region(snapshot: Snapshot, plan: Plan) -> list[Unit]:
    """The new znode of the group's region, in the multi with the group's state: both are refused, or neither."""
    step, view = plan.region, snapshot.region
    if step is None or (step.after == step.before and not step.is_touched):
        return []
    paths, data = RegionPaths(step.name), step.after.to_bytes()
    version = view.version if view is not None else None
    if step.before is None or version is None:
        return [[Create(paths.root, data), Create(paths.initial), Create(paths.checkpoints)]]
    aborted: Unit = []
    if step.aborted and view is not None and view.open_data:
        why = "the region was reset" if step.is_reset else f"group {snapshot.group} was rebalanced"
        end = CheckpointEnd(snapshot.now_ms, round(step.open_s * 1000), why)
        aborted = [Delete(paths.end(step.aborted, stray)) for stray in sorted(view.open_ends)]  # created by an operator
        aborted += ended_checkpoint(paths, step.aborted, view.open_data, ABORTED, end)
    return [[SetData(paths.root, data, version), *aborted]]


def _sent(paths: GroupPaths, consumer: str, command: Command) -> Operation:
    return Create(paths.command_prefix(consumer), command.to_bytes(), sequential=True)


def _sent_again(plan: Plan) -> list[tuple[str, SentCommand]]:
    """The earlier command of an ask that is sent again: removed in an earlier multi, it would look acknowledged."""
    if plan.asking.assign is None:
        return []
    leader, now = plan.asking.assign
    return [
        (name, sent)
        for name, sent in plan.withdrawn
        if name == leader
        and sent.command is not None
        and sent.command.option == now.option
        and sent.command.ask == now.ask
    ]


def _asks(snapshot: Snapshot, plan: Plan, paths: GroupPaths) -> list[Unit]:
    """Removed asks, and the new one, in one multi with the leader's command and the answer's znode."""
    asking = plan.asking
    units: list[Unit] = []
    room = ASK_ZNODES_A_TURN
    for view in plan.removed_asks:
        units += [[Delete(f"{paths.ask(view.name)}/{child}")] for child in view.children[:room]]
        room -= len(view.children) + 1
        if room < 0:
            break  # the next turn continues
        units.append([Delete(paths.ask(view.name))])
    made: Unit = []
    if asking.made is not None:
        name, ask = asking.made
        made += [] if snapshot.has_sync else [Create(paths.sync)]
        made.append(Create(paths.ask(name), ask.to_bytes()))
    made += [Delete(paths.command(consumer, sent.name)) for consumer, sent in _sent_again(plan)]
    if asking.assign is not None:
        made.append(_sent(paths, *asking.assign))
    if asking.answered is not None:
        made.append(Delete(paths.sync_request, asking.answered.version))
    return [*units, *([made] if made else [])]


def _room_beside(state: GroupState) -> int:
    """Bytes that are left in a multi beside the fence and `state`, which are part of each."""
    return MAX_COMMIT_BYTES - len(state.to_bytes()) - FENCE_BYTES


def _parents(snapshot: Snapshot, plan: Plan) -> list[Unit]:
    """The missing parents of owners and offsets, so that a consumer's claim finds them."""
    paths = GroupPaths(snapshot.group)
    started = {topic for _, command in plan.starts for topic in command.topics}
    folded = {part.topic for end in plan.ends for part in end.partitions}
    folded |= {topic for _, command in plan.stops for topic in command.topics}
    made: list[Unit] = [[Create(paths.owners_of(topic))] for topic in sorted(started - snapshot.owner_parents)]
    missing = sorted((started | folded) - snapshot.offset_parents)
    return made + [[Create(paths.offsets_of(topic), _begun(snapshot, topic))] for topic in missing]


def _begun(snapshot: Snapshot, topic: str) -> bytes:
    """The record that the group begins with `topic`."""
    known = snapshot.topics.get(topic)
    return BegunRecord.of(known, snapshot.czxid).to_bytes() if known is not None else b""


def _whole_end(snapshot: Snapshot, paths: GroupPaths, end: End) -> Unit:
    """Ended in one multi: fence changed, offsets written, owners (and for an eviction its ids) removed."""
    channel = _channel(end)
    data = channel.over(end.reason, end.error).to_bytes()
    return [
        SetData(paths.channel(end.view.consumer), data, end.view.version),
        *_offsets(snapshot, paths, channel, end.partitions),
        *(Delete(paths.owner(*partition)) for partition in sorted(end.owners)),
        *([Delete(paths.id(end.view.consumer))] if end.evicted else []),
        *_seat_gone(paths, end.seat),
    ]


def _torn_end(snapshot: Snapshot, paths: GroupPaths, end: End) -> Iterator[Unit]:
    """Ended in several multis: the fence first, while `running` is kept; then its partitions in batches."""
    view, channel = end.view, replace(_channel(end), ended=end.reason, error=end.error).without(end.foreign)
    path, version = paths.channel(view.consumer), view.version
    if _moves_the_fence(end):
        gone: Unit = [Delete(paths.command(view.consumer, sent.name)) for sent in _gone_with_the_fence(end)]
        gone += [Delete(paths.id(view.consumer))] if end.evicted else []
        gone += _seat_gone(paths, end.seat)
        yield [SetData(path, channel.to_bytes(), version), *gone]
        version += 1
    partitions = sorted(end.partitions)
    for first in range(0, len(partitions), PARTITIONS_A_STEP):
        batch = partitions[first : first + PARTITIONS_A_STEP]
        left = channel.without(partitions[: first + len(batch)])
        offsets = _offsets(snapshot, paths, channel, batch)
        owners = [Delete(paths.owner(*part)) for part in batch if part in end.owners]
        yield [SetData(path, left.to_bytes(), version), *offsets, *owners]
        version += 1


def _moves_the_fence(end: End) -> bool:
    """Whether a torn end begins with the fence: an incarnation that was ended in part has another fence already."""
    return _channel(end).is_live or end.evicted


def _gone_with_the_fence(end: End) -> Sequence[SentCommand]:
    """The commands that the first multi of a torn end removes; the others are withdrawn later."""
    return end.view.commands[: ROOM - 3] if _moves_the_fence(end) else ()


def _seat_gone(paths: GroupPaths, seat: SeatView | None) -> Unit:
    """Removal of a static member's seat as read: a member that returned meanwhile has changed its version."""
    return [Delete(paths.seat(seat.instance), seat.version)] if seat is not None else []


def _given_up(snapshot: Snapshot, paths: GroupPaths, seat: SeatView) -> Unit:
    """The same, fenced against a registration under its name, which may have created the seat again."""
    view = snapshot.channels.get(seat.instance)
    return [*([Check(paths.channel(seat.instance), view.version)] if view else []), *_seat_gone(paths, seat)]


def _channel(end: End) -> Channel:
    if end.view.channel is None:
        raise ValueError(f"{end.view.consumer}: a channel that cannot be read is never ended")
    return end.view.channel


def _offsets(snapshot: Snapshot, paths: GroupPaths, channel: Channel, partitions: Iterable[TopicPartition]) -> Unit:
    """The offsets of the next owner. An unreadable offset is left unchanged."""
    written: Unit = []
    for partition in sorted(partitions):
        if record := channel.offset_record(partition):
            path, data = paths.offset(*partition), record.to_bytes()
            written.append(SetData(path, data) if partition in snapshot.offsets else Create(path, data))
    return written


def _history(snapshot: Snapshot, plan: Plan, paths: GroupPaths) -> list[Unit]:
    units: list[Unit] = [[Delete(paths.rebalance(generation))] for generation in plan.forgotten]
    if plan.replaced is not None and plan.replaced.generation not in plan.forgotten:
        units.append([SetData(paths.rebalance(plan.replaced.generation), plan.replaced.to_bytes())])
    if plan.rebalance is not None:
        path, data = paths.rebalance(plan.rebalance.generation), plan.rebalance.to_bytes()
        known = plan.rebalance.generation in snapshot.history
        units.append([SetData(path, data) if known else Create(path, data)])
    return units
