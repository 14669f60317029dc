"""A node's coordinator service: it stands for election, and coordinates while it is elected.

Seed 000: `coordinatorStartup` (A), `handleNewSession` (B). A session that ends, an epoch that is over, or an error
half-way through the start all lead to the same place: everything is cleared, and the node stands again.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .asked import Asked
from .assignors import Assignor
from .assignors.registry import assignors as installed_assignors
from .backlog import Bounds
from .collect import Collector, FencedCommits, ServerClock
from .collect_segments import SegmentCollector, SegmentRules
from .config import CoordinatorConfig
from .elector import Elector
from .handlers import Handlers
from .interests import Interests
from .listeners import Listeners
from .metrics import CoordinatorMetrics
from .problems import Problems
from .term import Term
from .zk.errors import CoordinatorError, EpochOver, Fenced, Retryable, StoreError
from .zk.lease import Lease
from .zk.paths import COORDINATOR, Brokers
from .zk.runtime import Event, Runtime, Task
from .zk.store import SessionState, Store, StoreFactory

log = logging.getLogger(__name__)

STAND_AGAIN_S = 0.2
JOIN_S = 5.0


class CoordinatorService:
    """Runs until `stop`.

    :param open_store: opens a new session each time that it is called.
    :param assignors: strategy -> assignor; None for those that are installed.
    :param metrics: what is counted and measured; its registry is served by whoever wants to.
    :param remove_file: removes the file of a segment that was collected.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        open_store: StoreFactory,
        runtime: Runtime,
        assignors: Mapping[str, Assignor] | None = None,
        metrics: CoordinatorMetrics | None = None,
        remove_file: Callable[[Path], None] = Path.unlink,
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

    def run(self) -> None:
        """Stand, coordinate, and stand again, until `stop`.

        :raises ZooKeeperUnreachable: when no server answers at the start; later it waits for one.
        """
        store = self._open_store()
        while True:
            try:
                self._one_session(store)
            except (StoreError, Fenced) as error:
                log.warning("resigned: node=%s reason=%s", self._config.node, error)
            except Exception:  # whatever it is, the node must resign and stand again
                log.exception("resigned after an unexpected error: node=%s", self._config.node)
            finally:
                self.term = None
                store.close()
            if self._stopping.wait(STAND_AGAIN_S):
                log.info("stopped: node=%s", self._config.node)
                return
            again = self._handle_new_session()
            if again is None:
                return
            store = again

    def stop(self) -> None:
        """Resign, and let `run` return."""
        self._stopping.set()
        self._wake.set()

    def _handle_new_session(self) -> Store | None:
        """Seed 000, `handleNewSession`: nothing of the old session is kept; None when stopping."""
        while not self._stopping.is_set():
            try:
                return self._open_store()
            except CoordinatorError as error:
                log.warning("waiting for ZooKeeper: node=%s reason=%s", self._config.node, error)
                self._stopping.wait(STAND_AGAIN_S)
        return None

    def _one_session(self, store: Store) -> None:
        elector = Elector(store, self._runtime, self._config.node, socket.gethostname(), self._wake)
        term = elector.stand(self._stopping)
        if term is None:
            return
        self.term = term
        self._runtime.record("elected", epoch=term.epoch, session=store.session_id)
        coordinator = Coordinator(
            self._config,
            store,
            self._runtime,
            term,
            self._assignors,
            self.problems,
            self._wake,
            self._metrics,
            self._remove_file,
        )
        coordinator.coordinate(self._stopping)


