"""A turn of one group: read, decide, write under the fence. It never waits; further work requests another turn.

Sources D21 to D28: `rebalance` (group), split into turns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ..assignors import Assignor
from ..planning.answers import outdated_topic
from ..planning.invariants import broken_invariants
from ..planning.membership import GroupRules, Termination
from ..planning.plan import Plan, plan
from ..planning.regional import RegionStep
from ..planning.report import ASK_ZNODES_A_TURN
from ..planning.snapshot import SeatView, SentCommand, Snapshot
from ..planning.target import is_live
from ..term.term import Term
from ..zk.errors import BadData, RebalanceFailed, Refused
from ..zk.store import (
    MAX_COMMIT_BYTES,
    MAX_OPERATIONS,
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    Watch,
    nodes_at,
    operation_bytes,
)
from ..zk.update import batches, clear_below, ensure
from ..zk.values import in_chunks
from ..zk.znodes.group_state import FAILED, GroupState
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import Brokers, GroupPaths, RegionPaths
from ..zk.znodes.records import ASSIGN, ASSIGNMENT_FAILED, DRAIN, START_FETCHER, BegunRecord, Channel, Command, Topic
from ..zk.znodes.regions import ABORTED, CheckpointEnd, ended_checkpoint
from .group_reader import GroupReader, GroupZnodes
from .observation import Memory, observe, writing, written

log = logging.getLogger(__name__)

REFUSALS_A_TURN = 10
"""Immediate restarts of a turn that ZooKeeper refuses after a concurrent change; then it is delayed."""
REFUSED_PAUSE_S = 0.05
ACKNOWLEDGED_ALREADY_S = 0.0
ZNODES_CLEARED_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn.

    :ivar again_s: delay of the next turn, None when only a change requests one.
    :ivar is_new_generation: whether it began a rebalance.
    :ivar outstanding: consumers with a command to acknowledge.
    :ivar region: the step of the group's consistent region.
    :ivar draining: those of `outstanding` that must contribute to a checkpoint.
    :ivar is_refused: whether ZooKeeper refused it again and again.  :ivar is_idle: whether there was nothing to write.
    :ivar is_requested: whether it answered a `sync_request` of a leader.
    """

    again_s: float | None
    state: GroupState | None = None
    is_new_generation: bool = False
    outstanding: frozenset[str] = frozenset()
    region: RegionStep | None = None
    draining: frozenset[str] = frozenset()
    is_refused: bool = False
    is_idle: bool = False
    is_requested: bool = False


