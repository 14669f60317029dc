"""Servers and their clients, modelled or real: what a scenario does to them, and what it sees of them.

Servers have the numbers 0 to 2.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.alone import Alone, Heard
from tests.simulation.quorum_links import LinkedEnsemble
from tests.simulation.servers import SimulatedServer
from tests.simulation.store import SimStore
from tests.simulation.twins import drain
from tests.support.clients import fresh_chroot
from tests.support.wait import eventually
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Node, SetData, Store

TICK_S = 0.5
SESSION_S = 10.0
_LAG_S = 3.0
_LONGEST_S = 40.0
_STATES = ("suspended", "connected", "lost")


class Client:
    """A session whose connect string has one server, or several.

    :ivar store: the session itself.
    :ivar heard: what its watches and its listener were told.
    """

    store: Store

    def __init__(self, store: Store) -> None:
        self.store = store
        self.heard = Heard(store)

    @property
    def states(self) -> list[str]:
        """What its listener was told, in order."""
        return [told for told in self.heard.all if told in _STATES]

    @property
    def events(self) -> list[str]:
        """The paths that its watches were called with, in order."""
        return [told.partition(" ")[2] for told in self.heard.all if told not in _STATES]

    def ask(self, function: Callable[[], Any]) -> Any:
        """What a call of the store returns or raises."""
        return function()

    def node(self, path: str) -> Node | None:
        """A znode as its server has it."""
        found: Node | None = self.ask(lambda: self.store.get(path))
        return found

    def read(self, path: str) -> bytes | None:
        """A znode's data as its server has it."""
        node = self.node(path)
        return node.data if node is not None else None

    def watch(self, path: str) -> bytes | None:
        """`read`, and leave a watch."""
        node: Node | None = self.ask(lambda: self.store.get(path, self.heard.watch()))
        return node.data if node is not None else None

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Create a znode."""
        self.ask(lambda: self.store.commit([Create(path, data, ephemeral)]))

    def write(self, path: str, data: bytes) -> None:
        """Replace a znode's data."""
        self.ask(lambda: self.store.commit([SetData(path, data)]))

    def sync(self) -> None:
        """Sync its server with the leader, and wait until the watches of all before that were called."""
        self.ask(self.store.sync)


class ThreeServers:
    """What is the same of modelled and of real ones."""

    def leader(self) -> int:
        """Who leads, once there is one among those who are not cut off."""
        raise NotImplementedError

    @property
    def followers(self) -> list[int]:
        """Who does not lead."""
        leader = self.leader()
        return [number for number in range(3) if number != leader]


# ---- the model


class ModelledClient(Client):
    """On the modelled ZooKeeper."""

    store: SimStore

    def __init__(self, world: Alone, store: SimStore) -> None:
        super().__init__(store)
        self._world = world

    def ask(self, function: Callable[[], Any]) -> Any:
        return self._world.call(function, self.store.process)

    def start(self, function: Callable[[], Any]) -> list[Any]:
        """Call the store in another thread; what that returned or raised comes into the list.

        The request is sent when this returns, or queued when there is no connection.
        """
        outcome = self._world.start(function, self.store.process)
        self._world.wait(0.005)
        return outcome

    def move(self, server: int) -> None:
        """Change the connect string to that server, and break the connection."""
        self.store.hosts = [self._world.ensemble.servers[server]]
        self.store.drop_connection()

    def hush(self) -> None:
        """Send no more pings."""
        self.store.process.pause()


