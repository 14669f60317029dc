"""The four listeners, with a note of every turn that they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.terms import a_term
from tests.support.wait import eventually
from zk_group.coordinator.listeners.listeners import Listeners
from zk_group.coordinator.listeners.topics import RequestTurn
from zk_group.coordinator.regions.turns import Regions
from zk_group.coordinator.term.directory import Directory
from zk_group.coordinator.term.operator_requests import OperatorRequests
from zk_group.coordinator.term.request_queue import RequestQueue, TurnKey
from zk_group.coordinator.term.term import Term
from zk_group.coordinator.zk.runtime import Task, ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store


def listeners_of(
    term: Term, directory: Directory, ask: RequestTurn, asked: OperatorRequests | None = None
) -> Listeners:
    """Listeners without handlers: `ask` gets the turns that they request."""
    regions = Regions(term, RequestQueue(term.runtime), lambda group: False)
    return Listeners(term, directory, ask, asked or OperatorRequests(term), lambda group: None, regions)


class Listening:
    """
    :ivar asked: (group, reason) of every turn asked for, in order.
    """

    def __init__(self, store: Store) -> None:
        runtime = ThreadRuntime()
        self.asked: list[tuple[str, str]] = []
        term = a_term(store, runtime)
        self.problems = term.problems
        self.directory = Directory(runtime)
        self.by_operators = OperatorRequests(term)
        self.listeners = listeners_of(term, self.directory, self._note, self.by_operators)
        self._runtime = runtime
        self._thread: Task | None = None

    def _note(self, key: TurnKey, change: str) -> None:
        self.asked.append((key.name, change))

    def start(self) -> None:
        """Start up, as `coordinatorStartup` does, then handle what the watches tell."""
        self.listeners.start()
        self._thread = self._runtime.spawn(self.listeners.run, "listeners")

    def stop(self) -> None:
        self.listeners.stop()
        if self._thread is not None:
            self._thread.join(10)

    def wait_for(self, group: str, reason: str) -> None:
        """Wait until a turn of `group` has been asked for, with `reason` in what asked."""
        eventually(
            lambda: any(asked == group and reason in why for asked, why in self.asked),
            10,
            f"a turn of {group} is asked for because of {reason!r}",
        )

    def groups_asked(self) -> set[str]:
        return {group for group, _ in self.asked}


@contextmanager
def listening_on(zk: str) -> Iterator[Listening]:
    """Listeners with a session of their own, stopped after the test, also after a failure."""
    store = open_kazoo(zk, 10_000)
    listening = Listening(store)
    try:
        yield listening
    finally:
        listening.stop()
        store.close()
