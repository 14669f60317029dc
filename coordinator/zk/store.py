"""The store seam: one ZooKeeper session of the coordinator or the consumer.

A `Store` has ONE session for its whole life. When that session ends, every request, waiting ones included, raises
`SessionLost`; to continue, open another store. (kazoo would send a queued request on its next session, where its
ephemerals no longer exist.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol, TypeVar

from .errors import AccessDenied

K = TypeVar("K")

MAX_OPERATIONS = 400
"""Operations in one multi; callers split larger commits (measured: 72,000 znodes a second)."""

MAX_COMMIT_BYTES = 512_000
"""Bytes in one multi. A server closes the connection at 1,048,575; half of it leaves room for framing."""


class Stat(NamedTuple):
    """A znode's metadata. Times are the server's wall clock in milliseconds."""

    czxid: int
    mzxid: int
    pzxid: int
    version: int
    cversion: int
    ephemeral_owner: int
    children: int
    ctime_ms: int = 0
    mtime_ms: int = 0


class Node(NamedTuple):
    """A znode's data and stat."""

    data: bytes
    stat: Stat


DENIED: Final = b"(not readable: its ACL refuses)"
"""Data of a znode without READ: bad data to every parser. Its stat is all zeros, and no watch is set."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A znode's children, unordered.

    :ivar denied: its path, when its ACL refuses to list them; otherwise empty.
    """

    found: list[str]
    stat: Stat
    denied: str = ""

    @property
    def names(self) -> list[str]:
        """The children's names.

        :raises AccessDenied: when they are unknown, rather than none.
        """
        if self.denied:
            raise AccessDenied(self.denied)
        return self.found


class AclEntry(NamedTuple):
    """One entry of an ACL.

    :ivar permissions: bits, as ZooKeeper's: 1 read, 2 write, 4 create, 8 delete, 16 admin.
    :ivar identity: `scheme:id`.
    """

    permissions: int
    identity: str


Acl = tuple[AclEntry, ...]


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode. With `sequential`, ZooKeeper appends ten digits to the path.

    :ivar acl: its ACL; None for that of the access policy.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False
    acl: Acl | None = None


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a znode's data; `version` -1 takes any version."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a znode; `version` -1 takes any version."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Refuse the commit unless the znode has this version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


def operation_bytes(operation: Operation) -> int:
    """Bytes of an operation in a multi, slightly over-estimated."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    acl = operation.acl or () if isinstance(operation, Create) else ()
    return len(operation.path.encode()) + len(data) + 64 + sum(len(one.identity) + 12 for one in acl)


class SessionState(Enum):
    """A session's state, as listeners receive it."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


Watch = Callable[[str], None]
"""Called once with the path, from the store's own thread: it may set an event or put on a queue, nothing else.
Also called on connection loss, because later changes may be missed."""

StateListener = Callable[[SessionState], None]


class Store(Protocol):
    """One ZooKeeper session. Blocking; safe for several threads.

    Reads raise `ConnectionLost` without an answer, every call raises `SessionLost` once the session is over. A znode
    whose ACL refuses a read is bad data, as every content of a znode can be: `DENIED`, and a listing without names.
    """

    @property
    def session_id(self) -> int:
        """The session id, as in `ephemeral_owner`."""

    @property
    def negotiated_timeout_s(self) -> float:
        """The negotiated session timeout, in seconds."""

    @property
    def lost(self) -> bool:
        """Whether the session is over."""

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Read a znode; None when it does not exist (the watch then waits for its creation)."""

    def children(self, path: str, watch: Watch | None = None) -> Listing | None:
        """List a znode's children; None when it does not exist (the watch then waits for its creation)."""

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        """`get` for each path, pipelined; results in the order of the paths."""

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        """`children` for each path, pipelined likewise."""

    def sync(self) -> None:
        """Sync this session's server with the leader, after all requests sent before."""

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        """Apply all operations, or none, as one `multi`.

        :returns: for each operation the path that it created, or "".
        :raises Refused: when ZooKeeper refused it; nothing took effect. `WriteDenied` when an ACL did.
        :raises OutcomeUnknown: when the reply was lost.
        :raises TooLarge: when it is over a server's size limit; it was not sent.
        """

    def add_listener(self, listener: StateListener) -> None:
        """Call `listener` at each change of the session's state, from the store's own thread."""

    def close(self) -> None:
        """End the session (its ephemerals go at once) and free all resources. Never raises."""


