"""Operator requests to the coordinator: pause, resume, resign, a turn; removing seats, lifting eviction holds.

Each is one znode, changed by compare-and-set; the elected coordinator watches it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from ..zk.errors import BadData, CoordinatorError, Refused, Retryable, UsageError
from ..zk.runtime import Runtime
from ..zk.store import Check, Create, Delete, Node, Operation, SetData, Store, Watch
from ..zk.update import Change, Failure, commit_once, ensure, retried, update
from ..zk.values import shown
from ..zk.znodes.group_state import DEAD, GroupState, Mark
from ..zk.znodes.json_fields import MAX_ZNODE_BYTES, changed, readable
from ..zk.znodes.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, PAUSED, GroupPaths, names_below
from ..zk.znodes.records import (
    LONGEST_REASON,
    NOTHING_PAUSED,
    CoordinatorRecord,
    EpochRecord,
    Pause,
    PausedRecord,
    TurnRequest,
)
from .groups import checked_group

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
"""Poll interval while waiting for a znode, in case its watch was lost."""


# ---- pause and resume


def pause(store: Store, group: str | None, by: str, since_ms: int, reason: str | None) -> PausedRecord:
    """Suspend the turns of `group` (None: of every group) until `resume`; an existing pause is kept.

    :returns: all pauses afterwards.
    :raises UsageError: when there is no such group, the reason is too long, or there are too many pauses.
    """
    if group is not None:
        checked_group(store, group)
    checked_reason(reason)
    return _change_paused(store, lambda before: before.with_pause(group, Pause(by, since_ms, reason)), False)


def resume(store: Store, group: str | None) -> tuple[PausedRecord, PausedRecord]:
    """Remove the pause of `group`, or (None) all pauses.

    :returns: the pauses before and after.
    :raises UsageError: when `group` cannot be resumed alone, because everything is paused.
    """
    before = _parsed(store.get(PAUSED), is_lenient=group is None)

    def lifted(record: PausedRecord) -> PausedRecord:
        if group is None:
            return NOTHING_PAUSED
        if record.everything is not None:
            raise UsageError(
                f"Every group is paused, so '{group}' cannot be resumed alone: resume everything with `resume`, "
                "and pause again the groups that shall stay paused."
            )
        return record.without(group)

    return before, _change_paused(store, lifted, is_lenient=group is None)


def read_paused(store: Store) -> PausedRecord:
    """The current pauses.

    :raises BadData: when `/consumers/paused` cannot be read.
    """
    return _parsed(store.get(PAUSED))


def _parsed(node: Node | None, is_lenient: bool = False) -> PausedRecord:
    if is_lenient:
        return readable(PausedRecord.parse, PAUSED, node) or NOTHING_PAUSED
    return PausedRecord.parse(PAUSED, node.data) if node is not None else NOTHING_PAUSED


def _change_paused(store: Store, change: Callable[[PausedRecord], PausedRecord], is_lenient: bool) -> PausedRecord:
    """The record after `change`; its znode is removed with the last pause."""
    ensure(store, [CONSUMERS])

    def changed(node: Node | None) -> Change[PausedRecord]:
        after = change(_parsed(node, is_lenient))
        data = after.to_bytes()
        if after and len(data) > MAX_ZNODE_BYTES:
            remedy = "shorten the reasons, or pause every group with `pause`"
            raise UsageError(f"{PAUSED} has no room for more pauses: {remedy}")
        if node is None:
            return Change([Create(PAUSED, data)] if after else [], after)
        operation: Operation = SetData(PAUSED, data, node.stat.version) if after else Delete(PAUSED, node.stat.version)
        return Change([operation], after)

    return update(store, PAUSED, changed)


def checked_reason(reason: str | None) -> None:
    """
    :raises UsageError: when it is longer than `LONGEST_REASON`.
    """
    if reason is not None and len(reason) > LONGEST_REASON:
        raise UsageError(f"the reason has {len(reason)} characters, the limit is {LONGEST_REASON}")


# ---- resign


def resign(store: Store, node: str | None = None) -> tuple[CoordinatorRecord, int]:
    """End the term of the elected coordinator: its znode is removed, under the fence of its epoch.

    A live process resigns; a dead or partitioned one is indistinguishable here.

    :param node: the node that must be elected, None for any.
    :returns: the node that was elected, and the current epoch: the next election is above it.
    :raises UsageError: when another node than `node` is elected.
    :raises CoordinatorError: when no node is elected, or concurrent elections keep winning.
    """

    def attempt(before: Failure | None) -> tuple[CoordinatorRecord, int]:
        epoch_node, coordinator_node = store.get_many([COORDINATOR_EPOCH, COORDINATOR])
        if coordinator_node is None or epoch_node is None:
            raise CoordinatorError("no node is elected: there is no coordinator to resign (see `status`)")
        czxid, record = coordinator_node.stat.czxid, CoordinatorRecord.parse(COORDINATOR, coordinator_node.data)
        if node is not None and record.node != node:
            raise UsageError(f"node {shown(node)} is not elected: {shown(record.node)} is, with epoch {record.epoch}")
        epoch = EpochRecord.parse(COORDINATOR_EPOCH, epoch_node.data).epoch

        def is_gone() -> bool:
            after = store.get(COORDINATOR)
            return after is None or after.stat.czxid != czxid

        # An election between the two reads has changed the fence.
        fence = Check(COORDINATOR_EPOCH, epoch_node.stat.version)
        commit_once(store, [fence, Delete(COORDINATOR, coordinator_node.stat.version)], is_gone)
        return record, epoch

    why = "elections keep changing: no node stays elected for long enough to resign (see `status`)"
    return retried(store, attempt, lambda: why)


def await_election(store: Store, runtime: Runtime, above: int, timeout_s: float) -> CoordinatorRecord | None:
    """The node elected in an epoch above `above`, None when there is none within `timeout_s` seconds."""

    def look(watch: Watch) -> CoordinatorRecord | None:
        node = store.get(COORDINATOR, watch=watch)
        record = CoordinatorRecord.parse(COORDINATOR, node.data) if node is not None else None
        return record if record is not None and record.epoch > above else None

    return _awaited(runtime, look, timeout_s)


# ---- a turn


def standing(store: Store, group: str) -> GroupState:
    """The group's current state; Dead without one.

    :raises UsageError: when there is no such group.
    :raises BadData: when its state cannot be read.
    """
    path = checked_group(store, group).state
    node = store.get(path)
    return GroupState.parse(path, node.data) if node is not None else GroupState(state=DEAD)


def checked_request(store: Store, group: str, reason: str | None) -> GroupPaths:
    """The paths of a group for which a turn can be requested.

    :raises UsageError: when there is no such group, it is paused, or the reason is too long.
    :raises CoordinatorError: when no coordinator is elected.
    """
    paths = checked_group(store, group)
    checked_reason(reason)
    paused = read_paused(store)
    if paused.of(group) is not None:
        how = "`resume`" if paused.everything else f"`resume {group}`"
        raise UsageError(f"group '{group}' is paused, so it takes no turns: resume it first with {how}")
    if store.get(COORDINATOR) is None:
        raise CoordinatorError("no coordinator is elected: start a node with `zk-coordinator run`")
    return paths


def request_turn(store: Store, group: str, by: str, since_ms: int, reason: str | None) -> tuple[bool, str]:
    """Request a turn of `group`; the request stays until a coordinator has taken it.

    :returns: whether the request is new (else there was one already), and its author.
    :raises UsageError: when there is no such group, or it is paused.
    :raises CoordinatorError: when no coordinator is elected.
    """
    paths = checked_request(store, group, reason)
    data = TurnRequest(by, since_ms, reason).to_bytes()

    def attempt(before: Failure | None) -> tuple[bool, str]:
        if isinstance(before, Refused) and before.reason != "node-exists":
            raise CoordinatorError(f"Consumer group '{group}' has just been removed") from before
        node = store.get(paths.request)
        if node is not None:
            pending = readable(TurnRequest.parse, paths.request, node)
            return node.data == data, (pending.by if pending is not None else "") or "an operator"
        store.commit([Create(paths.request, data)])
        return True, by

    return retried(store, attempt, lambda: "requests keep changing: try again")


def await_turn(store: Store, runtime: Runtime, group: str, timeout_s: float) -> bool:
    """Whether the request of a turn of `group` is removed within `timeout_s` seconds: the turn has been taken."""
    path = GroupPaths(group).request
    return bool(_awaited(runtime, lambda watch: store.get(path, watch=watch) is None, timeout_s))


def _awaited(runtime: Runtime, look: Callable[[Watch], T | None], timeout_s: float) -> T | None:
    """The result of `look`, called again at each watch event; None after `timeout_s` seconds."""
    deadline = runtime.monotonic() + timeout_s
    while True:
        changed = runtime.event()
        try:
            result = look(lambda path, changed=changed: changed.set())  # type: ignore[misc]
        except Retryable:
            result = None
        if result:
            return result
        left_s = deadline - runtime.monotonic()
        if left_s <= 0:
            return None
        changed.wait(min(left_s, LOOK_AGAIN_S))


# ---- seats


def remove_members(
    store: Store,
    runtime: Runtime,
    group: str,
    instances: tuple[str, ...],
    by: str,
    reason: str | None,
    timeout_s: float,
) -> tuple[str, ...]:
    """Mark seats as removed, and wait for the turn that removes them; returns the members' instance ids.

    :param instances: the members' instance ids; empty for every static member.
    :param by: the operator.  :param timeout_s: time to wait for the coordinator's turn.
    :raises UsageError: when there is no such group or seat, the group is paused, or the reason is too long.
    :raises CoordinatorError: when no coordinator is elected, or no turn has succeeded in time.
    """
    seats = checked_request(store, group, reason).seats  # before anything is marked
    chosen = tuple(dict.fromkeys(instances)) or tuple(names_below(store, seats))
    remove_seats(store, group, chosen, reason or f"by {by}")
    request_turn(store, group, by, runtime.wall_ms(), reason)
    if not await_turn(store, runtime, group, timeout_s):
        raise CoordinatorError(
            f"no turn of group '{group}' has succeeded within {timeout_s:g} s: the seats are marked as removed, "
            "and the next successful turn removes them (see `status --check`)"
        )
    return chosen


def remove_seats(store: Store, group: str, instances: Sequence[str], reason: str) -> None:
    """Mark the seats as removed: the coordinator's next turn evicts their members, and removes the seats.

    All are checked before the first is marked.

    :raises UsageError: when one of `instances` has no seat.
    :raises BadData: when one is unreadable.
    """
    seats = names_below(store, GroupPaths(group).seats)
    unknown = sorted(set(instances) - set(seats))
    if unknown:
        has = f"it has those of {', '.join(seats[:10])}" if seats else "it has none"
        raise UsageError(f"Consumer group '{group}' has no seat of {shown(unknown[0])}: {has}")
    for path in map(GroupPaths(group).seat, instances):
        update(store, path, partial(_removed, path, reason))


def _removed(path: str, reason: str, node: Node | None) -> Change[None]:
    """A missing seat counts as removed; an unreadable one is overwritten by its member's next registration."""
    if node is None:
        return Change((), None)
    return Change([SetData(path, changed(path, node.data, {"removed": reason}), node.stat.version)], None)


