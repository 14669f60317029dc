"""A modelled ZooKeeper for a test that gives its orders one by one, instead of letting simulated programs run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.simulation.scheduler import Scheduler, SimulatedProcess
from tests.simulation.servers import SimulatedServer
from tests.simulation.store import SimStore
from tests.simulation.zookeeper import SimulatedEnsemble
from zk_group.coordinator.zk.store import Node, SessionState, Store

T = TypeVar("T")

_LONGEST_S = 60.0
_FOR_EVER_S = 1e9


class Alone:
    """An ensemble, and processes of which each does one thing at a time, when it is told.

    :ivar told: all that went into the history: (who, event, fields).
    :ivar faults: how often each kind of fault had an effect.
    """

    def __init__(self, seed: int = 1, servers: int = 3, tick_s: float = 2.0) -> None:
        self.scheduler = Scheduler(seed)
        self.scheduler.after(_FOR_EVER_S, _nothing)  # there always is something to wait for
        self.told: list[tuple[str, str, dict[str, Any]]] = []
        self.faults: Counter[str] = Counter()
        self.ensemble = SimulatedEnsemble(
            self.scheduler,
            servers,
            tick_s,
            lambda who, event, fields: self.told.append((who, event, fields)),
            lambda kind: self.faults.update([kind]),
        )

    @property
    def now(self) -> float:
        """The virtual time, in seconds."""
        return self.scheduler.now

    def open(
        self,
        timeout_s: float = 10.0,
        process: SimulatedProcess | None = None,
        hosts: Sequence[SimulatedServer] | None = None,
        identities: Sequence[str] = (),
    ) -> SimStore:
        """A session, of a process of its own unless one is given, with those servers in its connect string."""
        process = process or self.scheduler.process("p")
        return self.call(lambda: self.ensemble.open(process, timeout_s, hosts=hosts, identities=identities), process)

    def open_at(self, number: int, timeout_s: float = 10.0) -> SimStore:
        """A session whose connection is with that server: the follower's number among the followers; -1, the leader."""
        store = self.open(timeout_s, hosts=[self.leader if number < 0 else self.followers[number]])
        store.hosts = self.ensemble.servers
        return store

    @property
    def leader(self) -> SimulatedServer:
        """Who leads, while there is one."""
        assert self.ensemble.leader is not None
        return self.ensemble.leader

    def stored(self, path: str) -> Node | None:
        """A znode as the leader has it."""
        return self.leader.tree.get(path)

    @property
    def followers(self) -> list[Any]:
        """The servers that do not lead."""
        return [server for server in self.ensemble.servers if server is not self.ensemble.leader]

    def start(self, function: Callable[[], T], process: SimulatedProcess) -> list[T | BaseException]:
        """Let a thread of a process call `function`; its result, or what it raised, is put into the list."""
        outcome: list[T | BaseException] = []

        def run() -> None:
            try:
                outcome.append(function())
            except Exception as error:  # noqa: BLE001  handed on
                outcome.append(error)

        self.scheduler.spawn(process, run, "main")
        return outcome

    def call(self, function: Callable[[], T], process: SimulatedProcess) -> T:
        """What `function` returns or raises, called in a thread of a process; time goes by until it has."""
        outcome = self.start(function, process)
        until = self.now + _LONGEST_S
        while not outcome and self.now < until:
            self.wait(0.001)
        assert outcome, self.scheduler.where()
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def took_s(self, function: Callable[[], object], process: SimulatedProcess) -> float:
        """How long a call took."""
        began = self.now
        self.call(function, process)
        return self.now - began

    def until(self, condition: Callable[[], Any], what: str, longest_s: float = _LONGEST_S) -> None:
        """Let time go by until `condition` holds."""
        until = self.now + longest_s
        while not condition():
            assert self.now < until, f"not within {longest_s:g} s: {what}"
            self.wait(0.01)

    def wait(self, seconds: float) -> None:
        """Let time go by."""
        until = self.now + seconds
        self.scheduler.run(until)
        assert not self.scheduler.crashed, self.scheduler.crashed[0]


class Heard:
    """What a store's watches and listener were told, in order."""

    def __init__(self, store: Store) -> None:
        self.all: list[str] = []
        self._watches: dict[str, Callable[[str], None]] = {}
        store.add_listener(self._on_state)

    def watch(self, name: str = "w") -> Callable[[str], None]:
        """The watch of that name: the same one each time."""
        if name not in self._watches:
            self._watches[name] = lambda path: self.all.append(f"{name} {path}")
        return self._watches[name]

    def _on_state(self, state: SessionState) -> None:
        self.all.append(state.value)


def _nothing() -> None:
    pass


@contextmanager
def alone(seed: int = 1, servers: int = 3, tick_s: float = 2.0) -> Iterator[Alone]:
    """A modelled ZooKeeper; every thread is ended at the end."""
    world = Alone(seed, servers, tick_s)
    try:
        yield world
    finally:
        world.scheduler.close()
