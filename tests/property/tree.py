"""ZooKeeper's tree as a dictionary: versions, ephemerals, sequences, and multis that happen whole or not at all.

No time and no network: a store that hands requests straight to the tree, with a hook before each, where a test lets
somebody else act.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from coordinator.zk.errors import Refused, SessionLost
from coordinator.zk.store import (
    MAX_COMMIT_BYTES,
    MAX_OPERATIONS,
    Check,
    Create,
    Delete,
    Listing,
    Node,
    Operation,
    SetData,
    Stat,
    StateListener,
    Store,
    Watch,
    operation_bytes,
)


class _Znode(NamedTuple):
    data: bytes
    czxid: int
    mzxid: int
    version: int
    owner: int
    created: int
    children: int = 0


def _nothing() -> None:
    """The hook of a test that needs none."""


class MemoryTree:
    """The znodes.

    :ivar after_commit: called after each multi that happened, with its operations.
    """

    def __init__(self) -> None:
        self._znodes: dict[str, _Znode] = {"/": _Znode(b"", 0, 0, 0, 0, 0)}
        self._zxid = 0
        self._sessions = 0
        self.after_commit: Callable[[Sequence[Operation]], None] = lambda operations: None

    def open(self, before_request: Callable[[], None] = _nothing, timeout_s: float = 3.0) -> MemoryTreeStore:
        """A new session."""
        self._sessions += 1
        return MemoryTreeStore(self, self._sessions, before_request, timeout_s)

    def data(self, path: str) -> bytes | None:
        """The znode at `path`, None if it does not exist."""
        znode = self._znodes.get(path)
        return znode.data if znode else None

    def node(self, path: str) -> Node | None:
        znode = self._znodes.get(path)
        return Node(znode.data, self._stat(znode)) if znode else None

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        some = [other[len(prefix) :] for other in self._znodes if other.startswith(prefix) and other != "/"]
        return [name for name in some if "/" not in name]

    def listing(self, path: str) -> Listing | None:
        znode = self._znodes.get(path)
        return Listing(self.children(path), self._stat(znode)) if znode else None

    def put(self, path: str, data: bytes) -> None:
        """Write or create `path` as an operator's zkCli would."""
        if path in self._znodes:
            self.commit([SetData(path, data)], 0)
        else:
            self.commit([Create(path, data)], 0)

    def ensure(self, path: str) -> None:
        """Create `path` and its parents where they are missing."""
        parts = path.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            some = "/" + "/".join(parts[:end])
            if some not in self._znodes:
                self.commit([Create(some)], 0)

    def end_session(self, session: int) -> None:
        """Remove the ephemerals of `session`, in one transaction as a server does."""
        gone: list[Operation] = [Delete(path) for path, znode in self._znodes.items() if znode.owner == session]
        self.commit(gone, 0, limited=False)

    def commit(self, operations: Sequence[Operation], session: int, limited: bool = True) -> list[str]:
        """One multi."""
        if limited:
            assert len(operations) <= MAX_OPERATIONS, f"{len(operations)} operations in one multi"
            size = sum(operation_bytes(operation) for operation in operations)
            assert size <= MAX_COMMIT_BYTES, f"{size} bytes in one multi"
        before = dict(self._znodes)
        self._zxid += 1
        try:
            created = [self._apply(index, operation, session) for index, operation in enumerate(operations)]
        except Refused:
            self._znodes = before
            raise
        self.after_commit(operations)
        return created

    def _apply(self, index: int, operation: Operation, session: int) -> str:
        path = operation.path
        if isinstance(operation, Create):
            return self._create(index, operation, session)
        znode = self._znodes.get(path)
        if znode is None:
            raise Refused(index, path, "no-node")
        if not isinstance(operation, Delete | SetData | Check) or operation.version not in (-1, znode.version):
            raise Refused(index, path, "bad-version")
        if isinstance(operation, SetData):
            self._znodes[path] = znode._replace(data=operation.data, mzxid=self._zxid, version=znode.version + 1)
        elif isinstance(operation, Delete):
            if znode.children:
                raise Refused(index, path, "not-empty")
            del self._znodes[path]
            above = path.rsplit("/", 1)[0] or "/"
            self._znodes[above] = self._znodes[above]._replace(children=self._znodes[above].children - 1)
        return ""

    def _create(self, index: int, operation: Create, session: int) -> str:
        path = operation.path
        above = path.rsplit("/", 1)[0] or "/"
        parent = self._znodes.get(above)
        if parent is None or parent.owner:
            raise Refused(index, path, "no-node")
        if operation.sequential:
            path = f"{path}{parent.created:010d}"
        if path in self._znodes:
            raise Refused(index, path, "node-exists")
        self._znodes[above] = parent._replace(created=parent.created + 1, children=parent.children + 1)
        owner = session if operation.ephemeral else 0
        self._znodes[path] = _Znode(operation.data, self._zxid, self._zxid, 0, owner, 0)
        return path

    def _stat(self, znode: _Znode) -> Stat:
        return Stat(znode.czxid, znode.mzxid, 0, znode.version, znode.created, znode.owner, znode.children)


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
