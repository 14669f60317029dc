"""The ensembles of drills: embedded servers, containers, or the operator's own; and the authentication of a drill and
its processes there: each kind of process has an identity of its own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.security import access as security
from zk_group.coordinator.zk.security.access import DIGEST, SASL, ZooKeeperAccess, digest_identity

from ..base.processes import held
from ..base.settings import Settings

COORDINATOR: Final = "coordinator"
MEMBER: Final = "member"
"""Consumers, the pool, the producer, and the Spark that reads the DataFrame."""
OPERATOR: Final = "operator"
"""The drill itself."""
ROLES: Final = (COORDINATOR, MEMBER, OPERATOR)


class DrillAccess:
    """The access of each role: the given TLS and credentials.

    The proxies have the TLS, so a process behind one has none.

    :param given: the access to the servers.
    :param env: the environment, which may have its credentials, too.
    :param has_roles: whether each role has a digest identity of its own, made here. Given digests are then the
        operator's; a given SASL user is for all roles, since a server may require it of every session.
    :ivar has_roles: as given.
    :raises UsageError: when the credentials cannot be read.
    """

    def __init__(
        self, given: ZooKeeperAccess | None = None, env: Mapping[str, str] = {}, has_roles: bool = False
    ) -> None:
        self.has_roles = has_roles
        self._given = given or ZooKeeperAccess()
        self._credentials = self._given.credentials(env)
        self._own = {role: f"zk-group-drill-{role}:{secrets.token_hex(16)}" for role in ROLES} if has_roles else {}
        self._folder: Path | None = None

    @property
    def described(self) -> str:
        """TLS and the schemes of the credentials, as `TLS, sasl`; without secrets."""
        schemes = {SASL: self._credentials.sasl is not None, DIGEST: bool(self._credentials.digests or self._own)}
        return ", ".join(name for name, is_used in {"TLS": self._given.zk_tls, **schemes}.items() if is_used) or "none"

    @property
    def tls(self) -> ZooKeeperAccess:
        """The TLS to the servers, without credentials."""
        return replace(self._given, zk_auth_file="")

    def to_servers(self, role: str) -> ZooKeeperAccess:
        """The access of a session without a proxy; before `in_force` the given one."""
        return self._given if self._folder is None else replace(self._given, zk_auth_file=self._file(role))

    def behind_proxy(self, role: str) -> ZooKeeperAccess:
        """The access of a session through a proxy."""
        return ZooKeeperAccess(zk_auth_file=self._file(role))

    def environment(self, role: str) -> dict[str, str]:
        """The environment variables of a process behind a proxy; without secrets, which are in files."""
        return security.environment_of(self.behind_proxy(role))

    def acl_ids(self, role: str) -> tuple[str, ...]:
        """The identities of the role as in ACLs; with `has_roles` only its exclusive ones."""
        shared = () if self.has_roles or self._credentials.sasl is None else (f"{SASL}:{self._credentials.sasl[0]}",)
        return (*shared, *map(digest_identity, self._digests(role)))

    def _digests(self, role: str) -> list[str]:
        """The digest identities of the role's sessions."""
        own = [self._own[role]] if role in self._own else []
        return [*own, *(self._credentials.digests if not self.has_roles or role == OPERATOR else ())]

    @contextmanager
    def in_force(self, folder: Path) -> Iterator[None]:
        """The files of credentials exist in `folder`, which only this user may read, and are removed at the end.

        Meanwhile this process has no variables of ZooKeeper's access: every session names its own, and no process
        inherits a secret.
        """
        taken = {name: os.environ.pop(name) for name in security.ACCESS_VARIABLES if name in os.environ}
        try:
            if self._credentials or self._own:
                folder.mkdir(mode=0o700, parents=True)
                self._folder = folder
                sasl = [":".join((SASL, *self._credentials.sasl))] if self._credentials.sasl is not None else []
                for role in ROLES:
                    path = Path(self._file(role))
                    path.touch(mode=0o600)
                    lines = [*sasl, *(f"{DIGEST}:{digest}" for digest in self._digests(role))]
                    path.write_text("".join(f"{line}\n" for line in lines))
            yield
        finally:
            for role in ROLES if self._folder is not None else ():
                Path(self._file(role)).unlink(missing_ok=True)
            self._folder = None
            os.environ.update(taken)

    def _file(self, role: str) -> str:
        return str(self._folder / f"{role}.auth") if self._folder is not None else ""


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

Action = Literal["kill", "stop", "start", "pause", "resume", "cut off", "join"]
"""`kill` ends a server by a crash, `stop` as an operator does; `start` starts it with its data. Paused, until `resume`,
its connections stay open without answers. Cut off, until `join`, it exchanges no packet with its peers; its clients
still reach it."""


class Environment:
    """One ensemble. The defaults are those of an ensemble that is removed with all its znodes after the drills.

    :ivar kind: `embedded`, `docker` or `own`.
    :ivar can: the supported ones of `SERVERS`, `PAUSE` and `NETWORK`; no operation on the servers without them.
    :ivar addresses: `host:port` of each server.
    :ivar tick_s: its tick, which bounds the delay of a session's expiry.
    :ivar is_observed: whether an observer replaces the transaction logs, which are not readable here.
    :ivar access: the credentials and TLS of the drill and its processes.
    :ivar touches: the paths written by a drill.
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

    def act(self, action: Action, server: int) -> None:
        """Carry out an action on one server."""
        raise NotImplementedError(action)

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
        raise NotImplementedError

    def transaction_logs(self) -> list[Path]:
        """The folder of each server's transaction log; empty when they are not readable here."""
        return []

    def adjust(self, settings: Settings) -> Settings:
        """The settings, with the session timeout granted by this ensemble."""
        return settings

    def chroot_of(self, name: str) -> str:
        """The chroot of the run `name` of a drill; "" for the root."""
        return f"/{PREFIX}{name}"

    def watched(self, chroot: str) -> Sequence[str]:
        """The paths for an observer to watch there."""
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

    def has_leader(self) -> bool:
        return any(server.mode() in ("leader", "standalone") for server in self._ensemble.servers)

    def act(self, action: Action, server: int) -> None:
        at = self._ensemble.servers[server]
        acts = {"kill": at.kill, "stop": at.stop, "start": at.start, "pause": at.pause, "resume": at.resume}
        acts[action]()

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
    """The version in a reply to `srvr`; empty when it has none."""
    first = answer.partition("\n")[0]
    return first.removeprefix("Zookeeper version: ").partition("-")[0] if "version" in first else ""


def connect_string(addresses: Sequence[str], chroot: str) -> str:
    """`host:port,host:port/chroot`."""
    return ",".join(addresses) + chroot