class Rebalancer:
    """Takes the turns of one group in one term.

    :param assignors: strategy -> assignor, those installed on this node.
    :param topics: returns all topics by name, as the listeners last read them.
    :param on_acknowledge: a watch on the group's channels.
    :param bound: the region that a group is bound to; empty without one.
    """

    def __init__(
        self,
        term: Term,
        group: str,
        topics: Callable[[], Mapping[str, Topic]],
        assignors: Mapping[str, Assignor],
        on_acknowledge: Watch,
        bound: Callable[[str], str] = lambda group: "",
    ) -> None:
        config = term.config
        self._term = term
        self._store = term.store
        self._group = group
        self._paths = GroupPaths(group)
        self._brokers = Brokers(config.brokers_path)
        self._topics = topics
        self._assignors = assignors
        self._rules = GroupRules(
            config.group_initial_rebalance_delay_ms / 1000, config.group_max_size, config.assignment_timeout_ms / 1000
        )
        self._reader = GroupReader(term, group, on_acknowledge, bound)
        self._memory = Memory()

    def take_turn(self, trigger: str, changed_s: float = 0.0) -> Turn:
        """One turn.

        :param trigger: the reason of the turn, for the history.
        :param changed_s: seconds since the turn's first change was seen.
        :raises EpochOver: when another coordinator has been elected.
        :raises LeaseLapsed: when this coordinator must not act.
        :raises RebalanceFailed: when there is no plan, with the reason.
        :raises Retryable: when ZooKeeper did not answer.
        """
        for _ in range(REFUSALS_A_TURN):
            read = self._read(changed_s)
            if read is None:
                is_there = self._store.get(self._paths.ids) is not None
                return Turn(REFUSED_PAUSE_S if is_there else None, is_refused=is_there)
            snapshot, znodes = read
            snapshot = self._reader.with_entries(self._with_topics_read_again(snapshot))
            decided = plan(snapshot, self._assignors, trigger, self._rules)
            if not decided.changes(snapshot.state):
                self._note(decided, znodes)
                left = decided.outstanding, decided.region, decided.draining
                return Turn(decided.again_s, snapshot.state, False, *left, is_idle=True)
            if decided.region is not None and decided.region.before is None:
                ensure(self._store, RegionPaths(decided.region.name).skeleton)
            if self._forgets_initial(snapshot):
                continue
            # Concurrent changes between the reads may make the snapshot inconsistent.
            if self._lost_a_session(snapshot, decided) or self._missed_a_return(snapshot):
                continue
            self._check(snapshot, decided)
            decided = self._reader.with_own(snapshot, decided)
            znodes, decided = self._reader.with_aborted(znodes, decided, snapshot.coordinator.now_ms)
            self._memory = writing(self._memory, decided)
            if self._commit(snapshot, znodes, decided):
                self._note(decided, znodes)
                _log_changes(snapshot, decided)
                self._term.metrics.turn_written(snapshot, decided)
                again_s, done = self._watch(decided)
                left = decided.outstanding - done, decided.region, decided.draining - done
                is_requested = decided.asking.answered is not None
                return Turn(again_s, decided.state, decided.is_new_generation, *left, is_requested=is_requested)
        return Turn(REFUSED_PAUSE_S, is_refused=True)

    def _check(self, snapshot: Snapshot, decided: Plan) -> None:
        """Refuse a plan that breaks an invariant.

        :raises RebalanceFailed: when it does, with the first of them.
        """
        if broken := next(broken_invariants(snapshot, decided), ""):
            self._term.metrics.plan_refused(self._group)
            raise RebalanceFailed(f"the plan breaks an invariant and is not written: {broken}")

    def fail(self, reason: str) -> None:
        """Write `RebalanceFailed` and the reason into the group's state."""
        read = self._read()
        if read is None or (read[0].state.state, read[0].state.reason) == (FAILED, reason):
            return
        snapshot, znodes = read
        state = replace(snapshot.state, state=FAILED, reason=reason, epoch=self._term.epoch)
        self._write([SetData(self._paths.state, state.to_bytes(), znodes.state_version)])
        log.error("rebalance failed: group=%s generation=%d reason=%s", self._group, state.generation, reason)

    # ---- reading

    def _read(self, changed_s: float = 0.0) -> tuple[Snapshot, GroupZnodes] | None:
        read = self._reader.read(self._topics(), self._memory, changed_s)
        if read is None:
            if self._store.get(self._paths.ids) is None:
                return None  # no group (yet)
            self._make()
            read = self._reader.read(self._topics(), self._memory)
        if read is None:
            return None
        snapshot, self._memory = observe(self._memory, read.snapshot, read.at)
        return snapshot, read.znodes

    def _make(self) -> None:
        """Create a new group's znodes."""
        skeleton = self._paths.skeleton
        missing = [path for path, node in zip(skeleton, self._store.get_many(skeleton), strict=True) if node is None]
        made = [Create(self._paths.state, GroupState(epoch=self._term.epoch).to_bytes())]
        self._write([*(Create(path) for path in missing), *made])

    def _note(self, decided: Plan, znodes: GroupZnodes) -> None:
        """A plan was written, or had nothing to write."""
        self._reader.written(decided)
        self._memory = written(self._memory, decided, znodes.czxid, self._term.runtime.monotonic())

    def _with_topics_read_again(self, snapshot: Snapshot) -> Snapshot:
        """An answer may name topics that this coordinator has not read yet: its leader may be ahead."""
        client = snapshot.state.client
        adopted = client.ask if client is not None else ""
        handled = {client.failed_ask, client.floor} if client is not None else set()
        newest = snapshot.requests.asks[-1].name if snapshot.requests.asks else ""
        odd = [
            view.answer
            for view in snapshot.requests.asks
            if view.answer is not None
            and view.name in (adopted, newest)
            and view.name not in handled
            and outdated_topic(view.answer, snapshot.partitions.topics, but_grown=view.name == adopted)
        ]
        if not odd:
            return snapshot
        names = sorted({name for answer in odd for name in answer.topics})
        self._store.sync()
        topics = dict(snapshot.partitions.topics)
        for name, path, node in nodes_at(self._store, names, self._brokers.topic):
            if node is None:
                topics.pop(name, None)
                continue
            with suppress(BadData):  # the listeners report it, and the last value is kept
                topics[name] = Topic.parse(path, name, node.data, node.stat.czxid)
        return replace(snapshot, partitions=replace(snapshot.partitions, topics=topics))

    def _missed_a_return(self, snapshot: Snapshot) -> bool:
        """Whether a static member only seems to be away, because it registered after its channel was read.

        Its seat, which is read last, then looks unexpected and would be removed, or belongs to an incarnation without
        any command, with which the group would be called Stable. One multi writes both, so a seat of another
        incarnation than the channel's is the only sign to check.
        """
        members, channels = snapshot.members, snapshot.members.channels
        odd = [name for name, seat in members.seats.items() if _is_of_another_life(seat, members.channel_of(name))]
        versions = [channels[name].version if name in channels else None for name in odd]
        nodes = self._store.get_many([self._paths.channel(name) for name in odd]) if odd else []
        return versions != [node.stat.version if node else None for node in nodes]

    def _lost_a_session(self, snapshot: Snapshot, decided: Plan) -> bool:
        """Whether owners only seem to be missing, because a session ended between the reads of ids and owners."""
        registered, owners = snapshot.members.registered, snapshot.partitions.owners
        running = {
            name: view
            for name, view in snapshot.members.channels.items()
            if name in registered and is_live(registered[name], view) and view.running - owners
        }
        is_held = decided.region is not None and decided.region.held_for
        if not (decided.is_new_generation or is_held) or not running:
            return False
        nodes = nodes_at(self._store, running, self._paths.id)
        return any(node is None or node.stat.czxid != registered[name].czxid for name, _, node in nodes)

    # ---- writing

    def _forgets_initial(self, snapshot: Snapshot) -> bool:
        """Remove the initial offsets left by an earlier group of the same name."""
        view = snapshot.region
        if view is None or view.version is None or not view.has_initial:
            return False
        paths = RegionPaths(view.name)
        unbound = Check(paths.root, view.version)
        root = paths.initial_of_group(self._group)
        if clear_below(self._store, root, lambda batch: self._write([unbound, *batch]), ZNODES_CLEARED_AT_ONCE):
            self._write([unbound, Delete(root)])
        return True

    def _commit(self, snapshot: Snapshot, znodes: GroupZnodes, decided: Plan) -> bool:
        """Write the plan, multi by multi; False when the turn must start over."""
        multis = enumerate(steps(snapshot, znodes, decided), znodes.state_version)
        return all(self._write(with_state(self._paths, version, step)) for version, step in multis)

    def _watch(self, decided: Plan) -> tuple[float | None, frozenset[str]]:
        """Watch the channels that were just commanded; the delay of the next turn, and the channels already empty.

        The turn is due at once if one is empty, except after a drain: the region's turn reads its result.
        """
        left = self._reader.channels.watch([consumer for consumer, _ in decided.commands])
        done = frozenset(consumer for consumer, names in left.items() if not names)
        return decided.again_s if done <= decided.draining else ACKNOWLEDGED_ALREADY_S, done

    def _write(self, operations: Sequence[Operation]) -> bool:
        """Commit under the fence; False when the turn must start over."""
        return self._term.write(operations, self._restarted)

    def _restarted(self, refused: Refused | None) -> None:
        if refused is None:
            log.info("turn restarted after a lost reply: group=%s", self._group)
        elif self._term.lines.take("turn restarted"):
            log.info("turn restarted: group=%s refused=%s reason=%s", self._group, refused.path, refused.reason)


