"""How a drill and its processes authenticate: each kind of process as an identity of its own."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from coordinator.zk.security.access import (
    ACCESS_VARIABLES,
    DIGEST,
    SASL,
    ZooKeeperAccess,
    digest_identity,
    environment_of,
)

COORDINATOR: Final = "coordinator"
MEMBER: Final = "member"
"""Consumers, the pool, the producer, and the Spark that reads the DataFrame."""
OPERATOR: Final = "operator"
"""The drill itself."""
ROLES: Final = (COORDINATOR, MEMBER, OPERATOR)


class DrillAccess:
    """The access of each role: the given TLS and credentials.

    The proxies have the TLS, so a process behind one has none.

    :param given: how the servers are reached.
    :param env: where its credentials may be, too.
    :param has_roles: whether each role has a digest identity of its own, made here. Given digests are then the
        operator's; a given SASL user is all roles', since a server may require it of every session.
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
        return environment_of(self.behind_proxy(role))

    def acl_ids(self, role: str) -> tuple[str, ...]:
        """The identities of the role as in ACLs; with `has_roles` those that are the role's alone."""
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
        taken = {name: os.environ.pop(name) for name in ACCESS_VARIABLES if name in os.environ}
        try:
            if self._credentials or self._own:
                folder.mkdir(mode=0o700, parents=True)
                self._folder = folder
                for role in ROLES:
                    path = Path(self._file(role))
                    path.touch(mode=0o600)
                    path.write_text(self._lines(role))
            yield
        finally:
            for role in ROLES if self._folder is not None else ():
                Path(self._file(role)).unlink(missing_ok=True)
            self._folder = None
            os.environ.update(taken)

    def _file(self, role: str) -> str:
        return str(self._folder / f"{role}.auth") if self._folder is not None else ""

    def _lines(self, role: str) -> str:
        """The role's file of credentials."""
        sasl = [":".join((SASL, *self._credentials.sasl))] if self._credentials.sasl is not None else []
        lines = [*sasl, *(f"{DIGEST}:{digest}" for digest in self._digests(role))]
        return "".join(f"{line}\n" for line in lines)