def nodes_at(
    store: Store, keys: Iterable[K], path_of: Callable[[K], str], watch: Watch | None = None
) -> Iterator[tuple[K, str, Node | None]]:
    """Each key with its path and the znode, None when it does not exist; all are read at once."""
    keyed = [(key, path_of(key)) for key in keys]
    for (key, path), node in zip(keyed, store.get_many([path for _, path in keyed], watch), strict=True):
        yield key, path, node


def existing_nodes(
    store: Store, keys: Iterable[K], path_of: Callable[[K], str], watch: Watch | None = None
) -> Iterator[tuple[K, str, Node]]:
    """Each key whose znode exists, likewise."""
    return ((key, path, node) for key, path, node in nodes_at(store, keys, path_of, watch) if node is not None)


class TreeEvent(NamedTuple):
    """A change of one znode.

    :ivar kind: `created`, `changed` (its data) or `deleted`.
    :ivar zxid: of the transaction, the same for all events of one multi; 0 from servers before 3.9.
    """

    kind: str
    path: str
    zxid: int = 0


TreeWatch = Callable[[TreeEvent], None]
"""Called for every event, in order, from the store's own thread: it may send reads and put on a queue, nothing else."""


class TreeStore(Store, Protocol):
    """A store with persistent recursive watches, for observers (ZooKeeper 3.6 or newer)."""

    def watch_tree(self, path: str, on_event: TreeWatch) -> None:
        """Call `on_event` for every creation, change and deletion at or below `path`, without gaps.

        The watch ends with the connection: after a loss, read and watch again.

        :raises StoreError: when the server has no recursive watches.
        """

    def send_get(self, path: str) -> Callable[[], Node | None]:
        """Send a read without waiting for its reply (it may wait for the replies of earlier outstanding reads).

        The returned call waits for the answer, and raises as `get`.
        """


class AclStore(Store, Protocol):
    """A store that reads and sets ACLs, for operators."""

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        """Each znode's ACL, pipelined; None when it does not exist.

        Empty where this client may neither read nor administer the znode.
        """

    def set_acl(self, path: str, acl: Acl) -> bool:
        """Set a znode's ACL; False when it does not exist. Raises as `set_acls`.

        :raises WriteDenied: when this client may not administer the znode.
        """

    def set_acls(self, acls: Sequence[tuple[str, Acl]]) -> list[bool | None]:
        """Set the ACLs of znodes, pipelined. For each: True, None when it does not exist, and False when this client
        may not administer it.

        :raises OutcomeUnknown: when a reply was lost.
        :raises UsageError: when the server refuses an identity, as one of a scheme that it does not know.
        """


StoreFactory = Callable[[], Store]
"""Opens a new session. Raises `ZooKeeperUnreachable` when no server answers in time, and `NotAuthorized`."""


class Sessions:
    """Successive sessions, each opened when the last has ended. For one thread at a time."""

    def __init__(self, open_store: StoreFactory) -> None:
        self._open_store = open_store
        self._store: Store | None = None

    @property
    def living(self) -> Store | None:
        """The session, None without one. For any thread."""
        store = self._store
        return store if store is not None and not store.lost else None

    def store(self) -> Store:
        """The session; a new one when the last has ended. Raises as `StoreFactory`."""
        if self._store is None or self._store.lost:
            self.close()
            self._store = self._open_store()
        return self._store

    def close(self) -> None:
        """End the session."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