def _is_of_another_life(seat: SeatView, channel: Channel | None) -> bool:
    return seat.seat is not None and (channel is None or channel.incarnation != seat.incarnation)


def _named(command: Command) -> str:
    """Number of partitions of a command; a stop without any means all."""
    if command.option in (ASSIGN, ASSIGNMENT_FAILED, DRAIN):
        return "-"
    named = len(command.started if command.option == START_FETCHER else command.partitions)
    return str(named) if named or command.option == START_FETCHER else "all"


def _log_asks(group: str, decided: Plan) -> None:
    asking, client = decided.asking, decided.state.client
    if asking.made is not None:
        name, ask = asking.made
        log.info(
            "assignment requested: group=%s ask=%s leader=%s protocol=%s attempt=%d members=%d reason=%s",
            group, name, ask.leader, ask.protocol, ask.attempt, len(ask.members), ask.reason,
        )  # fmt: skip
    if asking.is_adopted and client is not None:
        log.info("assignment adopted: group=%s ask=%s", group, client.ask)
    if asking.notices and asking.has_failed:
        log.error("assignment failed: group=%s reason=%s", group, asking.waits)


def _log_changes(snapshot: Snapshot, decided: Plan) -> None:
    """One log line for each change of state."""
    group, state = snapshot.group, decided.state
    for end in decided.terminations:
        log.warning(
            "incarnation ended: group=%s consumer=%s evicted=%s reason=%s",
            group, end.view.consumer, end.evicted, end.reason,
        )  # fmt: skip
    for consumer, command in decided.commands:
        log.info(
            "command sent: group=%s consumer=%s option=%s epoch=%d generation=%d partitions=%s",
            group, consumer, command.option, command.epoch, command.generation, _named(command),
        )  # fmt: skip
    _log_asks(group, decided)
    step = decided.region
    if step is not None and step.is_reset:
        log.info(
            "region reset: region=%s group=%s reset=%d checkpoint=%d",
            step.name, group, step.after.reset, step.after.sequence,
        )  # fmt: skip
    if decided.withdrawn:
        log.info("commands withdrawn: group=%s count=%d", group, len(decided.withdrawn))
    if (state.state, state.generation) != (snapshot.state.state, snapshot.state.generation):
        log.info(
            "group state changed: group=%s state=%s generation=%d epoch=%d members=%d partitions=%d",
            group, state.state, state.generation, state.epoch, len(state.target),
            sum(len(target.partitions) for target in state.target.values()),
        )  # fmt: skip


