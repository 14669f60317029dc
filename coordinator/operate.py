"""What operators do to the coordinator: pause and resume groups, let it resign, ask for a turn.

Each is one znode, changed by compare-and-set; the elected coordinator watches it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .zk.asked import LONGEST_REASON, NOTHING_PAUSED, Pause, PausedRecord, TurnRequest
from .zk.errors import BadData, CoordinatorError, OutcomeUnknown, Refused, Retryable, UsageError
from .zk.fenced import ensure
from .zk.fields import MAX_ZNODE_BYTES
from .zk.names import is_name, shown
from .zk.paths import CONSUMERS, COORDINATOR, COORDINATOR_EPOCH, PAUSED, GroupPaths
from .zk.records import CoordinatorRecord, EpochRecord
from .zk.runtime import Runtime
from .zk.state import DEAD, GroupState
from .zk.store import Check, Create, Delete, Operation, SetData, Store, Watch

T = TypeVar("T")

TRIES = 20
LOOK_AGAIN_S = 1.0
"""How often to look again while waiting for a znode, in case its watch was lost."""


# ---- pause and resume


def pause(store: Store, group: str | None, by: str, since_ms: int, reason: str | None) -> PausedRecord:
    """Let `group` (None: every group) take no turns until `resume`; a pause that stands already stays as it is.

    :returns: all that is paused afterwards.
    :raises UsageError: when there is no such group, the reason is too long, or too many are paused one by one.
    """
    if group is not None:
        _existing(store, group)
    checked_reason(reason)
    return _change_paused(store, lambda before: before.with_pause(group, Pause(by, since_ms, reason)))


def resume(store: Store, group: str | None) -> tuple[PausedRecord, PausedRecord]:
    """Lift the pause of `group`, or (None) every pause there is.

    :returns: what was paused before, and what is afterwards.
    :raises UsageError: when `group` cannot be resumed alone, because everything is paused.
    """
    before, _ = _read_paused(store, is_lenient=group is None)

    def lifted(record: PausedRecord) -> PausedRecord:
        if group is None:
            return NOTHING_PAUSED
        if record.everything is not None:
            raise UsageError(
                f"Every group is paused, so '{group}' cannot be resumed alone: lift everything with `resume`, "
                "and pause again what shall stay paused."
            )
        return record.without(group)

    return before, _change_paused(store, lifted, is_lenient=group is None)


def read_paused(store: Store) -> PausedRecord:
    """What is paused now.

    :raises BadData: when `/consumers/paused` cannot be read.
    """
    return _read_paused(store)[0]


def _read_paused(store: Store, is_lenient: bool = False) -> tuple[PausedRecord, int | None]:
    """The record and its data version, None when there is no such znode."""
    node = store.get(PAUSED)
    if node is None:
        return NOTHING_PAUSED, None
    try:
        return PausedRecord.parse(PAUSED, node.data), node.stat.version
    except BadData:
        if not is_lenient:
            raise
        return NOTHING_PAUSED, node.stat.version


def _change_paused(
    store: Store, change: Callable[[PausedRecord], PausedRecord], is_lenient: bool = False
) -> PausedRecord:
    """Compare and set; the znode is removed when nothing is paused any more."""
    ensure(store, [CONSUMERS])
    for _ in range(TRIES):
        before, version = _read_paused(store, is_lenient)
        after = change(before)
        operation: Operation
        if version is None:
            if not after:
                return after
            operation = Create(PAUSED, after.to_bytes())
        else:
            operation = SetData(PAUSED, after.to_bytes(), version) if after else Delete(PAUSED, version)
        if not isinstance(operation, Delete) and len(operation.data) > MAX_ZNODE_BYTES:
            raise UsageError(
                f"{PAUSED} cannot hold so many pauses: shorten the reasons, or pause every group with `pause`"
            )
        try:
            store.commit([operation])
            return after
        except Refused:
            continue  # somebody else has changed it meanwhile
        except OutcomeUnknown:
            store.sync()
    raise CoordinatorError(f"{PAUSED} is changed again and again by others: try again")


def checked_reason(reason: str | None) -> None:
    """
    :raises UsageError: when it is longer than a znode's field may be.
    """
    if reason is not None and len(reason) > LONGEST_REASON:
        raise UsageError(f"the reason has {len(reason)} characters: say it in {LONGEST_REASON}")


def _existing(store: Store, group: str) -> GroupPaths:
    if not is_name(group) or store.get(GroupPaths(group).root) is None:
        raise UsageError(f"Consumer group {shown(group)} does not exist.")
    return GroupPaths(group)


# ---- resign


def resign(store: Store, node: str | None = None) -> tuple[CoordinatorRecord, int]:
    """Take the coordinator's role from whoever is elected: its znode is removed, under the fence of its epoch.

    :param node: who must be elected, None for anybody.
    :returns: who was elected, and the epoch that counts: the next election is above it.
    :raises UsageError: when another node than `node` is elected.
    :raises CoordinatorError: when nobody is elected, or others are faster.
    """
    before = None
    for _ in range(TRIES):
        epoch_node, found = store.get_many([COORDINATOR_EPOCH, COORDINATOR])
        if found is None or epoch_node is None:
            raise CoordinatorError("nobody is elected: there is no coordinator that could resign (see `status`)")
        record = CoordinatorRecord.parse(COORDINATOR, found.data)
        if node is not None and record.node != node:
            raise UsageError(f"node {shown(node)} is not elected: {shown(record.node)} is, with epoch {record.epoch}")
        epoch = EpochRecord.parse(COORDINATOR_EPOCH, epoch_node.data).epoch
        seen = (epoch_node.stat.mzxid, found.stat.czxid)
        if epoch != record.epoch and seen != before:
            before = seen
            continue  # an election came between the two reads; or, if they stay so, somebody made one by hand
        fence = Check(COORDINATOR_EPOCH, epoch_node.stat.version)
        try:
            store.commit([fence, Delete(COORDINATOR, found.stat.version)])
        except Refused:
            continue
        except OutcomeUnknown:
            store.sync()  # removed, or still there: what is read next tells
            after = store.get(COORDINATOR)
            if after is not None and after.stat.czxid == found.stat.czxid:
                continue
        return record, epoch
    raise CoordinatorError("elections come and go: nobody stays elected for long enough to resign (see `status`)")


def await_election(store: Store, runtime: Runtime, above: int, timeout_s: float) -> CoordinatorRecord | None:
    """Whoever is elected in an epoch above `above`, None when nobody is within `timeout_s` seconds."""

    def look(watch: Watch) -> CoordinatorRecord | None:
        node = store.get(COORDINATOR, watch=watch)
        record = CoordinatorRecord.parse(COORDINATOR, node.data) if node is not None else None
        return record if record is not None and record.epoch > above else None

    return _awaited(runtime, look, timeout_s)


# ---- a turn


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands."""

    state: str
    generation: int
    reason: str | None = None


