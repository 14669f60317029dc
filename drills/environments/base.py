"""The ensembles of drills: embedded servers, containers, or the operator's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig

from ..base.settings import Settings
from ..base.signals import held
from .access import OPERATOR, DrillAccess

TICK_MS = 200
PREFIX = "zk-group-drill-"
OWN_CHROOT = "its own chroot in ZooKeeper"
ENFORCED_SASL = {"enforce.auth.enabled": "true", "enforce.auth.schemes": "sasl"}
"""Lines of zoo.cfg: no session without SASL."""

SERVERS = "servers that can be killed, stopped and started"
PAUSE = "servers that can be paused"
NETWORK = "servers that can be cut off from each other"
BROKER = "a Kafka broker"
"""The drill's own broker, registered in the chroot; its jars are fetched on demand."""


class Environment:
    """One ensemble. The defaults are those of one that is removed with all its znodes after the drills.

    :ivar kind: `embedded`, `docker` or `own`.
    :ivar can: the supported ones of `SERVERS`, `PAUSE` and `NETWORK`; no operation on the servers without them.
    :ivar addresses: `host:port` of each server.
    :ivar tick_s: its tick, which bounds the delay of a session's expiry.
    :ivar is_observed: whether an observer replaces the transaction logs, which are not readable here.
    :ivar access: how the drill and its processes authenticate.
    :ivar touches: the paths that a drill writes.
    :ivar shown: the znodes of a drill in its chroot; with their subtrees they are its evidence.
    :ivar details: further fields of the ensemble in run.json.
    """

    kind: str
    can: frozenset[str] = frozenset()
    addresses: tuple[str, ...]
    tick_s: float
    is_observed = False
    access = DrillAccess()
    touches: Sequence[str] = (OWN_CHROOT,)
    shown: Sequence[str] = ("/",)
    details: Mapping[str, object] = MappingProxyType({})

    def leader(self) -> int:
        """The number of the leader (or the only server)."""
        raise NotImplementedError(SERVERS)

    def kill(self, server: int) -> None:
        """End a server by a crash."""
        raise NotImplementedError(SERVERS)

    def stop(self, server: int) -> None:
        """Stop a server as an operator does."""
        raise NotImplementedError(SERVERS)

    def start(self, server: int) -> None:
        """Start it with its data."""
        raise NotImplementedError(SERVERS)

    def pause(self, server: int) -> None:
        """Suspend a server: its connections stay open without answers."""
        raise NotImplementedError(PAUSE)

    def resume(self, server: int) -> None:
        """Resume it after `pause`."""
        raise NotImplementedError(PAUSE)

    def cut_off(self, server: int) -> None:
        """No packet between a server and its peers, either way; its clients still reach it."""
        raise NotImplementedError(NETWORK)

    def join(self, server: int) -> None:
        """Reconnect it to its peers after `cut_off`."""
        raise NotImplementedError(NETWORK)

    def heal(self) -> None:
        """Revert all faults on its servers, without waiting until they serve."""
        raise NotImplementedError

    def is_healthy(self) -> bool:
        """Whether all of them serve."""
        raise NotImplementedError

    def has_leader(self) -> bool:
        """Whether the ensemble has a leader now: no session can be opened without one."""
        return self.is_healthy()

    def version(self) -> str:
        """Its ZooKeeper version."""
        raise NotImplementedError

    def transaction_logs(self) -> list[Path]:
        """The folder of each server's transaction log; empty when they are not readable here."""
        return []

    def adjust(self, settings: Settings) -> Settings:
        """The settings, with the session timeout that this ensemble grants."""
        return settings

    def chroot_of(self, name: str) -> str:
        """The chroot of the run `name` of a drill; "" for the root."""
        return f"/{PREFIX}{name}"

    def watched(self, chroot: str) -> Sequence[str]:
        """The paths that an observer watches there."""
        return [chroot]

    def cleared(self, chroot: str, keep: bool) -> AbstractContextManager[None]:
        """Clean up a drill's chroot at the end."""
        return nullcontext()


class Embedded(Environment):
    """Servers on this machine, from PySpark's jars.

    :param is_secured: whether they have TLS, and refuse sessions without SASL.
    """

    kind = "embedded"
    can = frozenset({SERVERS, PAUSE})

    def __init__(self, directory: Path, servers: int, is_secured: bool = False) -> None:
        config = EnsembleConfig(servers=servers, tick_ms=TICK_MS, durable=False)
        if is_secured:
            config = replace(config, tls=True, auth=True, extra=ENFORCED_SASL)
        self._ensemble = Ensemble(directory, config)
        if is_secured:
            self.access = DrillAccess(self._ensemble.identities.access(OPERATOR), has_roles=True)
        self.addresses = tuple(server.address for server in self._ensemble.servers)
        self.tick_s = TICK_MS / 1000

    def leader(self) -> int:
        return self._ensemble.leader().id - 1

    def kill(self, server: int) -> None:
        self._ensemble.servers[server].kill()

    def stop(self, server: int) -> None:
        self._ensemble.servers[server].stop()

    def has_leader(self) -> bool:
        return any(server.mode() in ("leader", "standalone") for server in self._ensemble.servers)

    def start(self, server: int) -> None:
        self._ensemble.servers[server].start()

    def pause(self, server: int) -> None:
        self._ensemble.servers[server].pause()

    def resume(self, server: int) -> None:
        self._ensemble.servers[server].resume()

    def heal(self) -> None:
        for server in self._ensemble.servers:
            server.resume()
            server.start()

    def is_healthy(self) -> bool:
        return self._ensemble.is_healthy()

    def transaction_logs(self) -> list[Path]:
        return [next(server.directory.rglob("version-2")) for server in self._ensemble.servers]

    def version(self) -> str:
        return version_in(self._ensemble.servers[0].ask("srvr"))

    def __enter__(self) -> Self:
        self._ensemble.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        with held():
            self._ensemble.stop()


def version_in(answer: str) -> str:
    """The version in an answer to `srvr`; empty when it has none."""
    first = answer.partition("\n")[0]
    return first.removeprefix("Zookeeper version: ").partition("-")[0] if "version" in first else ""


def connect_string(addresses: Sequence[str], chroot: str) -> str:
    """`host:port,host:port/chroot`."""
    return ",".join(addresses) + chroot
