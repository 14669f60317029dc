"""A node's coordinator service: it stands for election, and coordinates while elected.

`coordinatorStartup` and `handleNewSession` (sources D9 to D16). After the end of the session or the epoch, or an error
during the start-up, all state is cleared, and the node stands for election again.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .assignors import Assignor
from .assignors.registry import assignors as installed_assignors
from .listeners.listeners import Listeners
from .rebalance.handlers import Handlers
from .retention.leftovers import Collector, OffsetCollector
from .retention.segments import SegmentCollector
from .term.config import CoordinatorConfig
from .term.directory import Directory
from .term.elector import Elector
from .term.metrics import CoordinatorMetrics
from .term.operator_requests import OperatorRequests
from .term.reading import Problems
from .term.term import Term
from .zk.below import unlink_segment
from .zk.errors import AccessDenied, CoordinatorError, EpochOver, Fenced, NotAuthorized, Retryable, StoreError
from .zk.lease import LeaseLog
from .zk.runtime import Event, Runtime, Task
from .zk.store import SessionState, Store, StoreFactory
from .zk.znodes.paths import COORDINATOR

log = logging.getLogger(__name__)

STAND_AGAIN_S = 0.2
JOIN_S = 5.0


class CoordinatorService:
    """Runs until `stop`.

    :param open_store: opens a new session at each call.
    :param assignors: strategy -> assignor; None for the installed ones.
    :param metrics: the coordinator's metrics; the caller may serve its registry.
    :param remove_file: removes the file of a collected segment.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        open_store: StoreFactory,
        runtime: Runtime,
        assignors: Mapping[str, Assignor] | None = None,
        metrics: CoordinatorMetrics | None = None,
        remove_file: Callable[[Path], None] = unlink_segment,
    ) -> None:
        self._remove_file = remove_file
        self._config = config
        self._open_store = open_store
        self._runtime = runtime
        self._assignors = installed_assignors() if assignors is None else assignors
        self._stopping = runtime.event()
        self._wake = runtime.event()
        self._metrics = metrics or CoordinatorMetrics()
        self.problems = Problems(runtime, self._metrics)
        self.term: Term | None = None
        self._session: _Session | None = None

    def unhealthy(self) -> str:
        """Why this node is neither elected nor standing by, empty when it is. For any thread."""
        term, session = self.term, self._session
        if term is not None:
            return "" if term.lease.is_held else "elected, and its lease has expired"
        return session.problem() if session is not None else "no session with ZooKeeper"

    def run(self) -> None:
        """Stand for election, coordinate, and repeat, until `stop`.

        :raises ZooKeeperUnreachable: when no server answers at the start; later it retries.
        :raises NotAuthorized: when an ACL refuses the first election, or credentials are required; later it retries.
        """
        store: Store | None = self._open_store()
        is_first = True
        while store is not None:
            try:
                self._one_session(store, is_first)
            except (StoreError, Fenced) as error:
                if is_first and isinstance(error, NotAuthorized) and self.term is None:
                    raise
                log.warning("resigned: node=%s reason=%s", self._config.node, error)
            except Exception:  # after any error the node must resign and stand again
                log.exception("resigned after an unexpected error: node=%s", self._config.node)
            finally:
                self.term = self._session = None
                store.close()
            is_first = False
            if self._stopping.wait(STAND_AGAIN_S):
                log.info("stopped: node=%s", self._config.node)
                return
            store = self._handle_new_session()

    def stop(self) -> None:
        """Resign, and make `run` return."""
        self._stopping.set()
        self._wake.set()

    def _handle_new_session(self) -> Store | None:
        """`handleNewSession` (sources D16): no state of the old session is kept; None when stopping."""
        while not self._stopping.is_set():
            try:
                return self._open_store()
            except CoordinatorError as error:  # the outage log has it, and its backoff
                log.debug("ZooKeeper unreachable, retrying: node=%s reason=%s", self._config.node, error)
                self._stopping.wait(STAND_AGAIN_S)
        return None

    def _one_session(self, store: Store, is_first: bool) -> None:
        self._session = _Session(store, self._runtime)
        elector = Elector(store, self._config.node, socket.gethostname(), self._wake)
        election = elector.stand(self._stopping, is_admitted=not is_first)
        if election is None:
            return
        term = Term(election, store, self._runtime, self._config, self.problems, self._metrics)
        self.term = term
        self._runtime.record("elected", epoch=term.epoch, session=store.session_id)
        Coordinator(term, self._assignors, self._wake, self._remove_file).coordinate(self._stopping)