def standing(store: Store, group: str) -> Standing:
    """The group's state as it stands; Dead without one.

    :raises UsageError: when there is no such group.
    :raises BadData: when its state cannot be read.
    """
    path = _existing(store, group).state
    node = store.get(path)
    state = GroupState.parse(path, node.data) if node is not None else GroupState(state=DEAD)
    return Standing(state.state, state.generation, state.reason)


def checked_request(store: Store, group: str, reason: str | None) -> GroupPaths:
    """The paths of a group that can be asked for a turn now.

    :raises UsageError: when there is no such group, it is paused, or the reason is too long.
    :raises CoordinatorError: when nobody is elected who could take it.
    """
    paths = _existing(store, group)
    checked_reason(reason)
    paused = read_paused(store)
    if paused.of(group) is not None:
        how = "`resume`" if paused.everything else f"`resume {group}`"
        raise UsageError(f"group '{group}' is paused, so it takes no turns: first resume it with {how}")
    if store.get(COORDINATOR) is None:
        raise CoordinatorError("nobody is elected who could take a turn: start a node with `zk-coordinator run`")
    return paths


def request_turn(store: Store, group: str, by: str, since_ms: int, reason: str | None) -> tuple[bool, str]:
    """Ask for a turn of `group`; the request stands until a coordinator has taken it.

    :returns: whether it is a new one (else somebody had asked already), and by whom it is.
    :raises UsageError: when there is no such group, or it is paused.
    :raises CoordinatorError: when nobody is elected who could take it.
    """
    paths = checked_request(store, group, reason)
    data = TurnRequest(by, since_ms, reason).to_bytes()
    for _ in range(TRIES):
        node = store.get(paths.request)
        if node is not None:
            return node.data == data, _asker(paths.request, node.data)
        try:
            store.commit([Create(paths.request, data)])
            return True, by
        except Refused as refused:
            if refused.reason != "node-exists":
                raise CoordinatorError(f"Consumer group '{group}' has just been removed") from refused
        except OutcomeUnknown:
            store.sync()
    raise CoordinatorError("requests come and go: try again")


def await_turn(store: Store, runtime: Runtime, group: str, timeout_s: float) -> bool:
    """Whether the request that stands for `group` is gone within `timeout_s` seconds: its turn has been taken."""
    path = GroupPaths(group).request
    return bool(_awaited(runtime, lambda watch: store.get(path, watch=watch) is None, timeout_s))


def _asker(path: str, data: bytes) -> str:
    try:
        return TurnRequest.parse(path, data).by or "somebody"
    except BadData:
        return "somebody"


def _awaited(runtime: Runtime, look: Callable[[Watch], T | None], timeout_s: float) -> T | None:
    """What `look` finds, looking again whenever its watch is called; None after `timeout_s` seconds."""
    deadline = runtime.monotonic() + timeout_s
    while True:
        changed = runtime.event()
        try:
            found = look(lambda path, changed=changed: changed.set())  # type: ignore[misc]
        except Retryable:
            found = None
        if found:
            return found
        left_s = deadline - runtime.monotonic()
        if left_s <= 0:
            return None
        changed.wait(min(left_s, LOOK_AGAIN_S))
