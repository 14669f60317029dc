"""Changing znodes by compare-and-set: read, decide, commit; once more when it was refused, or the reply was lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import OutcomeUnknown, Refused, StoreError
from .store import Create, Delete, Node, Operation, SetData, Store

T = TypeVar("T")

TRIES = 20

Failure = Refused | OutcomeUnknown
"""Why a try is followed by another."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What a try has decided.

    :ivar operations: what to commit, as far as all is as it was read; none where nothing is to be changed.
    :ivar result: what the update returns once that is done.
    """

    operations: Sequence[Operation]
    result: T


def update(store: Store, path: str, change: Callable[[Node | None], Change[T]]) -> T:
    """Change the znode at `path`, and what goes with it, by compare-and-set.

    :param change: decides by the znode as it stands, None where there is none; its errors end the update. What it
        writes to `path` differs from what was there: after a lost reply that says whether it happened.
    :raises StoreError: when others keep changing it.
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


def retried(store: Store, attempt: Callable[[Failure | None], T], failure: Callable[[], str]) -> T:
    """What `attempt` returns, which reads, decides and commits; again where a commit was refused or not answered.

    After a lost reply the server is brought level first: what is read then says whether it happened.

    :param attempt: is given why the one before has failed, None at first; another error of its ends this.
    :param failure: says what keeps changing.
    :raises StoreError: after so many tries.
    """
    before: Failure | None = None
    for _ in range(TRIES):
        try:
            return attempt(before)
        except Refused as refused:
            before = refused
        except OutcomeUnknown as unknown:
            store.sync()
            before = unknown
    raise StoreError(failure()) from before


def commit_once(store: Store, operations: Sequence[Operation], happened: Callable[[], bool]) -> None:
    """Commit what must not be sent again; where the reply was lost, look whether it happened.

    :raises Refused: when it was refused.
    :raises OutcomeUnknown: when it did not happen, or not yet.
    """
    try:
        store.commit(operations)
    except OutcomeUnknown:
        store.sync()
        if not happened():
            raise


def _is_written(node: Node | None, path: str, operations: Sequence[Operation], before: Node | None) -> bool:
    """Whether a znode is as the operations leave it; one that was deleted may have been created again since."""
    if any(isinstance(each, Delete) and each.path == path for each in operations):
        return node is None or (before is not None and node.stat.czxid != before.stat.czxid)
    written = [each.data for each in operations if isinstance(each, Create | SetData) and each.path == path]
    return node is not None and [node.data] == written[-1:]