# ---- a plan as ZooKeeper operations, in the order in which they must happen

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


def with_state(paths: GroupPaths, version: int, step: Step) -> list[Operation]:
    """One multi of a turn: it replaces the state that was read, or that of the multi before, by its data version."""
    data = step.state.to_bytes()
    if len(data) > MAX_COMMIT_BYTES:
        raise RebalanceFailed(f"the group's state has {len(data)} bytes, over the {MAX_COMMIT_BYTES} of a znode")
    return [SetData(paths.state, data, version), *step.operations]


def steps(snapshot: Snapshot, znodes: GroupZnodes, plan: Plan) -> Iterator[Step]:
    """The multis of a turn, each to be committed after the one before."""
    paths = GroupPaths(snapshot.group)
    before = replace(snapshot.state, marks=plan.state.marks, epoch=snapshot.coordinator.epoch)
    parents = _parents(snapshot, znodes, plan)
    torn = [end for end in plan.terminations if len(end.partitions) > PARTITIONS_A_STEP]
    if torn:
        yield from (Step(before, operations) for operations in batches(parents, ROOM, _room_beside(before)))
        parents = []
    for end in torn:
        for operations in _torn_end(snapshot, paths, end):
            yield Step(before, operations)
    units = _region(snapshot, znodes, plan) + parents
    units += [_whole_end(snapshot, paths, end) for end in plan.terminations if end not in torn]
    gone = {(end.view.consumer, sent.name) for end in torn for sent in _gone_with_the_fence(end)}
    again = _sent_again(plan)
    units += [
        [Delete(paths.command(consumer, sent.name))]
        for consumer, sent in plan.withdrawn
        if (consumer, sent.name) not in gone and (consumer, sent) not in again
    ]
    units += [_given_up(snapshot, paths, seat) for seat in plan.given_up]
    units += _asks(znodes, plan, paths)
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


def _region(snapshot: Snapshot, znodes: GroupZnodes, plan: Plan) -> list[Unit]:
    """The new znode of the group's region, in the multi with the group's state: both are refused, or neither."""
    step, view = plan.region, snapshot.region
    if step is None or (step.after == step.before and not step.is_touched):
        return []
    paths, data = RegionPaths(step.name), step.after.to_bytes()
    version = view.version if view is not None else None
    if step.before is None or version is None:
        return [[Create(paths.root, data), Create(paths.initial), Create(paths.checkpoints)]]
    aborted: Unit = []
    if step.aborted and znodes.aborted.data:
        why = "the region was reset" if step.is_reset else f"group {snapshot.group} was rebalanced"
        end = CheckpointEnd(snapshot.coordinator.now_ms, round(step.open_s * 1000), why)
        # Ends that an operator has created.
        aborted = [Delete(paths.end(step.aborted, stray)) for stray in sorted(znodes.aborted.ends)]
        aborted += ended_checkpoint(paths, step.aborted, znodes.aborted.data, ABORTED, end)
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


def _asks(znodes: GroupZnodes, plan: Plan, paths: GroupPaths) -> list[Unit]:
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
        made += [] if znodes.has_sync else [Create(paths.sync)]
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