# ---- eviction holds


def marks_of(store: Store, group: str, consumer: str, incarnation: str) -> tuple[Mark, ...]:
    """The eviction holds that would be lifted.

    :param consumer: their consumer.  :param incarnation: their incarnation; empty for all of the consumer.
    :raises UsageError: when there is no such group or hold.
    :raises CoordinatorError: when the group's state cannot be read.
    """
    path = checked_group(store, group).state
    return _marks(group, consumer, incarnation, store.get(path))[0]


def lift(
    store: Store, runtime: Runtime, group: str, consumer: str, incarnation: str, by: str, reason: str | None
) -> tuple[Mark, ...]:
    """Remove the eviction holds from the state by its version, and request a turn; returns them.

    All other fields of the state stay unchanged. A turn that has read the state before is refused.

    :param consumer: as of `marks_of`.  :param by: the operator.
    :raises UsageError: when there is no such group or hold, the group is paused, or the reason is too long.
    :raises CoordinatorError: when the state cannot be read, or no coordinator is elected.
    """
    path = checked_request(store, group, reason).state  # before anything is lifted

    def without(node: Node | None) -> Change[tuple[Mark, ...]]:
        lifted, others = _marks(group, consumer, incarnation, node)
        if node is None:
            return Change([], ())
        left = [mark.to_json() for mark in others]
        return Change([SetData(path, changed(path, node.data, {"marks": left}), node.stat.version)], lifted)

    lifted = update(store, path, without)
    request_turn(store, group, by, runtime.wall_ms(), reason)
    return lifted


def _marks(group: str, consumer: str, incarnation: str, node: Node | None) -> tuple[tuple[Mark, ...], tuple[Mark, ...]]:
    """The eviction holds to lift, and the others."""
    try:
        marks = GroupState.parse(GroupPaths(group).state, node.data).marks if node is not None else ()
    except BadData as error:
        raise CoordinatorError(f"{error}: a coordinator that reads it makes a mark on everything") from error
    lifted = tuple(mark for mark in marks if mark.consumer == consumer and incarnation in ("", mark.incarnation))
    if lifted:
        return lifted, tuple(mark for mark in marks if mark not in lifted)
    consumers = ", ".join(sorted({mark.consumer for mark in marks}))
    others = f": it has those of {consumers}" if consumers else ""
    raise UsageError(f"group '{group}' has no mark of '{consumer}'{others}")
