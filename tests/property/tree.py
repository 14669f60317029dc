"""A modelled server's tree without its sessions' protocol: multis that happen whole or not at all.

No time and no network: a store that hands requests straight to the tree, with a hook before each, where a test lets
somebody else act.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.znodes import ServerTree
from zk_group.coordinator.zk.errors import SessionLost
from zk_group.coordinator.zk.store import (
    MAX_COMMIT_BYTES,
    MAX_OPERATIONS,
    Create,
    Delete,
    Listing,
    Node,
    Operation,
    SetData,
    StateListener,
    Store,
    Watch,
    operation_bytes,
)


def _nothing() -> None:
    """The hook of a test that needs none."""


class MemoryTree:
    """The znodes, as a modelled server has them.

    :ivar after_commit: called after each multi that happened, with its operations.
    """

    def __init__(self) -> None:
        self._tree = ServerTree()
        self._sessions = 0
        self.after_commit: Callable[[Sequence[Operation]], None] = lambda operations: None
        self.node, self.children = self._tree.get, self._tree.names

    def open(self, before_request: Callable[[], None] = _nothing, timeout_s: float = 3.0) -> MemoryTreeStore:
        """A new session."""
        self._sessions += 1
        return MemoryTreeStore(self, self._sessions, before_request, timeout_s)

    def data(self, path: str) -> bytes | None:
        """The znode at `path`, None if it does not exist."""
        node = self.node(path)
        return node.data if node else None

    def listing(self, path: str) -> Listing | None:
        node = self.node(path)
        return Listing(self.children(path), node.stat) if node else None

    def put(self, path: str, data: bytes) -> None:
        """Write or create `path` as an operator's zkCli would."""
        self.commit([SetData(path, data) if self.node(path) else Create(path, data)], 0)

    def ensure(self, path: str) -> None:
        """Create `path` and its parents where they are missing."""
        parts = path.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            some = "/" + "/".join(parts[:end])
            if self.node(some) is None:
                self.commit([Create(some)], 0)

    def end_session(self, session: int) -> None:
        """Remove the ephemerals of `session`, in one transaction as a server does."""
        gone = self._tree.ephemerals(session)
        self._tree.apply(self._tree.removal(gone, self._tree.zxid + 1))
        self.after_commit([Delete(path) for path in gone])

    def commit(self, operations: Sequence[Operation], session: int) -> list[str]:
        """One multi."""
        assert len(operations) <= MAX_OPERATIONS, f"{len(operations)} operations in one multi"
        size = sum(operation_bytes(operation) for operation in operations)
        assert size <= MAX_COMMIT_BYTES, f"{size} bytes in one multi"
        done = self._tree.transaction(operations, self._tree.zxid + 1, 0, session)
        self._tree.apply(done)
        self.after_commit(operations)
        return done.paths


class MemoryTreeStore(Store):
    """One session on a tree. Watches are registered and never fire: a test reads again."""

    def __init__(self, tree: MemoryTree, session: int, before_request: Callable[[], None], timeout_s: float) -> None:
        self._tree = tree
        self._session = session
        self._before_request = before_request
        self._timeout_s = timeout_s
        self._is_over = False

    @property
    def session_id(self) -> int:
        return self._session

    @property
    def negotiated_timeout_s(self) -> float:
        return self._timeout_s

    @property
    def lost(self) -> bool:
        return self._is_over

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        self._ask()
        return self._tree.node(path)

    def children(self, path: str, watch: Watch | None = None) -> Listing | None:
        self._ask()
        return self._tree.listing(path)

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        return [self.get(path) for path in paths]

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        return [self.children(path) for path in paths]

    def sync(self) -> None:
        self._ask()

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        self._ask()
        return self._tree.commit(operations, self._session)

    def add_listener(self, listener: StateListener) -> None:
        pass

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._tree.end_session(self._session)

    def _ask(self) -> None:
        if not self._is_over:
            self._before_request()
        if self._is_over:
            raise SessionLost("the session is over")
