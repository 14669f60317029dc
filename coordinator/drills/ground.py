"""The ensembles that drills run on: embedded servers, containers, or the operator's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

from ..zk.ensemble import Ensemble, EnsembleConfig
from ..zk.ensemble_files import Ports
from .interrupts import held
from .settings import Settings

TICK_MS = 200
PREFIX = "zk-group-drill-"
OWN_CHROOT = "a chroot of its own in ZooKeeper"

SERVERS = "servers that can be killed, stopped and started"
PAUSE = "servers that can be paused"
NETWORK = "servers that can be cut off from each other"
BROKER = "a Kafka broker"
"""Of our own, registered beside the group. Its jars are fetched for whoever wants one."""


class Ground(Protocol):
    """One ensemble.

    :ivar kind: `embedded`, `namespaces`, `docker` or `own`.
    :ivar can: of `SERVERS`, `PAUSE` and `NETWORK` what it has; empty where the servers are not ours to touch.
    :ivar addresses: `host:port` of each server.
    :ivar tick_s: its tick, which decides how late a session ends.
    :ivar is_observed: whether an observer must tell what ZooKeeper did, since nobody here can read transaction logs.
    :ivar told: what else run.json says of it.
    """

    kind: str
    can: frozenset[str]
    addresses: tuple[str, ...]
    tick_s: float
    is_observed: bool
    told: Mapping[str, object]

    @property
    def touches(self) -> Sequence[str]:
        """What a drill writes in it."""

    @property
    def shown(self) -> Sequence[str]:
        """The znodes of a drill, in its chroot: with all below them they are its evidence."""

    def leader(self) -> int:
        """The number of the server that leads (or stands alone)."""

    def kill(self, server: int) -> None:
        """End a server as a crash does."""

    def stop(self, server: int) -> None:
        """End a server as an operator does."""

    def start(self, server: int) -> None:
        """Start it again, with what it has."""

    def pause(self, server: int) -> None:
        """Freeze a server: its connections stay open, and it answers nothing."""

    def resume(self, server: int) -> None:
        """Let it go on after `pause`."""

    def cut_off(self, server: int) -> None:
        """No packet between a server and its peers, either way; its clients still reach it."""

    def join(self, server: int) -> None:
        """Give it back its peers after `cut_off`."""

    def heal(self) -> None:
        """Undo whatever was done to its servers, without waiting for them to serve."""

    def has_leader(self) -> bool:
        """Whether somebody leads just now."""

    def is_healthy(self) -> bool:
        """Whether all of them serve."""

    def version(self) -> str:
        """Which ZooKeeper it runs."""

    def transaction_logs(self) -> list[Path]:
        """The folder of each server's transaction log; empty where nobody here can read them."""

    def adjust(self, settings: Settings) -> Settings:
        """The settings with what this ensemble grants."""

    def chroot_of(self, name: str) -> str:
        """Where the run `name` of a drill works; "" for the root."""

    def watched(self, chroot: str) -> Sequence[str]:
        """What an observer watches there, whole paths."""

    def cleared(self, chroot: str, keep: bool) -> AbstractContextManager[None]:
        """Leaves of a drill's chroot what shall be left, at the end."""


class Passing:
    """What is the same of all ensembles that go when the drills are over, with all that stands in them."""

    is_observed = False
    touches: Sequence[str] = (OWN_CHROOT,)
    shown: Sequence[str] = ("/",)
    told: Mapping[str, object] = MappingProxyType({})

    def adjust(self, settings: Settings) -> Settings:
        """See `Ground`: whatever a drill asks for is granted."""
        return settings

    def chroot_of(self, name: str) -> str:
        """See `Ground`."""
        return f"/{PREFIX}{name}"

    def watched(self, chroot: str) -> Sequence[str]:
        """See `Ground`."""
        return [chroot]

    def cleared(self, chroot: str, keep: bool) -> AbstractContextManager[None]:
        """See `Ground`."""
        return nullcontext()


class Embedded(Passing):
    """Servers on this machine, from PySpark's jars.

    :param places: where each shall listen; on loopback when not given.
    """

    kind = "embedded"
    can = frozenset({SERVERS, PAUSE})

    def __init__(self, directory: Path, servers: int, places: Sequence[Ports] = ()) -> None:
        config = EnsembleConfig(servers=servers, tick_ms=TICK_MS, durable=False)
        self._ensemble = Ensemble(directory, config, places=places)
        self.addresses = tuple(server.address for server in self._ensemble.servers)
        self.tick_s = TICK_MS / 1000

    def leader(self) -> int:
        """See `Ground`."""
        return self._ensemble.leader().id - 1

    def kill(self, server: int) -> None:
        """See `Ground`."""
        self._ensemble.servers[server].kill()

    def stop(self, server: int) -> None:
        """See `Ground`."""
        self._ensemble.servers[server].stop()

    def has_leader(self) -> bool:
        """See `Ground`."""
        return any(server.mode() in ("leader", "standalone") for server in self._ensemble.servers)

    def start(self, server: int) -> None:
        """See `Ground`."""
        self._ensemble.servers[server].start()

    def pause(self, server: int) -> None:
        """See `Ground`."""
        self._ensemble.servers[server].pause()

    def resume(self, server: int) -> None:
        """See `Ground`."""
        self._ensemble.servers[server].resume()

    def cut_off(self, server: int) -> None:
        """See `Ground`. Never called: they share one network."""
        raise NotImplementedError(NETWORK)

    def join(self, server: int) -> None:
        """See `cut_off`."""
        raise NotImplementedError(NETWORK)

    def heal(self) -> None:
        """See `Ground`."""
        for server in self._ensemble.servers:
            server.resume()
            server.start()

    def is_healthy(self) -> bool:
        """See `Ground`."""
        return self._ensemble.is_healthy()

    def transaction_logs(self) -> list[Path]:
        """See `Ground`."""
        return [next(server.directory.rglob("version-2")) for server in self._ensemble.servers]

    def version(self) -> str:
        """See `Ground`."""
        return version_in(self._ensemble.servers[0].ask("srvr"))

    def __enter__(self) -> Self:
        self._ensemble.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        with held():
            self._ensemble.stop()


def version_in(answer: str) -> str:
    """The version that an answer to `srvr` names; empty when it names none."""
    first = answer.partition("\n")[0]
    return first.removeprefix("Zookeeper version: ").partition("-")[0] if "version" in first else ""


def connect_string(addresses: Sequence[str], chroot: str) -> str:
    """`host:port,host:port/chroot`."""
    return ",".join(addresses) + chroot
