"""The store seam: one ZooKeeper session, as the coordinator and the consumer see it.

Whatever implements `Store` holds ONE session for its whole life. When that session ends, so does the store: every
request, also one that was waiting, raises `SessionLost`, and whoever wants to go on opens another store. (kazoo would
send a queued request on its next session, where nothing that it was meant for exists any more.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

MAX_OPERATIONS = 400
"""Operations in one multi; more are split by whoever commits (72,000 znodes a second are written this way)."""

MAX_COMMIT_BYTES = 512_000
"""Bytes in one multi. A server closes the connection at 1,048,575; half of it leaves room for its own framing."""


class Stat(NamedTuple):
    """What ZooKeeper says of a znode besides its data. Times are the server's wall clock in milliseconds."""

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
    """A znode as it was read."""

    data: bytes
    stat: Stat


class Listing(NamedTuple):
    """A znode's children, in no order, as they were read."""

    names: list[str]
    stat: Stat


@dataclass(frozen=True, slots=True)
class Create:
    """Create a znode. With `sequential`, ZooKeeper appends ten digits to the path."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


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
    """Refuse the whole commit unless the znode has this version."""

    path: str
    version: int


Operation = Create | SetData | Delete | Check


def operation_bytes(operation: Operation) -> int:
    """Bytes that an operation takes in a multi, a little over-estimated."""
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path.encode()) + len(data) + 64


class SessionState(Enum):
    """What a listener is told."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


Watch = Callable[[str], None]
"""Called once with the path, from the store's own thread: it may set an event or put on a queue, nothing else.
It is also called when the connection is lost, because what happens from then on may be missed."""

StateListener = Callable[[SessionState], None]


class Store(Protocol):
    """One ZooKeeper session. Blocking; safe to call from several threads.

    Reads raise `ConnectionLost` when no answer came, every call raises `SessionLost` once the session is over.
    """

    @property
    def session_id(self) -> int:
        """The session's number, as `ephemeral_owner` shows it."""

    @property
    def negotiated_timeout_s(self) -> float:
        """The session timeout that the server granted, in seconds."""

    @property
    def lost(self) -> bool:
        """Whether the session is over."""

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """Read a znode; None when it does not exist (the watch then waits for its creation)."""

    def children(self, path: str, watch: Watch | None = None) -> Listing | None:
        """List a znode's children; None when it does not exist (the watch then waits for its creation)."""

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        """`get` for each path, sent one behind the other without waiting; answered in the order of the paths."""

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        """`children` for each path, pipelined likewise."""

    def sync(self) -> None:
        """Bring the server that this session talks to level with the leader, behind all that was sent before."""

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        """Do all operations, or none, as one `multi`.

        :returns: for each operation the path that it created, or "".
        :raises Refused: when ZooKeeper refused it; nothing happened.
        :raises OutcomeUnknown: when the reply was lost.
        :raises TooLarge: when it is over what a server takes; it was not sent.
        """

    def add_listener(self, listener: StateListener) -> None:
        """Tell `listener` of each change of the session's state, from the store's own thread."""

    def close(self) -> None:
        """End the session (its ephemerals go at once) and free everything. Never raises."""


class TreeEvent(NamedTuple):
    """What happened to one znode.

    :ivar kind: `created`, `changed` (its data) or `deleted`.
    :ivar zxid: of the transaction, the same for all events of one multi; 0 where the server does not tell (before 3.9).
    """

    kind: str
    path: str
    zxid: int = 0


TreeWatch = Callable[[TreeEvent], None]
"""Called for every event, in order, from the store's own thread: it may send reads and put on a queue, nothing else."""


class TreeStore(Store, Protocol):
    """A store that can also follow everything below a znode, for those who look on (ZooKeeper 3.6 or newer)."""

    def watch_tree(self, path: str, on_event: TreeWatch) -> None:
        """Tell `on_event` of each znode at or below `path` that comes, changes or goes, with none left out.

        It ends with the connection: whoever is told that it was lost must read again, and watch again.

        :raises StoreError: when the server has no such watches.
        """

    def send_get(self, path: str) -> Callable[[], Node | None]:
        """Send a read without waiting; what is returned waits for the answer, as `get` does, and raises as `get`."""


StoreFactory = Callable[[], Store]
"""Opens a new session. Raises `ZooKeeperUnreachable` when nobody answers in time."""
