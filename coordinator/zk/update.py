"""Changing znodes by compare-and-set: read, decide, commit; again after a refusal or a lost reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from .errors import NotAuthorized, OutcomeUnknown, Refused, StoreError
from .store import Create, Delete, Node, Operation, SetData, Store

T = TypeVar("T")

TRIES = 20

Failure = Refused | OutcomeUnknown
"""The error of an attempt after which there is another one."""


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
        it writes to `path` must differ from the current data: after a lost reply they show whether the commit happened.
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

    After a lost reply there is a `sync` first, so that the next reads show whether the commit happened.

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
    """Commit operations that must not be sent twice; after a lost reply, check whether the commit happened.

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
    """Whether a znode is as the operations leave it; a deleted one may have been created again since."""
    if any(isinstance(each, Delete) and each.path == path for each in operations):
        return node is None or (before is not None and node.stat.czxid != before.stat.czxid)
    written = [each.data for each in operations if isinstance(each, Create | SetData) and each.path == path]
    return node is not None and [node.data] == written[-1:]
