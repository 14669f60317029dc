"""A client whose connection a test breaks: on the modelled ZooKeeper, or through a proxy on a real one."""

from __future__ import annotations

from collections.abc import Callable

from kazoo.client import KazooClient

from drills.faults.proxy import MULTI
from tests.simulation.alone import Alone
from tests.simulation.ensembles import ModelledClient, RealClient
from tests.support.proxy import Proxy
from tests.support.wait import eventually

SESSION_S = 2.0
LONGEST_S = 10.0


class Modelled:
    """On the modelled ZooKeeper: a session, and what can be done to its connection.

    :ivar client: the session.
    :ivar other: one on a connection that nothing is done to.
    """

    def __init__(self, seed: int = 1) -> None:
        self._world = Alone(seed, tick_s=0.2)
        self.client, self.other = (ModelledClient(self._world, self._world.open(SESSION_S)) for _ in range(2))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds."""
        self._world.until(condition, f"what was to come; heard {self.client.heard.all}", LONGEST_S)

    def drop_connection(self) -> None:
        """Break the connection; it comes back."""
        assert self.client.store.drop_connection()

    def lose_next_commit(self) -> None:
        """The next commit does not reach the server."""
        self.client.store.lose_next_request(only_commit=True)

    def lose_next_reply(self) -> None:
        """The answer to the next commit does not reach the client."""
        self.client.store.lose_next_reply(only_commit=True)

    def expire(self) -> None:
        """The servers end the session."""
        assert self._world.ensemble.expire(self.client.store.session_id)

    def fall_silent(self) -> None:
        """The server goes on existing, and answers nothing."""
        for server in self._world.ensemble.servers:
            server.pause()

    def go_away(self) -> None:
        """There is no server."""
        assert self._world.ensemble.stop()

    def come_back(self) -> None:
        """After `fall_silent` or `go_away`."""
        self._world.ensemble.start()
        for server in self._world.ensemble.servers:
            server.resume()

    def close(self) -> None:
        """Free everything."""
        self._world.scheduler.close()


class Real:
    """The same on a real server, through a proxy."""

    def __init__(self, zk: str) -> None:
        self._server, _, chroot = zk.partition("/")
        self._proxy = Proxy(self._server).start()
        self.client = RealClient(f"{self._proxy.hosts}/{chroot}", SESSION_S)
        self.other = RealClient(zk, SESSION_S)

    def until(self, condition: Callable[[], bool]) -> None:
        eventually(condition, LONGEST_S, f"what was to come; heard {self.client.heard.all}")

    def drop_connection(self) -> None:
        self._proxy.cut()

    def lose_next_commit(self) -> None:
        self._proxy.drop_request(MULTI)

    def lose_next_reply(self) -> None:
        self._proxy.drop_reply(MULTI)

    def expire(self) -> None:
        """A second handle on the session closes it."""
        handle = self.client.store._client.client_id  # type: ignore[attr-defined]
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
        self.client.store.close()
        self.other.store.close()
        self._proxy.stop()


Side = Modelled | Real
