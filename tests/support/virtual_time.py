"""A test in virtual time: its threads are the simulation's, and ZooKeeper is the modelled one.

Everything in the project opens sessions by `open_kazoo` and has time and threads from `ThreadRuntime`. While a test
runs in virtual time, both are the simulation's; the test too waits and starts its threads through `ThreadRuntime`.
Waiting costs nothing then, no deadline passes because a machine is busy, and a test's seed stands for one order of
all that happens in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from tests.simulation.runtime import SimRuntime
from tests.simulation.scheduler import Scheduler, SimulationFailure, Thread
from tests.simulation.zookeeper import SimulatedEnsemble
from tests.support import wait
from zk_group.coordinator.zk.errors import ZooKeeperUnreachable
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, digest_identity
from zk_group.coordinator.zk.security.policy import AclSource
from zk_group.coordinator.zk.session import kazoo_store
from zk_group.coordinator.zk.store import Store

HOSTS = "model:2181"
"""Where the modelled ZooKeeper is."""

TICK_S = 0.2
"""As the real server's of tests."""

LONGEST_SESSION_S = 60.0
LONGEST_TEST_S = 900.0
"""In virtual time; a longer test waits for an event that never happens."""

_SERVICES = ("monotonic", "wall_ms", "sleep", "spawn", "event", "lock", "condition", "queue", "random_id")


class VirtualTime:
    """The scheduler, the one process and the one server of a test.

    :ivar crashed: unexpected errors that ended threads.
    """

    def __init__(self, seed: int) -> None:
        self._scheduler = Scheduler(seed)
        self._scheduler.started_ms = time.time_ns() // 1_000_000  # the ages of files are compared with it
        self._process = self._scheduler.process("test")
        self.ensemble = SimulatedEnsemble(self._scheduler, 1, TICK_S)
        self.ensemble.longest_session_s = LONGEST_SESSION_S
        self._runtime = SimRuntime(self._scheduler, self._process, lambda *event: None)
        self.crashed = self._scheduler.crashed

    def run(self, function: Callable[[], object]) -> None:
        """Call `function` in a thread of virtual time, until it returns."""
        scheduler, errors = self._scheduler, list[Exception]()

        def body() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001  the scheduler would keep it to itself
                errors.append(error)

        thread = scheduler.spawn(self._process, body, "test")
        try:
            with self._services():
                while not thread.is_over:
                    try:
                        scheduler.run(scheduler.now + LONGEST_TEST_S)
                        reason = f"the test waits for longer than {LONGEST_TEST_S:g} s\n{scheduler.where()}"
                    except SimulationFailure as failure:
                        reason = str(failure)
                    if not thread.is_over:
                        scheduler.throw(thread, AssertionError(reason))
        finally:
            scheduler.close()
        for error in errors:
            raise error

    @contextmanager
    def _services(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in _SERVICES:
                stack.enter_context(patch.object(ThreadRuntime, name, staticmethod(getattr(self._runtime, name))))
            stack.enter_context(patch.object(kazoo_store, "KazooStore", self._open))
            stack.enter_context(patch.object(threading, "current_thread", lambda: self._scheduler.current))
            stack.enter_context(patch.object(threading, "enumerate", self._threads))
            stack.enter_context(patch.object(wait, "PATIENCE", 1.0))
            yield

    def _threads(self) -> list[Thread]:
        return [thread for thread in self._scheduler.threads if thread.is_alive()]

    def _open(
        self, hosts: str, session_timeout_ms: int, connect_timeout_s: float, _: bool, access: ZooKeeperAccess
    ) -> Store:
        if hosts != HOSTS:
            raise ZooKeeperUnreachable(f"no ZooKeeper server answered at {hosts}: {HOSTS} is modelled, and no other")
        identities = [digest_identity(digest) for digest in access.credentials().digests]
        timeout_s = session_timeout_ms / 1000
        store = self.ensemble.open(self._process, timeout_s, connect_timeout_s, identities=identities)
        store.policy = AclSource(store)
        return store
