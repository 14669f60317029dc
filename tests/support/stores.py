"""Stores in front of a real session, for faults that no proxy can inject at the right moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from zk_group.coordinator.zk.errors import OutcomeUnknown
from zk_group.coordinator.zk.store import Listing, Node, Operation, StateListener, Store, Watch

Act = Callable[[], object]


def nothing() -> None:
    """Happens."""


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


def lost_reply() -> None:
    """Before a commit: it is not sent. After it: its reply never arrives. Its sender cannot know which."""
    raise OutcomeUnknown("no reply")


class Interrupted(FrontStore):
    """Something happens just before one of the commits, or after it and before its sender knows.

    :ivar commits: how many were sent.
    """

    def __init__(self, store: Store, before: Act = nothing, at: int = 1, after: Act = nothing) -> None:
        super().__init__(store)
        self._before = before
        self._after = after
        self._at = at
        self.commits = 0

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        self.commits += 1
        if self.commits != self._at:
            return self.behind.commit(operations)
        self._before()
        found = self.behind.commit(operations)
        self._after()
        return found


class DeafStore(FrontStore):
    """Loses the event of every watch."""

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        return self.behind.get_many(paths)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        return self.behind.children_many(paths)


class Reads(FrontStore):
    """Notes what is read, and does something once right after a read: what was read is old by the time it is used.

    :ivar paths: each znode whose data or children were read, in order.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.paths: list[str] = []
        self._path = ""
        self._left = 0
        self._happens: Callable[[], object] = lambda: None

    def after(self, path: str, happens: Callable[[], object], nth: int = 1) -> Reads:
        """Do this after the `nth` read of a znode's data or children from now on."""
        self._path, self._happens, self._left = path, happens, nth
        return self

    def _read(self, paths: Sequence[str]) -> None:
        self.paths += paths
        self._left -= self._path in paths
        if self._path in paths and self._left == 0:
            self._happens()

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        nodes = super().get_many(paths, watch)
        self._read(paths)
        return nodes

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        listings = super().children_many(paths, watch)
        self._read(paths)
        return listings