class ModelledServers(ThreeServers):
    """The modelled ZooKeeper."""

    def __init__(self, seed: int) -> None:
        self._world = Alone(seed, tick_s=TICK_S)
        self._ensemble = self._world.ensemble
        self._ensemble.lag_spread_s = 0.0  # real servers apply within a round trip what they have received

    def _server(self, number: int) -> SimulatedServer:
        return self._ensemble.servers[number]

    def open(self, server: int | None = None, timeout_s: float = SESSION_S) -> ModelledClient:
        """A session at that server, which does not leave it unless it is moved; None for all servers."""
        hosts = None if server is None else [self._server(server)]
        return ModelledClient(self._world, self._world.open(timeout_s, hosts=hosts))

    def leader(self) -> int:
        self.until(lambda: self._ensemble.leader is not None, "a leader")
        return self._world.leader.number

    def now(self) -> float:
        """The time, in seconds."""
        return self._world.now

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until `condition` holds."""
        self._world.until(condition, what, _LONGEST_S)

    def lapse(self, seconds: float) -> None:
        """Let time go by, in which something is not to happen."""
        self._world.wait(seconds)

    def lag(self, follower: int) -> None:
        """Hold up what the leader sends that follower; for seconds at most, since neither notices that long."""
        assert self._server(follower).lag(_LAG_S)

    def catch_up(self, follower: int) -> None:
        """End `lag`."""
        self._server(follower).lag(0.0)

    def cut(self, server: int) -> None:
        """Cut a server off from the others, without its noticing; when it was the leader, they elect another."""
        assert self._ensemble.cut(self._server(server))

    def give_up(self, server: int) -> None:
        """Let a follower that was cut off notice that it is."""
        self._server(server).give_up()

    def heal(self, server: int) -> None:
        """End `cut`."""
        assert self._ensemble.heal(self._server(server))

    def stop(self, *servers: int) -> None:
        """End processes, all at once."""
        for server in servers:
            assert self._server(server).stop()

    def start(self, *servers: int) -> None:
        """Start processes again, and wait until all serve."""
        for server in servers:
            assert self._server(server).start()
        self.leader()

    def sync_and_cut(self, client: ModelledClient | RealClient, follower: int, is_reported: bool) -> None:
        """A sync through a follower, which is then cut off.

        :param is_reported: whether it has told the leader before that it has heard of the client.
        """
        assert isinstance(client, ModelledClient)
        client.store.process.resume()
        client.sync()
        if is_reported:
            self._world.wait(TICK_S)
        self.cut(follower)

    def close(self) -> None:
        """Free everything, and mend what is broken."""
        self._world.scheduler.close()


# ---- real servers


class RealClient(Client):
    """On real servers."""

    def __init__(self, hosts: str, timeout_s: float, servers: Sequence[str] = ()) -> None:
        super().__init__(open_kazoo(hosts, int(timeout_s * 1000)))
        self._servers = servers
        self._client: Any = self.store._client  # type: ignore[attr-defined]

    def start(self, function: Callable[[], Any]) -> list[Any]:
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(function())
            except Exception as error:  # noqa: BLE001  handed on
                outcome.append(error)

        client = self._client
        sent = len(client._pending)
        threading.Thread(target=run, daemon=True).start()
        eventually(
            lambda: outcome or len(client._pending) > sent or (client._queue and not client.connected),
            _LONGEST_S,
            "the request is sent",
        )
        return outcome

    def move(self, server: int) -> None:
        self._client.set_hosts(self._servers[server])
        self._client._connection._socket.shutdown(socket.SHUT_RDWR)

    def hush(self) -> None:
        self._client._connection._send_ping = lambda *_: None

    def sync(self) -> None:
        drain(self.store)


class RealServers(ThreeServers):
    """Java processes."""

    def __init__(self, ensemble: LinkedEnsemble) -> None:
        self._ensemble = ensemble
        ensemble.wait_healthy()
        self._hosts = fresh_chroot(ensemble.hosts)
        chroot = self._hosts.removeprefix(ensemble.hosts)
        self._each = [f"{server.address}{chroot}" for server in ensemble.servers]
        self._cut: set[int] = set()
        self._clients: list[RealClient] = []

    def open(self, server: int | None = None, timeout_s: float = SESSION_S) -> RealClient:
        client = RealClient(self._hosts if server is None else self._each[server], timeout_s, self._each)
        self._clients.append(client)
        return client

    def leader(self) -> int:
        found: list[int] = []

        def is_one() -> bool:
            found[:] = [
                number
                for number, server in enumerate(self._ensemble.servers)
                if number not in self._cut and server.mode() == "leader"
            ]
            return len(found) == 1

        self.until(is_one, "a leader")
        return found[0]

    def now(self) -> float:
        return time.monotonic()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        eventually(condition, _LONGEST_S, what)

    def lapse(self, seconds: float) -> None:
        time.sleep(seconds)

    def lag(self, follower: int) -> None:
        self._ensemble.links[follower, self.leader()].down.clear()

    def catch_up(self, follower: int) -> None:
        for (its, _), link in self._ensemble.links.items():
            if its == follower:
                link.down.set()

    def cut(self, server: int) -> None:
        leader = self.leader()
        for (follower, its), link in self._ensemble.links.items():
            if server == leader and its == server:
                link.refuse(tells_leader=False)
            elif server in (follower, its):
                link.hold()
        self._cut.add(server)

    def give_up(self, server: int) -> None:
        for pair, link in self._ensemble.links.items():
            if server in pair:
                link.refuse()
        self.until(lambda: self._ensemble.servers[server].mode() is None, "a server serves nobody")

    def heal(self, server: int) -> None:
        self._cut.discard(server)
        for pair, link in self._ensemble.links.items():
            if server in pair:
                link.release()

    def stop(self, *servers: int) -> None:
        ended = [self._ensemble.servers[number] for number in servers]
        for server in ended:
            server.pause()  # so that no client goes from one to the next
        for server in ended:
            server.kill()
        for (_, leader), link in self._ensemble.links.items():
            if leader in servers:
                link.drop()  # what it has sent and has not arrived is lost, as when its machine ends

    def start(self, *servers: int) -> None:
        for server in servers:
            self._ensemble.servers[server].start()
        self._ensemble.wait_healthy()

    def sync_and_cut(self, client: ModelledClient | RealClient, follower: int, is_reported: bool) -> None:
        link = self._ensemble.links[follower, self.leader()]
        if is_reported:
            client.sync()
            seen = link.up_bytes
            self.until(lambda: link.up_bytes > seen, "the follower has reported")
        else:
            self.lag(follower)  # and so it is not asked whom it has heard
            seen = link.up_requests
            synced = client.start(client.store.sync)
            self.until(lambda: link.up_requests > seen, "the leader has been asked to sync")
            link.up.clear()
            link.down.set()
            self.until(lambda: synced == [None], "the sync is answered")
        self.cut(follower)

    def close(self) -> None:
        self._ensemble.release()
        self._ensemble.start()
        self._ensemble.wait_healthy()
        for client in self._clients:
            client.store.close()


Servers = ModelledServers | RealServers