def _parents(snapshot: Snapshot, znodes: GroupZnodes, plan: Plan) -> list[Unit]:
    """The missing parents of owners and offsets, so that a consumer's claim finds them."""
    paths = GroupPaths(snapshot.group)
    started = {topic for _, command in plan.starts for topic in command.topics}
    folded = {part.topic for end in plan.terminations for part in end.partitions}
    folded |= {topic for _, command in plan.stops for topic in command.topics}
    made: list[Unit] = [[Create(paths.owners_of(topic))] for topic in sorted(started - znodes.owner_parents)]
    missing, topics = sorted((started | folded) - znodes.offset_parents), snapshot.partitions.topics
    return made + [[Create(paths.offsets_of(name), _begun(topics.get(name), znodes.czxid))] for name in missing]


def _begun(topic: Topic | None, czxid: int) -> bytes:
    """The record that the group of `czxid` begins with `topic`."""
    return BegunRecord.of(topic, czxid).to_bytes() if topic is not None else b""


def _whole_end(snapshot: Snapshot, paths: GroupPaths, end: Termination) -> Unit:
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


def _torn_end(snapshot: Snapshot, paths: GroupPaths, end: Termination) -> Iterator[Unit]:
    """Ended in several multis: the fence first, while `running` is kept; then its partitions in batches."""
    view, channel = end.view, replace(_channel(end), ended=end.reason, error=end.error).without(end.foreign)
    path, version = paths.channel(view.consumer), view.version
    if _moves_the_fence(end):
        gone: Unit = [Delete(paths.command(view.consumer, sent.name)) for sent in _gone_with_the_fence(end)]
        gone += [Delete(paths.id(view.consumer))] if end.evicted else []
        gone += _seat_gone(paths, end.seat)
        yield [SetData(path, channel.to_bytes(), version), *gone]
        version += 1
    left = channel
    for batch in in_chunks(sorted(end.partitions), PARTITIONS_A_STEP):
        left = left.without(batch)
        offsets = _offsets(snapshot, paths, channel, batch)
        owners = [Delete(paths.owner(*part)) for part in batch if part in end.owners]
        yield [SetData(path, left.to_bytes(), version), *offsets, *owners]
        version += 1


def _moves_the_fence(end: Termination) -> bool:
    """Whether a torn end begins with the fence: an incarnation that was ended in part has another fence already."""
    return _channel(end).is_live or end.evicted


def _gone_with_the_fence(end: Termination) -> Sequence[SentCommand]:
    """The commands that the first multi of a torn end removes; the others are withdrawn later."""
    return end.view.commands[: ROOM - 3] if _moves_the_fence(end) else ()


def _seat_gone(paths: GroupPaths, seat: SeatView | None) -> Unit:
    """Removal of a static member's seat as read: a member that returned meanwhile has changed its version."""
    return [Delete(paths.seat(seat.instance), seat.version)] if seat is not None else []


def _given_up(snapshot: Snapshot, paths: GroupPaths, seat: SeatView) -> Unit:
    """The same, fenced against a registration under its name, which may have created the seat again."""
    view = snapshot.members.channels.get(seat.instance)
    return [*([Check(paths.channel(seat.instance), view.version)] if view else []), *_seat_gone(paths, seat)]


def _channel(end: Termination) -> Channel:
    if end.view.channel is None:
        raise ValueError(f"{end.view.consumer}: a channel that cannot be read is never ended")
    return end.view.channel


def _offsets(snapshot: Snapshot, paths: GroupPaths, channel: Channel, partitions: Iterable[TopicPartition]) -> Unit:
    """The offsets of the next owner. An unreadable offset is left unchanged."""
    written: Unit = []
    for partition in sorted(partitions):
        if record := channel.offset_record(partition):
            path, data = paths.offset(*partition), record.to_bytes()
            written.append(SetData(path, data) if partition in snapshot.partitions.offsets else Create(path, data))
    return written


def _history(snapshot: Snapshot, plan: Plan, paths: GroupPaths) -> list[Unit]:
    units: list[Unit] = [[Delete(paths.rebalance(generation))] for generation in plan.forgotten]
    if plan.replaced is not None and plan.replaced.generation not in plan.forgotten:
        units.append([SetData(paths.rebalance(plan.replaced.generation), plan.replaced.to_bytes())])
    if plan.rebalance is not None:
        path, data = paths.rebalance(plan.rebalance.generation), plan.rebalance.to_bytes()
        known = plan.rebalance.generation in snapshot.history.generations
        units.append([SetData(path, data) if known else Create(path, data)])
    return units
