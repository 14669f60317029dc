"""Changing znodes by compare-and-set: read, decide, commit; again after a refusal or a lost reply.

Also what commits need: parents, batches within ZooKeeper's limits, and cached znodes that are read again on a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import NotAuthorized, OutcomeUnknown, RebalanceFailed, Refused, StoreError
from .runtime import Runtime
from .store import MAX_COMMIT_BYTES, MAX_OPERATIONS, Create, Delete, Node, Operation, SetData, Store, operation_bytes

T = TypeVar("T")

TRIES = 20

Failure = Refused | OutcomeUnknown
"""The error of an attempt that is retried."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The decision of one attempt.

    :ivar operations: the operations to commit, with the versions that were read; empty when nothing changes.
    :ivar result: the result of the update after the commit.
    """

    operations: Sequence[Operation]
    result: T


def update(store: Store, path: str, change: Callable[[Node | None], Change[T]]) -> T:
    """Change the znode at `path`, and others in the same commit, by compare-and-set.

    :param change: decides by the current znode, None when it does not exist; its errors end the update. The data that
        it writes to `path` must differ from the current data: after a lost reply they show whether it was applied.
    :raises StoreError: when other clients keep changing it.
    :raises ConnectionLost: when ZooKeeper did not answer.
    """
    sent: Change[T] | None = None
    read: Node | None = None

    def attempt(before: Failure | None) -> T:
        nonlocal sent, read
        node = store.get(path)
        if sent is None or not (isinstance(before, OutcomeUnknown) and _is_written(node, path, sent.operations, read)):
            sent, read = change(node), node
            if sent.operations:
                store.commit(sent.operations)
        return sent.result

    return retried(store, attempt, lambda: f"{path} keeps changing: try again")


def retried(store: Store, attempt: Callable[[Failure | None], T], failure: Callable[[], str], tries: int = TRIES) -> T:
    """The result of `attempt`, which reads, decides and commits; called again after a refusal or a lost reply.

    After a lost reply there is a `sync` first, so that the next reads show whether the commit was applied.

    :param attempt: its parameter is the error of the previous attempt, None in the first; other errors end the retries.
    :param failure: the message after the last attempt.
    :raises NotAuthorized: when an ACL refuses; another attempt would be refused, too.
    :raises StoreError: after the last attempt.
    """
    before: Failure | None = None
    for _ in range(tries):
        try:
            return attempt(before)
        except NotAuthorized:
            raise
        except Refused as refused:
            before = refused
        except OutcomeUnknown as unknown:
            store.sync()
            before = unknown
    raise StoreError(failure()) from before


def commit_once(store: Store, operations: Sequence[Operation], happened: Callable[[], bool]) -> None:
    """Commit operations that must not be sent twice; after a lost reply, check whether they were applied.

    :raises Refused: when the commit was refused.
    :raises OutcomeUnknown: when it was not applied, or not yet.
    """
    try:
        store.commit(operations)
    except OutcomeUnknown:
        store.sync()
        if not happened():
            raise


def _is_written(node: Node | None, path: str, operations: Sequence[Operation], before: Node | None) -> bool:
    """Whether a znode shows the operations' effect; a deleted znode may have been recreated since."""
    if any(isinstance(each, Delete) and each.path == path for each in operations):
        return node is None or (before is not None and node.stat.czxid != before.stat.czxid)
    written = [each.data for each in operations if isinstance(each, Create | SetData) and each.path == path]
    return node is not None and [node.data] == written[-1:]


READ_AGAIN_S = 10.0
"""In case a watch was lost."""


class WatchedNode:
    """One cached znode, read again when its watch fires. For one thread; only the watch callback runs in another."""

    def __init__(self, runtime: Runtime, path: str) -> None:
        self._runtime = runtime
        self.path = path
        self._store: Store | None = None
        self._is_dirty = True
        self._read_at = float("-inf")
        self.node: Node | None = None

    def read(self, store: Store) -> Node | None:
        """The znode, None when it does not exist; a round trip only when it may have changed.

        :raises ConnectionLost: when there was no answer; `node` keeps the last value read.
        :raises SessionLost: when the session is over.
        """
        now = self._runtime.monotonic()
        if self._is_dirty or store is not self._store or now - self._read_at >= READ_AGAIN_S:
            self._is_dirty, self._store = False, None  # after an error it has no store, and the next call reads
            self.node = store.get(self.path, watch=self.forget)
            self._store, self._read_at = store, now
        return self.node

    def forget(self, _path: str = "") -> None:
        """Invalidate the cache, after a write or when the watch fires: the next `read` sends a request."""
        self._is_dirty = True


def ensure(store: Store, paths: Iterable[str], also: Sequence[str] = ()) -> list[Node | None]:
    """Create the persistent znodes that do not exist, in the order given (parents first).

    A znode created concurrently counts as created. A lost reply raises `OutcomeUnknown`: call again.

    :param also: other znodes to read with the same request.
    :returns: the `also` znodes.
    """
    required = list(paths)
    nodes = store.get_many([*required, *also])
    for path, node in zip(required, nodes, strict=False):
        if node is not None:
            continue
        try:
            store.commit([Create(path)])
        except Refused as refused:
            if refused.reason != "node-exists":
                raise
    return nodes[len(required) :]


def batches(
    units: Sequence[Sequence[Operation]], room: int = MAX_OPERATIONS, room_bytes: int = MAX_COMMIT_BYTES
) -> Iterator[list[Operation]]:
    """Join `units` in order into as few multis as the limits allow; a unit is never split.

    :param units: operations that must be in one multi.
    :param room: operations in each multi beside the caller's own; `room_bytes` likewise.
    """
    batch: list[Operation] = []
    size = 0
    for unit in units:
        unit_size = sum(operation_bytes(operation) for operation in unit)
        if batch and (len(batch) + len(unit) > room or size + unit_size > room_bytes):
            yield batch
            batch, size = [], 0
        batch.extend(unit)
        size += unit_size
    if batch:
        yield batch


ROOM = MAX_OPERATIONS - 10
DEEPEST = 1000
"""Maximum levels of znodes to list, one request each; the protocol has four."""


def clear_below(store: Store, root: str, commit: Callable[[Sequence[Operation]], bool], most: int) -> bool:
    """Remove up to `most` descendants of `root`, the deepest first; `root` itself stays.

    :param commit: commits under the caller's fence; returns False when ZooKeeper refused.
    :returns: whether `root` had no descendants.
    :raises RebalanceFailed: when they have more than `DEEPEST` levels.
    """
    descendants: list[str] = []
    parents = [root]
    for _ in range(DEEPEST):
        listings = store.children_many(parents)
        pairs = zip(parents, listings, strict=True)
        names = [f"{path}/{name}" for path, listed in pairs if listed for name in listed.names]
        if not names:
            break
        parents = sorted(names)[:most]
        # The parents of a truncated level keep other children.
        descendants = parents + (descendants if len(parents) == len(names) else [])
    else:
        raise RebalanceFailed(f"{root} has more than {DEEPEST} levels of znodes below it: remove them by hand")
    if not descendants:
        return True
    units: list[list[Operation]] = [[Delete(path)] for path in descendants[:most]]
    for batch in batches(units, ROOM):
        if not commit(batch):
            break
    return False