class _Session:
    """Whether a session with ZooKeeper lives: its end is reported only after a server has answered again."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._away_since: float | None = None
        store.add_listener(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = self._runtime.monotonic()

    def problem(self) -> str:
        """Why it is over, empty while it lives."""
        away_since = self._away_since
        is_late = away_since is not None and (
            self._runtime.monotonic() - away_since >= self._store.negotiated_timeout_s
        )
        return "the session with ZooKeeper is over" if self._store.lost or is_late else ""


class Coordinator:
    """One term: from the start-up after the election to its end.

    :param wake: set to make `coordinate` check whether it shall end.
    """

    def __init__(
        self, term: Term, assignors: Mapping[str, Assignor], wake: Event, remove_file: Callable[[Path], None]
    ) -> None:
        self._term = term
        self._wake = wake
        self._over: str | None = None
        self._ended = term.runtime.event()
        self._look_at_znode = term.runtime.event()
        operator_requests = OperatorRequests(term)
        self._directory = Directory(term.runtime)
        handlers = self._handlers = Handlers(term, self._directory, assignors, operator_requests, self._end)
        self._listeners = Listeners(
            term, self._directory, handlers.request_turn, operator_requests, handlers.forget, handlers.regions
        )
        self._collector = Collector(term)
        self._offsets = OffsetCollector(term, operator_requests.is_paused)
        self._segments = SegmentCollector(term, remove_file)
        term.store.add_listener(self._on_state)

    def coordinate(self, stopping: Event) -> None:
        """Start up, then act until the term is over or `stopping` is set.

        :raises StoreError: when the start-up fails; the caller resigns by closing the session.
        :raises EpochOver: when the term is over.
        """
        tasks: list[Task] = []
        self._term.metrics.elected(self._term.epoch, self._handlers.requests, self._term.lease)
        try:
            self._watch_own_znode()
            self.coordinator_startup(tasks)
            while not stopping.is_set() and self._over is None:
                self._wake.wait()
                self._wake.clear()
                if self._look_at_znode.is_set():
                    self._watch_own_znode()
        finally:
            self._end("resigning")
            self._term.metrics.resigned()
            self._handlers.stop()
            self._listeners.stop()
            for task in tasks:
                task.join(JOIN_S)
        if self._over != "resigning":
            raise EpochOver(self._over)

    def coordinator_startup(self, tasks: list[Task]) -> None:
        """Start up (sources D10 to D14).

        1 to 4 read and watch topics and groups together, and request a turn of every group; 5, the session's end, is in
        `_on_state`; 6 starts the request handlers.
        """
        self._term.lease.renew()
        self._term.clock.begin()
        self._listeners.start()
        parts = {
            "lease": self._keep_lease,
            "listeners": self._listeners.run,
            "sweep": self._sweep,
            "backlog": self._watch_backlog,
        }
        tasks.extend(self._term.runtime.spawn(self._guarded(function), name) for name, function in parts.items())
        tasks.extend(self._handlers.start())

    def _watch_own_znode(self) -> None:
        """End the term at once when the coordinator's znode was removed, as by `resign`."""
        self._look_at_znode.clear()
        try:
            node = self._term.store.get(COORDINATOR, watch=self._on_own_znode)
        except Retryable:
            return  # the lease checks too, and after the reconnect `_on_state` repeats this
        if node is None or node.stat.ephemeral_owner != self._term.store.session_id:
            self._end(f"epoch {self._term.epoch} is over: the coordinator's znode was removed")

    def _on_own_znode(self, path: str) -> None:
        self._look_at_znode.set()
        self._wake.set()

    def _guarded(self, function: Callable[[], None]) -> Callable[[], None]:
        """`function`, with any exception ending the term: a coordinator that lost a part would look alive."""

        def run() -> None:
            try:
                function()
            except CoordinatorError as error:
                self._end(str(error))
            except Exception as error:  # after any error the node must resign and stand again
                log.exception("unexpected error")
                self._end(f"unexpected error: {error!r}")

        return run

    def _end(self, reason: str) -> None:
        if self._over is None:
            self._over = reason
        self._ended.set()
        self._wake.set()

    def _on_state(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._end("the session with ZooKeeper ended")
        elif state is SessionState.CONNECTED:
            self._on_own_znode(COORDINATOR)
            self._listeners.look_again()

    def _keep_lease(self) -> None:
        """Renew every 1/6 of the session timeout; a lapsed lease stops all writing until it is renewed."""
        lease_log = LeaseLog(self._term.runtime, f"coordinator {self._term.config.node}")
        while self._over is None:
            try:
                self._term.lease.renew()
            except Retryable as error:
                log.debug("lease renewal failed: left_s=%.1f reason=%s", self._term.lease.left_s, error)
            except CoordinatorError as error:
                self._end(str(error))
            lease_log.look(self._term.lease)
            self._ended.wait(self._term.lease.due_s)

    def _sweep(self) -> None:
        """Read everything again at each interval, and collect the leftovers of ended consumers."""
        while not self._ended.wait(self._term.config.sweep_interval_ms / 1000):
            self._listeners.look_again()
            self._collect(self._collector.collect)
            self._collect(self._offsets.collect)
            self._collect(lambda groups: self._term.publish_turn_times())

    def _watch_backlog(self) -> None:
        """Collect the segments that queries have finished, and pause or resume fetchers."""
        while not self._ended.wait(self._term.config.backlog_interval_ms / 1000):
            self._collect(self._segments.collect)

    def _collect(self, collect: Callable[[Iterable[str]], None]) -> None:
        try:
            collect(self._directory.groups())
        except Retryable as error:
            log.debug("collection deferred: reason=%s", error)  # an outage is one line, of the session
        except (AccessDenied, NotAuthorized) as error:
            log.info("collection refused: reason=%s", error)
        except CoordinatorError as error:
            self._end(str(error))
