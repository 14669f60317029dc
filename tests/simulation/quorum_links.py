"""What three real servers say to each other, over connections that a test can hold up or break.

A follower connects to the port of its leader: here through a `QuorumLink`, one for each pair of servers. Elections go
by other ports, which nothing is done to.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zk_group.coordinator.zk.embedded.directory import HOST, EnsembleError, read_state, wait_until
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig

SYNC_LIMIT_S = 10.0
"""So long a server waits for the others to say something before it gives them up."""

_LISTENS_WITHIN_S = 2.0
"""Who was elected listens for its followers so soon."""

_REQUEST = (1).to_bytes(4, "big") + b"\xff" * 8
"""How a packet of a follower begins that has a request: its kind, and no zxid. Its reports do not begin so."""


class QuorumLink:
    """The way from one server, when it follows, to another, when that one leads.

    :ivar up: set while what the follower sends goes through; cleared, it is held up.
    :ivar down: likewise, what the leader sends.
    :ivar up_bytes: how much has gone through from the follower.
    :ivar up_requests: how many requests of its clients are among that.
    """

    def __init__(self, leader_port: int) -> None:
        self.up = threading.Event()
        self.down = threading.Event()
        self.up_bytes = 0
        self.up_requests = 0
        self._leader_port = leader_port
        self._is_refusing = False
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.release()
        self._run(self._accept)

    def hold(self) -> None:
        """Hold up both directions; neither server knows until `SYNC_LIMIT_S` have gone by."""
        self.up.clear()
        self.down.clear()

    def refuse(self, tells_leader: bool = True) -> None:
        """End the connection, and let no other come until `release`.

        :param tells_leader: whether the leader's end is closed as well; otherwise it stays open, and silent.
        """
        self._is_refusing = True
        if not tells_leader:
            self.down.clear()  # whoever forwards to the follower would notice, and close both ends
        self.drop(tells_leader)

    def drop(self, tells_leader: bool = True) -> None:
        """End the connection; what was held up is lost."""
        with self._lock:
            for follower, leader in self._pairs:
                for one in (follower, leader) if tells_leader else (follower,):
                    _shut(one)

    def release(self) -> None:
        """Let everything through again; what was held up comes first."""
        if self._is_refusing:
            self.drop()
        self._is_refusing = False
        self.up.set()
        self.down.set()

    def stop(self) -> None:
        """End every thread."""
        _shut(self._listener)
        self._listener.close()
        self.refuse()
        self.release()
        for thread in self._threads:
            thread.join()

    def _run(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):  # it ends
            while True:
                follower, _ = self._listener.accept()
                if self._is_refusing:
                    follower.close()
                    continue
                self._run(self._serve, follower)

    def _serve(self, follower: socket.socket) -> None:
        try:
            # A follower that is refused tries again within its round; one whose connection ends goes on to another.
            leader = wait_until(self._connected, _LISTENS_WITHIN_S, lambda: "nobody listens")
        except EnsembleError:
            follower.close()
            return
        for one in (follower, leader):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._pairs.append((follower, leader))
        downward = threading.Thread(target=self._pump, args=(leader, follower, self.down), daemon=True)
        downward.start()
        self._pump(follower, leader, self.up)
        downward.join()
        with self._lock:
            self._pairs.remove((follower, leader))
        follower.close()
        leader.close()

    def _connected(self) -> socket.socket | None:
        with suppress(OSError):
            return socket.create_connection((HOST, self._leader_port))
        return None

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                gate.wait()
                sink.sendall(data)
                if gate is self.up:
                    self.up_requests += data.count(_REQUEST)
                    self.up_bytes += len(data)
        if not self._is_refusing:
            _shut(source)
            _shut(sink)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


class LinkedEnsemble(Ensemble):
    """Three servers, with a link between each two of them in either direction.

    :ivar links: (number of the follower, number of the leader) -> its link; numbers from 0.
    """

    def __init__(self, directory: Path) -> None:
        limit = round(SYNC_LIMIT_S / 0.5)
        config = EnsembleConfig(servers=3, tick_ms=500, init_limit_ticks=8, sync_limit_ticks=limit, durable=False)
        super().__init__(directory, config)
        _, ports = read_state(self.directory)
        self.links = {(i, j): QuorumLink(ports[j].quorum) for i in range(3) for j in range(3) if i != j}
        for (i, j), link in self.links.items():
            configuration = self.servers[i].directory / "zoo.cfg"
            told, its = f"server.{j + 1}={HOST}:", ports[j]
            text = configuration.read_text()
            assert f"{told}{its.quorum}:" in text
            configuration.write_text(text.replace(f"{told}{its.quorum}:", f"{told}{link.port}:"))

    def release(self) -> None:
        """Let everything through."""
        for link in self.links.values():
            link.release()


@contextmanager
def linked_ensemble(directory: Path) -> Iterator[LinkedEnsemble]:
    """A running `LinkedEnsemble`, stopped at the end."""
    ensemble = LinkedEnsemble(directory)
    try:
        with ensemble:
            yield ensemble
    finally:
        for link in ensemble.links.values():
            link.stop()