class Coordinator:
    """One term: from the start-up after the election until it is over.

    :param wake: set to let `coordinate` look at whether it shall end.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        store: Store,
        runtime: Runtime,
        term: Term,
        assignors: Mapping[str, Assignor],
        problems: Problems,
        wake: Event,
        metrics: CoordinatorMetrics,
        remove_file: Callable[[Path], None],
    ) -> None:
        self._runtime = runtime
        self._epoch = term.epoch
        self._metrics = metrics
        self._store = store
        self._wake = wake
        self._over: str | None = None
        self._ended = runtime.event()
        self._look_at_znode = runtime.event()
        self._sweep_s = config.sweep_interval_ms / 1000
        self._lease = Lease(store, runtime, lambda: term.check(store), "coordinator")
        asked = Asked(store, runtime, term, problems)
        self._handlers = Handlers(
            config, store, runtime, term, self._lease, assignors, problems, self._end, asked, metrics
        )
        brokers = Brokers(config.brokers_path)
        self._interests = Interests(runtime)
        self._listeners = Listeners(
            store,
            runtime,
            brokers,
            self._interests,
            self._handlers.ask,
            problems,
            asked,
            self._handlers.forget,
            self._handlers.regions,
        )
        self._clock = clock = ServerClock(store, runtime)
        commits = FencedCommits(store, term, self._lease)
        self._collector = Collector(store, runtime, commits, clock, problems, config.channel_retention_ms, metrics)
        bounds = Bounds(config.max_backlog_segments, config.max_backlog_bytes)
        rules = SegmentRules(bounds, config.max_seals_per_s, config.query_retention_ms, config.sweep_interval_ms)
        self._backlog_s = config.backlog_interval_ms / 1000
        self._segments = SegmentCollector(store, runtime, commits, clock, problems, rules, metrics, remove_file)
        store.add_listener(self._on_state)

    def coordinate(self, stopping: Event) -> None:
        """Start up, then act until the term is over or `stopping` is set.

        :raises StoreError: when the start-up fails half-way; the caller resigns by closing the session.
        :raises EpochOver: when the term is over.
        """
        tasks: list[Task] = []
        self._metrics.elected(self._epoch, self._handlers.requests, self._lease)
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
            self._metrics.resigned()
            self._handlers.stop()
            self._listeners.stop()
            for task in tasks:
                task.join(JOIN_S)
        if self._over != "resigning":
            raise EpochOver(self._over)

    def coordinator_startup(self, tasks: list[Task]) -> None:
        """Seed 000, A.

        1 to 4 read and watch topics and groups in one, and ask for a turn of every group; of 5, the session's end,
        `_on_state` hears; 6 starts the request handlers.
        """
        self._lease.renew()
        self._clock.begin()
        self._listeners.start()
        parts = {
            "lease": self._keep_lease,
            "listeners": self._listen,
            "sweep": self._sweep,
            "backlog": self._watch_backlog,
        }
        tasks.extend(self._runtime.spawn(self._guarded(function), name) for name, function in parts.items())
        tasks.extend(self._handlers.start(self._listeners.topics, self._interests.assigned))

    def _watch_own_znode(self) -> None:
        """End the term at once when somebody has removed the coordinator's znode, as `resign` does."""
        self._look_at_znode.clear()
        try:
            node = self._store.get(COORDINATOR, watch=self._on_own_znode)
        except Retryable:
            return  # the lease looks too, and after the reconnect `_on_state` has this done again
        if node is None or node.stat.ephemeral_owner != self._store.session_id:
            self._end(f"epoch {self._epoch} is over: the coordinator's znode was removed")

    def _on_own_znode(self, path: str) -> None:
        self._look_at_znode.set()
        self._wake.set()

    def _guarded(self, function: Callable[[], None]) -> Callable[[], None]:
        """`function`, ending the term with whatever it throws: a coordinator that lost a part would look alive."""

        def run() -> None:
            try:
                function()
            except Exception as error:  # whatever it is, the node must resign and stand again
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
        while self._over is None:
            try:
                self._lease.renew()
            except Retryable as error:
                log.warning("lease not renewed: left_s=%.1f reason=%s", self._lease.left_s, error)
            except CoordinatorError as error:
                self._end(str(error))
            self._ended.wait(self._lease.due_s)

    def _listen(self) -> None:
        try:
            self._listeners.run()
        except CoordinatorError as error:
            self._end(str(error))

    def _sweep(self) -> None:
        """Read everything again now and then, and collect what the dead left."""
        while not self._ended.wait(self._sweep_s):
            self._listeners.look_again()
            self._collect(self._collector.collect)

    def _watch_backlog(self) -> None:
        """Collect what queries have finished, and pause or resume fetchers."""
        while not self._ended.wait(self._backlog_s):
            self._collect(self._segments.collect)

    def _collect(self, collect: Callable[[Iterable[str]], None]) -> None:
        try:
            collect(self._listeners.groups())
        except Retryable as error:
            log.info("collection put off: reason=%s", error)
        except CoordinatorError as error:
            self._end(str(error))
