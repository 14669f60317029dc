"""A client whose connection a test breaks: on the modelled ZooKeeper, or through a proxy on a real one."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient

from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Store
from drills.faults.proxy import MULTI
from tests.simulation.alone import Alone, Heard
from tests.simulation.store import SimStore
from tests.support.proxy import Proxy
from tests.support.wait import eventually

SESSION_S = 2.0


class Side(ABC):
    """A session, and what can be done to its connection.

    :ivar store: the session.
    :ivar heard: what its watches and its listener were told.
    """

    store: Store
    heard: Heard

    @abstractmethod
    def ask(self, function: Callable[[], Any]) -> Any:
        """What a call of the store returns or raises."""

    @abstractmethod
    def start(self, function: Callable[[], Any]) -> list[Any]:
        """Call the store in another thread; what that returned or raised comes into the list."""

    @abstractmethod
    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds."""

    @abstractmethod
    def another(self) -> Store:
        """A session on a connection that nothing is done to."""

    @abstractmethod
    def ask_another(self, function: Callable[[], Any]) -> Any:
        """What a call of `another` returns or raises."""

    @abstractmethod
    def drop_connection(self) -> None:
        """Break the connection; it comes back."""

    @abstractmethod
    def lose_next_commit(self) -> None:
        """The next commit does not reach the server."""

    @abstractmethod
    def lose_next_reply(self) -> None:
        """The answer to the next commit does not reach the client."""

    @abstractmethod
    def expire(self) -> None:
        """The servers end the session."""

    @abstractmethod
    def fall_silent(self) -> None:
        """The server goes on existing, and answers nothing."""

    @abstractmethod
    def go_away(self) -> None:
        """There is no server."""

    @abstractmethod
    def come_back(self) -> None:
        """After `fall_silent` or `go_away`."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""


class Modelled(Side):
    """On the modelled ZooKeeper."""

    def __init__(self, seed: int = 1) -> None:
        self._world = Alone(seed, tick_s=0.2)
        self.store: SimStore = self._world.open(SESSION_S)
        self.heard = Heard(self.store)
        self._other = self._world.open(SESSION_S)

    def ask(self, function: Callable[[], Any]) -> Any:
        return self._world.call(function, self.store.process)

    def start(self, function: Callable[[], Any]) -> list[Any]:
        outcome = self._world.start(function, self.store.process)
        self._world.wait(0.0)
        return outcome

    def until(self, condition: Callable[[], bool]) -> None:
        until = self._world.now + 10
        while not condition():
            assert self._world.now < until, self.heard.all
            self._world.wait(0.01)

    def another(self) -> Store:
        return self._other

    def ask_another(self, function: Callable[[], Any]) -> Any:
        return self._world.call(function, self._other.process)

    def drop_connection(self) -> None:
        assert self.store.drop_connection()

    def lose_next_commit(self) -> None:
        self.store.lose_next_request(only_commit=True)

    def lose_next_reply(self) -> None:
        self.store.lose_next_reply(only_commit=True)

    def expire(self) -> None:
        assert self._world.ensemble.expire(self.store.session_id)

    def fall_silent(self) -> None:
        for server in self._world.ensemble.servers:
            server.pause()

    def go_away(self) -> None:
        assert self._world.ensemble.stop()

    def come_back(self) -> None:
        self._world.ensemble.start()
        for server in self._world.ensemble.servers:
            server.resume()

    def close(self) -> None:
        self._world.scheduler.close()


class Real(Side):
    """On a real server, through a proxy."""

    def __init__(self, zk: str) -> None:
        server, _, chroot = zk.partition("/")
        self._proxy = Proxy(server).start()
        self.store = open_kazoo(f"{self._proxy.hosts}/{chroot}", int(SESSION_S * 1000))
        self.heard = Heard(self.store)
        self._other = open_kazoo(zk, int(SESSION_S * 1000))
        self._server = server

    def ask(self, function: Callable[[], Any]) -> Any:
        return function()

    def start(self, function: Callable[[], Any]) -> list[Any]:
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(function())
            except Exception as error:  # noqa: BLE001  handed on
                outcome.append(error)

        threading.Thread(target=run, daemon=True).start()
        return outcome

    def until(self, condition: Callable[[], bool]) -> None:
        eventually(condition, 10, f"what was to come; heard {self.heard.all}")

    def another(self) -> Store:
        return self._other

    def ask_another(self, function: Callable[[], Any]) -> Any:
        return function()

    def drop_connection(self) -> None:
        self._proxy.cut()

    def lose_next_commit(self) -> None:
        self._proxy.drop_request(MULTI)

    def lose_next_reply(self) -> None:
        self._proxy.drop_reply(MULTI)

    def expire(self) -> None:
        """A second handle on the session closes it."""
        handle = self.store._client.client_id  # type: ignore[attr-defined]
        client = KazooClient(hosts=self._server, client_id=handle)
        client.start(timeout=10)
        client.stop()
        client.close()

    def fall_silent(self) -> None:
        self._proxy.hold()

    def go_away(self) -> None:
        self._proxy.refuse()
        self._proxy.cut()

    def come_back(self) -> None:
        self._proxy.resume()

    def close(self) -> None:
        self._proxy.resume()
        self.store.close()
        self._other.close()
        self._proxy.stop()
