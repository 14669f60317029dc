"""`Store` on the modelled ZooKeeper: what `KazooStore` does, in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.callbacks import CallbackThread, Watches
from tests.simulation.connecting import Connector
from tests.simulation.links import ACLS, CLOSE, COMMIT, EXISTS, GET, LIST, READ, SYNC, LinkRequest, SimulatedLink
from tests.simulation.scheduler import SimulatedProcess, Thread
from tests.simulation.servers import SimulatedServer
from tests.simulation.sessions import SimulatedSession
from tests.simulation.znodes import INVALID_ACL, Event, SetAcl
from zk_group.coordinator.zk.errors import (
    ConnectionLost,
    OutcomeUnknown,
    Refused,
    SessionLost,
    StoreError,
    TooLarge,
    UsageError,
    WriteDenied,
    ZooKeeperUnreachable,
)
from zk_group.coordinator.zk.security.policy import AclSource
from zk_group.coordinator.zk.store import (
    Acl,
    AclStore,
    Listing,
    Node,
    Operation,
    SessionState,
    StateListener,
    Watch,
    operation_bytes,
)
from zk_group.coordinator.zk.wire import MOST_PATHS

if TYPE_CHECKING:
    from tests.simulation.zookeeper import SimulatedEnsemble

_LARGEST_COMMIT = 1_000_000
_LARGEST_PACKET = 1_048_575
_OVERHEAD = 14
_LONGEST_CLOSE_S = 10.0
_CALLED_WHEN_CLOSED = 0.05
"""It is a race in kazoo whether its watches are still called when a session is closed; mostly they are not."""


class Loss(NamedTuple):
    """What a client is to lose.

    :ivar kind: `lose-request`, `lose-reply` or `late-commit`.
    :ivar is_it: of which request; of several it is the next.
    :ivar then: called when it is lost.
    """

    kind: str
    is_it: Callable[[LinkRequest], bool]
    then: Callable[[], object] | None = None


def is_commit(request: LinkRequest) -> bool:
    """Whether it writes."""
    return request.kind == COMMIT


def is_sync(request: LinkRequest) -> bool:
    """Whether it is a `sync`."""
    return request.kind == SYNC


def _is_any(request: LinkRequest) -> bool:
    return True


class SimStore(AclStore):
    """One session of one process. Made by `Ensemble.open`.

    :ivar session: as the servers have it; None before the first server has answered.
    :ivar hosts: the servers in its connect string.
    :ivar identities: of its credentials, as ACLs have them.
    :ivar policy: gives each znode that it creates the ACL of the access policy; None for open ones.
    :ivar last_zxid: the newest state that it has seen.
    :ivar lose_watches: how likely the event of a watch is lost.
    :ivar late_watches_s: events of watches, and all behind them, come up to this much later.
    """

    def __init__(
        self,
        ensemble: SimulatedEnsemble,
        process: SimulatedProcess,
        timeout_s: float,
        identities: Sequence[str] = (),
    ) -> None:
        self._ensemble = ensemble
        self._scheduler = ensemble.scheduler
        self.process = process
        self.wanted_timeout_s = timeout_s
        self.session: SimulatedSession | None = None
        self.hosts: Sequence[SimulatedServer] = ensemble.servers
        self.identities = identities
        self.policy: AclSource | None = None
        self.last_zxid = 0
        self.lose_watches = 0.0
        self.late_watches_s = 0.0
        self.slow_s = 0.0
        self.slow_until = 0.0
        self.slow_is_told = True
        self._losing: list[Loss] = []
        self._behind_late: list[Callable[[], None]] = []
        self._slowing: list[tuple[float, float]] = []
        self._slow_link: SimulatedLink | None = None
        self._connector = Connector(ensemble, self)
        self._link: SimulatedLink | None = None
        self._is_over = False
        self._is_closed = False
        self._waits_to_open: Thread | None = None
        self._waits_to_close: Thread | None = None
        self._sent: deque[LinkRequest] = deque()
        self._queue: deque[LinkRequest] = deque()
        self._has_limit = False
        self._listeners: list[StateListener] = []
        self._callbacks = CallbackThread(ensemble.scheduler, process)
        self._watches = Watches(ensemble.scheduler, self._callbacks)
        self._paused_at: float | None = None

    def open(self, connect_timeout_s: float) -> None:
        """Connect for the first time; see `Ensemble.open`."""
        scheduler = self._scheduler
        scheduler.seam()
        self.process.observers.append(self._on_process)
        self._waits_to_open = scheduler.current
        self._connector.begin()
        scheduler.park("a ZooKeeper server", self.process.virtual_s(connect_timeout_s))
        self._waits_to_open = None
        if self.session is None:
            self.close()
            raise ZooKeeperUnreachable(f"no ZooKeeper server answered within {connect_timeout_s:g} s")

    # ---- the session

    @property
    def session_id(self) -> int:
        return self.session.id if self.session is not None else 0

    @property
    def negotiated_timeout_s(self) -> float:
        return self.session.timeout_s if self.session is not None else self.wanted_timeout_s

    @property
    def lost(self) -> bool:
        return self._is_over

    @property
    def server(self) -> SimulatedServer | None:
        """The server that it is connected to."""
        return self._link.server if self._link is not None else None

    def add_listener(self, listener: StateListener) -> None:
        self._listeners.append(listener)

    def close(self) -> None:
        scheduler = self._scheduler
        scheduler.seam()
        if self._is_closed:
            return
        self._is_closed = self._is_over = True
        self._connector.stop()
        if self._link is not None:
            self._waits_to_close = scheduler.current
            self._send(LinkRequest(CLOSE, ()))
            longest_s = self.process.virtual_s(max(_LONGEST_CLOSE_S, self.negotiated_timeout_s))
            scheduler.park("the end of its session", longest_s)
            self._waits_to_close = None
            if self._link is not None:
                self._link.break_off()
        self._fail_all(is_over=True)
        self._tell(SessionState.LOST)
        if scheduler.random.random() < _CALLED_WHEN_CLOSED:
            self._watches.fire_all()
        self._forget_process()
        self._callbacks.close()

    # ---- reading

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        return self.get_many([path], watch)[0]

    def children(self, path: str, watch: Watch | None = None) -> Listing | None:
        return self.children_many([path], watch)[0]

    def get_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Node | None]:
        self._scheduler.seam()
        if watch is None and len(paths) > 1:
            chunks = [paths[first : first + MOST_PATHS] for first in range(0, len(paths), MOST_PATHS)]
            return self._answers([self._sent_now(LinkRequest(READ, chunk)) for chunk in chunks])
        return self._watched(GET, paths, watch)

    def children_many(self, paths: Sequence[str], watch: Watch | None = None) -> list[Listing | None]:
        self._scheduler.seam()
        return self._watched(LIST, paths, watch)

    def _watched(self, kind: int, paths: Sequence[str], watch: Watch | None) -> list[Any]:
        """What was read; what was not there leaves a watch for its creation, and is read again if it came meanwhile."""
        if not paths:
            return []
        found = self._answers(self._pipelined(kind, paths, watch))
        missing = [index for index, one in enumerate(found) if one is None] if watch is not None else []
        if missing:
            asked = self._answers(self._pipelined(EXISTS, [paths[index] for index in missing], watch))
            for index, one in zip(missing, asked, strict=True):
                if one is not None:
                    found[index] = self._watched(kind, [paths[index]], watch)[0]
        return found

    def _pipelined(self, kind: int, paths: Sequence[str], watch: Watch | None) -> list[LinkRequest]:
        """Send a request for each path, one behind the other; mostly they arrive together."""
        if len(paths) == 1 or self._scheduler.random.random() >= self._ensemble.splitting:
            return [self._sent_now(LinkRequest(kind, paths, watch))]
        random = self._scheduler.random
        cuts = sorted({random.randrange(1, len(paths)) for _ in range(random.randint(1, 3))})
        chunks = [paths[first:last] for first, last in zip([0, *cuts], [*cuts, len(paths)], strict=True)]
        return [self._sent_now(LinkRequest(kind, chunk, watch), random.random() * 0.005) for chunk in chunks]

    def sync(self) -> None:
        self._scheduler.seam()
        self._answer(self._sent_now(LinkRequest(SYNC, ())))

    # ---- writing

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        if self.policy is None:
            return self._commit(operations)
        try:
            operations = self.policy.applied(operations)
        except ConnectionLost as error:
            raise OutcomeUnknown("the access policy could not be read") from error
        try:
            return self._commit(operations)
        except WriteDenied as denied:
            raise WriteDenied(denied.index, denied.path, self.policy.missing(denied.path)) from denied

    def _commit(self, operations: Sequence[Operation]) -> list[str]:
        self._scheduler.seam()
        size = sum([operation_bytes(operation) for operation in operations])
        if size > _LARGEST_COMMIT:
            raise TooLarge(f"a commit of {len(operations)} operations has {size} bytes, over {_LARGEST_COMMIT}")
        result: list[str] = self._answer(self._sent_now(LinkRequest(COMMIT, tuple(operations))))
        return result

    # ---- ACLs

    def get_acls(self, paths: Sequence[str]) -> list[Acl | None]:
        self._scheduler.seam()
        return self._answers([self._sent_now(LinkRequest(ACLS, paths))]) if paths else []

    def set_acl(self, path: str, acl: Acl) -> bool:
        (is_set,) = self.set_acls([(path, acl)])
        if is_set is False:
            raise WriteDenied(0, path)
        return bool(is_set)

    def set_acls(self, acls: Sequence[tuple[str, Acl]]) -> list[bool | None]:
        self._scheduler.seam()
        sent = [self._sent_now(LinkRequest(COMMIT, (SetAcl(path, acl),))) for path, acl in acls]
        return [self._is_set(request) for request in sent]

    def _is_set(self, request: LinkRequest) -> bool | None:
        try:
            self._answer(request)
        except WriteDenied:
            return False
        except Refused as refused:
            if refused.reason == INVALID_ACL:
                raise UsageError(f"the ACL of {refused.path} is invalid") from refused
            return None
        return True

    # ---- requests

    def _sent_now(self, request: LinkRequest, later_s: float = 0.0) -> LinkRequest:
        """Send it, or queue it while there is no connection.

        :raises SessionLost: when the session is over.
        """
        if self._is_over:
            raise _over()
        self._send(request, later_s)
        return request

    def _send(self, request: LinkRequest, later_s: float = 0.0) -> None:
        request.sent_at = self._scheduler.now
        if not self._has_limit:
            self._has_limit = True
            self._scheduler.after(self._limit_s(), self._on_limit)
        link = self._link
        if link is None:
            self._queue.append(request)
            return
        self._sent.append(request)
        if self._losing and self._loses("lose-request", request):
            link.lose(request)
        elif self._losing and self._loses("late-commit", request):
            link.send(request)
            self._scheduler.after(0.0, link.break_off)
            while self._behind_late:
                self._scheduler.after(0.0, self._behind_late.pop())
        elif request.kind <= READ and sum(map(len, request.what)) + _OVERHEAD * len(request.what) > _LARGEST_PACKET:
            link.close()
        else:
            link.send(request, later_s)

    def _answers(self, requests: list[LinkRequest]) -> list[Any]:
        if len(requests) == 1:
            found: list[Any] = self._answer(requests[0])
            return found
        return [one for request in requests for one in self._answer(request)]

    def _answer(self, request: LinkRequest) -> Any:
        if not request.is_over:
            request.waiter = self._scheduler.current
            self._scheduler.park("ZooKeeper's answer")
        if request.error is not None:
            raise request.error
        return request.result

    def on_reply(self, request: LinkRequest) -> None:
        """An answer has come."""
        assert self._sent.popleft() is request, "answers come in the order of the requests"
        self.last_zxid = max(self.last_zxid, request.zxid)
        if request.watch is not None:
            self._watches.add(request, request.watch)
        if request.kind == CLOSE:
            self._wake_closer()
        if not request.is_over:
            self._finish(request)

    def _finish(self, request: LinkRequest, error: Exception | None = None) -> None:
        request.is_over = True
        if error is not None:
            request.error = error
        if request.waiter is not None:
            self._scheduler.unpark(request.waiter)

    def _fail_all(self, is_over: bool) -> None:
        """No answer will come to what was sent or is queued."""
        for requests in (self._sent, self._queue):
            while requests:
                request = requests.popleft()
                if not request.is_over:
                    self._finish(request, _over() if is_over else self._unanswered(request))

    def _unanswered(self, request: LinkRequest) -> StoreError:
        if request.kind == COMMIT:
            return OutcomeUnknown("the reply to a commit was lost")
        return _over() if self._is_over else ConnectionLost("ZooKeeper did not answer: the connection was lost")

    def _limit_s(self) -> float:
        return self.process.virtual_s(max(2 * self.negotiated_timeout_s, 1.0))

    def _on_limit(self) -> None:
        """Give up what has waited for too long. Its answer may still come, and is for nobody then."""
        if self.process.is_paused or self.process.is_dead:
            self.process.receive(self._on_limit)
            return
        self._has_limit = False
        limit_s, now = self._limit_s(), self._scheduler.now
        waiting = [request for requests in (self._sent, self._queue) for request in requests if not request.is_over]
        for request in waiting:
            if request.sent_at + limit_s <= now + 1e-6:
                self._finish(request, self._unanswered(request))
            elif not self._has_limit:
                self._has_limit = True
                self._scheduler.after(request.sent_at + limit_s - now, self._on_limit)

    # ---- what comes from the servers

    def on_connected(self, link: SimulatedLink) -> None:
        """There is a connection."""
        self.session = link.session
        self._link = link
        if self._waits_to_open is not None:
            self._scheduler.unpark(self._waits_to_open)
        self._tell(SessionState.CONNECTED)
        queue, self._queue = self._queue, deque()
        for request in queue:
            if not request.is_over:
                sent_at = request.sent_at
                self._send(request)
                request.sent_at = sent_at

    def on_end(self, link: SimulatedLink) -> None:
        """The connection is over."""
        if link is not self._link:
            return
        self._link = None
        self._fail_all(is_over=False)
        self._wake_closer()
        if self._is_closed:
            return
        self._tell(SessionState.SUSPENDED)
        self._watches.fire_all()
        self._connector.begin()

    def on_expired(self) -> None:
        """A server has said that the session is over."""
        self._is_over = True
        self._connector.stop()
        self._fail_all(is_over=True)
        self._tell(SessionState.LOST)
        self._forget_process()
        # Behind the scenes kazoo opens another session, and tells of it; the store says again that its own is over.
        self._scheduler.after(self._scheduler.random.random(), self._tell_again)

    def _tell_again(self) -> None:
        if self.process.is_paused or self.process.is_dead:
            self.process.receive(self._tell_again)
        elif not self._is_closed:
            self._tell(SessionState.LOST)

    def on_events(self, events: list[Event]) -> None:
        """Watches have fired."""
        if not self._is_closed:
            self._watches.fire(events)

    def _wake_closer(self) -> None:
        if self._waits_to_close is not None:
            self._scheduler.unpark(self._waits_to_close)

    def _tell(self, state: SessionState) -> None:
        for listener in self._listeners:
            self._callbacks.call(listener, state)

    def _forget_process(self) -> None:
        if self._on_process in self.process.observers:
            self.process.observers.remove(self._on_process)

    def _on_process(self) -> None:
        """The process was paused, resumed or killed."""
        if self.session is not None:
            self.session.review()
        now = self._scheduler.now
        if self.process.is_paused:
            self._paused_at = now
        elif self._paused_at is not None:
            slept_s, self._paused_at = now - self._paused_at, None
            link = self._link
            is_late = slept_s > self.negotiated_timeout_s * 2 / 3
            # kazoo gives up when it looks at the time before it looks at the socket.
            if link is not None and is_late and self._scheduler.random.random() < 0.5:
                link.break_off()

    # ---- faults

    def expire(self) -> bool:
        """Its servers end the session now."""
        return self._ensemble.expire(self.session_id)

    def drop_connection(self) -> bool:
        """Break the connection; it connects again by itself."""
        if self._link is None or self.process.is_dead:
            return False
        self._ensemble.on_fault("drop-connection")
        self._link.break_off()
        return True

    def lose_next_request(self, only_commit: bool = False) -> bool:
        """The next request (or commit) never reaches the server, and the connection breaks."""
        return self.lose(Loss("lose-request", is_commit if only_commit else _is_any))

    def lose_next_reply(self, only_commit: bool = False) -> bool:
        """The next request (or commit) is done, its answer never comes, and the connection breaks."""
        return self.lose(Loss("lose-reply", is_commit if only_commit else _is_any))

    def lose(self, loss: Loss) -> bool:
        """Lose the next request of a kind, or the answer to it; the connection breaks."""
        self._losing.append(loss)
        return not self._is_over

    def delay_next_commit(self, then: Callable[[], None] | None = None) -> bool:
        """The connection breaks right behind the next commit: whether that is done, and when, nobody knows.

        :param then: called while that commit is on its way.
        """
        if then is not None:
            self._behind_late.append(then)
        return self.lose(Loss("late-commit", is_commit))

    def slow_next_commit(self, reply_s: float, cut_s: float) -> bool:
        """The next commit is done, its answer takes `reply_s` seconds, and the connection breaks after `cut_s`."""
        self._slowing.append((reply_s, cut_s))
        return not self._is_over

    def lose_nothing(self) -> None:
        """Forget what was to be lost or slow; a connection that is slow because of that breaks now."""
        self._losing.clear()
        self._behind_late.clear()
        self._slowing.clear()
        if self._slow_link is not None:
            self._slow_link.break_off()
            self._slow_link = None

    def slows_reply(self, request: LinkRequest) -> tuple[float, float] | None:
        """Whether this answer is to be slow, and how slow."""
        if not self._slowing or request.kind != COMMIT or request.error is not None:
            return None
        self._slow_link = request.link
        self._ensemble.on_fault("slow-then-cut")
        return self._slowing.pop(0)

    def loses_reply(self, request: LinkRequest) -> bool:
        """Whether this answer is to be lost."""
        return bool(self._losing) and self._loses("lose-reply", request)

    def _loses(self, kind: str, request: LinkRequest) -> bool:
        for loss in self._losing:
            if loss.kind == kind and loss.is_it(request):
                self._losing.remove(loss)
                self._ensemble.on_fault(kind)
                if loss.then is not None:
                    loss.then()
                return True
        return False

    def slow(self, extra_s: float, until: float) -> bool:
        """Until that moment each packet comes up to `extra_s` later; once pings are late, the connection breaks."""
        self.slow_s, self.slow_until, self.slow_is_told = extra_s, until, False
        if self._link is not None and 2 * extra_s > self.negotiated_timeout_s / 3:
            self._link.fall_silent()
        return self._link is not None


def _over() -> SessionLost:
    return SessionLost("the session with ZooKeeper is over")
