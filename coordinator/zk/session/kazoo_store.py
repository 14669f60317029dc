"""The store on kazoo: one ZooKeeper session. Only this file and `kazoo_client.py` import kazoo."""

from __future__ import annotations

import logging
import os
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, TypeVar

from kazoo import exceptions as kz
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import ACL as KazooAcl
from kazoo.security import Id

from ..below import EventFile
from ..errors import (
    GRANT,
    AuthenticationFailed,
    ConnectionLost,
    Final,
    NotAuthorized,
    OutcomeUnknown,
    Refused,
    Retryable,
    SessionLost,
    StoreError,
    TooLarge,
    UsageError,
    WriteDenied,
    ZooKeeperUnreachable,
)
from ..runtime import ThreadRuntime
from ..security.access import TlsFiles, ZooKeeperAccess, access_at_open
from ..security.policy import AclSource
from ..store import (
    DENIED,
    Acl,
    AclEntry,
    AclStore,
    Create,
    Delete,
    Listing,
    Node,
    Operation,
    SessionState,
    SetData,
    Stat,
    StateListener,
    StoreFactory,
    TreeStore,
    TreeWatch,
    Watch,
    operation_bytes,
)
from ..values import checked_hosts, in_chunks
from ..wire import MOST_PATHS, MOST_UNANSWERED, NO_AUTH, NO_NODE, Failure, Multi, MultiRead, pipelined, stat_of
from .kazoo_client import (
    AUTHENTICATION,
    CONNECT_TRIES,
    CREDENTIALS_REFUSED,
    Handler,
    OneSession,
    OutageLog,
    QuietLog,
    wrapped,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

_LARGEST_REQUEST = 1_000_000
_GONE = (kz.SessionExpiredError, kz.ConnectionClosedError)
_UNANSWERED = (kz.ConnectionLoss, kz.OperationTimeoutError, kz.SessionMovedError)
_CONSEQUENCES = (kz.RolledBackError.code, kz.RuntimeInconsistency.code)
_REASONS: dict[type[Exception], str] = {
    kz.BadVersionError: "bad-version",
    kz.NoNodeError: "no-node",
    kz.NodeExistsError: "node-exists",
    kz.NotEmptyError: "not-empty",
}
_NO_STAT = Stat(0, 0, 0, 0, 0, 0, 0)
_DENIED = Node(DENIED, _NO_STAT)


def open_kazoo(
    hosts: str,
    session_timeout_ms: int,
    connect_timeout_s: float = 15.0,
    make_chroot: bool = True,
    access: ZooKeeperAccess | None = None,
    writes_dir: str = "",
) -> KazooStore:
    """Open a session.

    :param hosts: `host:port,host:port/chroot`, as zkCli takes it.
    :param make_chroot: create the chroot when it does not exist.
    :param access: credentials and TLS; None for those of the environment.
    :param writes_dir: the folder of a record of its commits; empty for that of the environment, if any.
    :raises ZooKeeperUnreachable: when no server answers within `connect_timeout_s` seconds.
    :raises AuthenticationFailed: when a server and this client refuse each other: TLS, or the credentials.
    :raises NotAuthorized: when the ACL of the chroot refuses.
    :raises UsageError: when `hosts` is malformed, the chroot does not exist and `make_chroot` is False, a file of
        `access` cannot be used, or `writes_dir` not be written.
    """
    servers = checked_hosts(hosts)
    try:
        store = KazooStore(servers, session_timeout_ms, connect_timeout_s, make_chroot, access or access_at_open())
    except kz.NoAuthError as error:
        raise NotAuthorized(f"the ACL of the chroot, or of its parent, refuses at {hosts}: {GRANT}") from error
    except AUTHENTICATION as error:
        raise AuthenticationFailed(CREDENTIALS_REFUSED) from error
    except (kz.KazooException, OSError, ValueError, SequentialThreadingHandler.timeout_exception) as error:
        raise ZooKeeperUnreachable(f"cannot talk to ZooKeeper at {hosts}: {error!r}") from error
    if folder := writes_dir or os.environ.get(WRITES_DIR, ""):
        timeouts_s = store.negotiated_timeout_s, session_timeout_ms / 1000
        try:
            store.record = WriteRecord(folder, store.session_id, *timeouts_s, ThreadRuntime().monotonic)
        except OSError as error:
            store.close()
            raise UsageError(f"{WRITES_DIR}: {folder}: {error.strerror}") from error
    return store


def kazoo_factory(
    hosts: str,
    session_timeout_ms: int,
    connect_timeout_s: float = 15.0,
    client: str = "",
    access: ZooKeeperAccess | None = None,
) -> StoreFactory:
    """A factory that opens a session each time it is called.

    :param client: the sessions' owner, as `node a`: their outages are logged. Empty for none.
    :param access: credentials and TLS; missing ones are taken from the environment, at each opening.
    """

    def opened() -> KazooStore:
        return open_kazoo(hosts, session_timeout_ms, connect_timeout_s, access=access_at_open(access))

    return OutageLog(client, hosts, opened, ThreadRuntime()).open if client else opened


# Large: one method for each request to ZooKeeper.
class KazooStore(TreeStore, AclStore):
    """One session of kazoo. Opened by `open_kazoo`.

    :ivar record: of its commits, if one is kept.
    """

    def __init__(
        self, hosts: str, session_timeout_ms: int, connect_timeout_s: float, make_chroot: bool, access: ZooKeeperAccess
    ) -> None:
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1)
        self._client = OneSession(
            access.credentials(),
            access.zk_tls,
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            connection_retry=retry,
            command_retry=KazooRetry(max_tries=0, ignore_expire=False),
            logger=QuietLog(logging.getLogger("zk_group.coordinator.zk.kazoo")),
            handler=Handler(max(connect_timeout_s / CONNECT_TRIES, 1.0), TlsFiles(access)),
        )
        self._acls = AclSource(self)
        self._sent: deque[Any] = deque()
        self._listeners: list[StateListener] = []
        self.record: WriteRecord | None = None
        self._client.add_listener(self._on_state)
        try:
            self._client.connect(hosts, connect_timeout_s)
            granted_ms = self._client.negotiated_ms
            if granted_ms < session_timeout_ms:
                log.warning("session timeout cut: requested_ms=%d granted_ms=%d", session_timeout_ms, granted_ms)
            probe = KazooRetry(max_tries=-1, delay=0.05, max_delay=1, deadline=connect_timeout_s, ignore_expire=False)
            probe(self._find_chroot, make_chroot)
        except BaseException:
            self.close()  # kazoo would keep connecting
            raise

    def _find_chroot(self, make_chroot: bool) -> None:
        chroot, self._client.chroot = self._client.chroot.rstrip("/"), ""  # `Multi` concatenates paths
        try:
            # Without a chroot too: the first answer shows that the credentials are accepted.
            if self._wait(self._client.exists_async(chroot or "/")) is not None:
                return
            if not make_chroot:
                raise UsageError(f"there is no {chroot} in this ZooKeeper: check the chroot in --zk")
            self._client.ensure_path(chroot)
        finally:
            self._client.chroot = chroot

    # ---- the session

    @property
    def session_id(self) -> int:
        return int(self._client._first_session or 0)

    @property
    def negotiated_timeout_s(self) -> float:
        return float(self._client.negotiated_ms) / 1000

    @property
    def lost(self) -> bool:
        return bool(self._client.over)

    @property
    def last_zxid(self) -> int:
        """The newest zxid in ZooKeeper's replies to this session."""
        return int(self._client.last_zxid)

    def add_listener(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    def _on_state(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self._client.tree_watches = []
        reported = SessionState.LOST if self._client.over else SessionState[state]
        for listener in tuple(self._listeners):
            listener(reported)

    def close(self) -> None:
        if self.record is not None and not self._client.over:
            self.record.add("closing")
        self._client.over = True
        try:
            # `stop` from a callback of kazoo would wait for itself.
            self._client.stop()
            self._client.close()
        except Exception as error:  # noqa: BLE001  close never fails: the server expires the session
            log.debug("session close failed: reason=%s", error)

    # ---- reading

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return self.get_many([path], watch)[0]

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        if watch is None and len(paths) > 1:
            return self._multi_read(paths)
        answers = pipelined(lambda path: self._client.get_async(path, watch=wrapped(watch, path)), paths)
        nodes = [self._node(answer) for answer in answers]
        for index in self._appeared(paths, nodes, watch):
            nodes[index] = self.get(paths[index], watch)
        return nodes

    def _multi_read(self, paths: Sequence[str]) -> list[Node | None]:
        absolute = [f"{self._client.chroot}{path}" for path in paths]
        requests = [*map(MultiRead, in_chunks(absolute, MOST_PATHS))]
        answers = pipelined(self._ask, requests, MOST_UNANSWERED // MOST_PATHS)
        read = [one for answer in answers for one in self._read(answer)]
        return [_found(path, one) for path, one in zip(paths, read, strict=True)]

    def _ask(self, request: Multi | MultiRead | RecordedMulti) -> Any:
        answer = self._client.handler.async_result()
        self._client._call(request, answer)
        return answer

    def children(self, path: str, watch: Watch | None = None) -> Listing | None:
        return self.children_many([path], watch)[0]

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        ask = self._client.get_children_async
        answers = pipelined(lambda path: ask(path, watch=wrapped(watch, path), include_data=True), paths)
        listings = [self._listing(path, answer) for path, answer in zip(paths, answers, strict=True)]
        for index in self._appeared(paths, listings, watch):
            listings[index] = self.children(paths[index], watch)
        return listings

    def watch_tree(self, path: str, on_event: TreeWatch) -> None:
        try:
            self._read(self._client.add_tree_watch(path, on_event))
        except (Retryable, Final):
            raise
        except StoreError as error:
            raise StoreError(f"the server lacks recursive watches: ZooKeeper 3.6 is required ({error})") from error

    def send_get(self, path: str) -> Callable[[], Node | None]:
        if len(self._sent) == MOST_UNANSWERED:
            self._sent.popleft().wait(max(2 * self.negotiated_timeout_s, 1.0))
        answer = self._client.get_async(path)
        self._sent.append(answer)
        return lambda: self._node(answer)

    def sync(self) -> None:
        # The path is ignored: a sync covers the whole server. The root exists in every chroot.
        self._read(self._client.sync_async("/"))

    def _node(self, answer: Any) -> Node | None:
        return self._made(answer, lambda data, stat: Node(data or b"", stat_of(stat)), _DENIED)

    def _listing(self, path: str, answer: Any) -> Listing | None:
        denied = Listing([], _NO_STAT, denied=path)
        return self._made(answer, lambda names, stat: Listing(names, stat_of(stat)), denied)

    def _made(self, answer: Any, make: Callable[[Any, Any], T], denied: T) -> T | None:
        """A reply converted by `make`; None of a missing znode, `denied` where its ACL refuses."""
        try:
            return make(*self._read(answer))
        except kz.NoNodeError:
            return None
        except kz.NoAuthError:
            return denied

    def _appeared(self, paths: Sequence[str], found: Sequence[object], watch: Watch | None) -> list[int]:
        """Set exist watches on the paths not `found`; the indexes of those created meanwhile."""
        missing = [index for index, one in enumerate(found) if one is None and watch is not None]
        ask, where = self._client.exists_async, [paths[index] for index in missing]
        answers = pipelined(lambda path: ask(path, watch=wrapped(watch, path)), where)
        return [i for i, answer in zip(missing, answers, strict=True) if self._exists(answer)]

    def _exists(self, answer: Any) -> bool:
        try:
            return self._read(answer) is not None
        except kz.NoAuthError:
            return True

    def _wait(self, answer: Any) -> Any:
        # Twice the session timeout: by then the reply came or the connection was given up.
        return answer.get(timeout=max(2 * self.negotiated_timeout_s, 1.0))

    def _read(self, answer: Any) -> Any:
        try:
            return self._wait(answer)
        except (kz.NoNodeError, kz.NoAuthError):
            raise
        except AUTHENTICATION as error:
            raise AuthenticationFailed(CREDENTIALS_REFUSED) from error
        except _GONE as error:
            raise SessionLost("the session with ZooKeeper is over") from error
        except (*_UNANSWERED, self._client.handler.timeout_exception) as error:
            if self._client.over:
                raise SessionLost("the session with ZooKeeper is over") from error
            raise ConnectionLost("ZooKeeper did not answer: the connection was lost") from error
        except kz.ZookeeperError as error:
            raise StoreError(f"ZooKeeper refused to answer: {error!r}") from error

    # ---- writing

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        try:
            operations = self._acls.applied(operations)
        except ConnectionLost as error:  # of a read: nothing was sent
            raise OutcomeUnknown("the access policy could not be read") from error
        size = sum(operation_bytes(operation) for operation in operations)
        if size > _LARGEST_REQUEST:
            raise TooLarge(f"a commit of {len(operations)} operations has {size} bytes, over {_LARGEST_REQUEST}")
        try:
            multi = Multi(operations, self._client.chroot)
            request = multi if self.record is None else self.record.of(multi, lambda: self.last_zxid)
            results = self._wait(self._ask(request))
        except AUTHENTICATION as error:
            raise AuthenticationFailed(CREDENTIALS_REFUSED) from error
        except _GONE as error:
            # A request in flight when the session expired may have taken effect before.
            raise SessionLost("the session with ZooKeeper is over") from error
        except (*_UNANSWERED, self._client.handler.timeout_exception) as error:
            raise OutcomeUnknown("the reply to a commit was lost") from error
        except kz.ZookeeperError as error:
            raise Refused(0, operations[0].path, type(error).__name__) from error
        try:
            return _results(operations, results)
        except WriteDenied as denied:
            raise WriteDenied(denied.index, denied.path, self._acls.missing(denied.path)) from denied

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        denied: Acl = ()
        answers = pipelined(self._client.get_acls_async, paths)
        return [self._made(answer, lambda entries, _: _acl(entries), denied) for answer in answers]

    def set_acl(self, path: str, acl: Acl) -> bool:
        (is_set,) = self.set_acls([(path, acl)])
        if is_set is False:
            raise WriteDenied(0, path)
        return bool(is_set)

    def set_acls(self, acls: Sequence[tuple[str, Acl]]) -> list[bool | None]:
        answers = pipelined(lambda one: self._client.set_acls_async(one[0], _entries(one[1])), acls)
        return [self._is_set(path, acl, answer) for (path, acl), answer in zip(acls, answers, strict=True)]

    def _is_set(self, path: str, acl: Acl, answer: Any) -> bool | None:
        try:
            self._read(answer)
        except kz.NoNodeError:
            return None
        except kz.NoAuthError:
            return False
        except ConnectionLost as error:
            raise OutcomeUnknown("the reply to a change of an ACL was lost") from error
        except StoreError as error:
            if isinstance(error.__cause__, kz.InvalidACLError):
                schemes = ", ".join(sorted({one.identity.partition(":")[0] for one in acl}))
                raise UsageError(
                    f"the ACL of {path} is refused: the server lacks one of the schemes {schemes}"
                ) from error
            raise
        return True


def _acl(entries: Sequence[KazooAcl]) -> Acl:
    return tuple(AclEntry(entry.perms, f"{entry.id.scheme}:{entry.id.id}") for entry in entries)


def _entries(acl: Acl) -> list[KazooAcl]:
    return [KazooAcl(one.permissions, Id(*one.identity.split(":", 1))) for one in acl]


def _found(path: str, read: Node | Failure) -> Node | None:
    if not isinstance(read, Failure):
        return read
    if read.code == NO_AUTH:
        return _DENIED
    if read.code != NO_NODE:
        raise StoreError(f"ZooKeeper refused to read {path}: {_reason(read.code)}")
    return None


def _results(operations: Sequence[Operation], results: Sequence[str | Failure]) -> list[str]:
    """Created paths; the failed operation has another code than a rollback's."""
    for index, result in enumerate(results):
        if isinstance(result, Failure) and result.code not in _CONSEQUENCES:
            if result.code == NO_AUTH:
                raise WriteDenied(index, operations[index].path)
            raise Refused(index, operations[index].path, _reason(result.code))
    done = [result for result in results if isinstance(result, str)]
    if len(done) < len(operations):
        raise Refused(0, operations[0].path, "rolled back")
    return done


def _reason(code: int) -> str:
    """ZooKeeper's name of an error; newer servers have codes that kazoo does not know."""
    error = kz.EXCEPTIONS.get(code)
    return _REASONS.get(error, error.__name__) if error is not None else f"error {code}"


WRITES_DIR = "ZK_GROUP_WRITES_DIR"
"""The environment variable with the folder of all records; without it there are none."""

_ZXID = struct.Struct("!4xq")


class WriteRecord:
    """A session's commits in `[folder]/[session].jsonl`, for a drill on servers whose transaction logs it cannot read.

    :param timeout_s: the session's negotiated timeout.  :param asked_s: the requested one.
    :param clock: the machine's monotonic clock.
    :raises OSError: when the file cannot be written.
    """

    def __init__(self, folder: str, session: int, timeout_s: float, asked_s: float, clock: Callable[[], float]) -> None:
        self._file = EventFile(folder, f"{session:x}")
        self._numbers = count(1)
        self._clock = clock
        self.add("session", timeout=timeout_s, asked=asked_s)

    def add(self, event: str, **fields: Any) -> None:
        """Append an event."""
        self._file.add({"at": self._clock(), "event": event, **fields})

    def of(self, multi: Multi, heard: Callable[[], int]) -> RecordedMulti:
        """The same request, which records itself."""
        return RecordedMulti(multi, self, next(self._numbers), heard)


@dataclass(frozen=True, slots=True)
class RecordedMulti:
    """A commit that is recorded just before it is sent, and as soon as its reply arrives, by the connection's thread.

    :ivar heard: the zxid of the session's last reply.
    """

    multi: Multi
    record: WriteRecord
    number: int
    heard: Callable[[], int]
    type: ClassVar[int] = Multi.type

    def serialize(self) -> bytes:
        """The request's body."""
        chroot, operations = self.multi.chroot, self.multi.operations
        written = [_written(operation, chroot) for operation in operations]
        self.record.add("asked", number=self.number, after=self.heard(), ops=written)
        return self.multi.serialize()

    def deserialize(self, answer: bytes, offset: int) -> Sequence[str | Failure]:
        """As `Multi`'s; the answer begins with its header."""
        results = self.multi.deserialize(answer, offset)
        if any(isinstance(result, Failure) for result in results):
            self.record.add("refused", number=self.number)
        else:
            self.record.add("done", number=self.number, zxid=_ZXID.unpack_from(answer)[0], paths=results)
        return results


def _written(operation: Operation, chroot: str) -> dict[str, Any]:
    """An operation as in a history, with its full path."""
    path = chroot + operation.path
    if isinstance(operation, Create):
        made = {"op": "create", "path": path, "data": _text(operation.data), "ephemeral": operation.ephemeral}
        return {**made, "sequential": True} if operation.sequential else made
    if isinstance(operation, SetData):
        version = {"version": operation.version + 1} if operation.version >= 0 else {}
        return {"op": "set", "path": path, "data": _text(operation.data), **version}
    if isinstance(operation, Delete):
        return {"op": "delete", "path": path}
    return {"op": "check", "path": path, "version": operation.version}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
