"""Stores in front of a real session, for faults that no proxy can inject at the right moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from coordinator.zk.errors import OutcomeUnknown
from coordinator.zk.store import Listing, Node, Operation, StateListener, Store, Watch


class FrontStore(Store):
    """Passes everything on to a real session. To be inherited from."""

    def __init__(self, store: Store) -> None:
        self.behind = store

    @property
    def session_id(self) -> int:
        return self.behind.session_id

    @property
    def negotiated_timeout_s(self) -> float:
        return self.behind.negotiated_timeout_s

    @property
    def lost(self) -> bool:
        return self.behind.lost

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return self.get_many([path], watch)[0]

    def children(self, path: str, watch: Watch | None = None) -> Listing | None:
        return self.children_many([path], watch)[0]

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        return self.behind.get_many(paths, watch)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        return self.behind.children_many(paths, watch)

    def sync(self) -> None:
        self.behind.sync()

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        return self.behind.commit(operations)

    def add_listener(self, listener: StateListener) -> None:
        self.behind.add_listener(listener)

    def close(self) -> None:
        self.behind.close()


class Behind(FrontStore):
    """A session with a server that lags: before a `sync` it knows nothing of what `lacks` names."""

    def __init__(self, store: Store, lacks: Callable[[str], bool] = lambda path: False) -> None:
        super().__init__(store)
        self.lacks = lacks

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        found = super().get_many(paths, watch)
        return [None if self.lacks(path) else node for path, node in zip(paths, found, strict=True)]

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        found = super().children_many(paths, watch)
        return [self._older(path, listing) for path, listing in zip(paths, found, strict=True)]

    def _older(self, parent: str, listing: Listing | None) -> Listing | None:
        if listing is None or self.lacks(parent):
            return None
        return replace(listing, found=[name for name in listing.names if not self.lacks(f"{parent}/{name}")])

    def sync(self) -> None:
        super().sync()
        self.lacks = lambda path: False


class LostReplies(FrontStore):
    """Whose commits happen, and whose replies never arrive."""

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        self.behind.commit(operations)
        raise OutcomeUnknown("no reply")


class DeafStore(FrontStore):
    """Loses the event of every watch."""

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        return self.behind.get_many(paths)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        return self.behind.children_many(paths)
