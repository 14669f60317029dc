"""The operator's own ensemble: its servers are not touched, the drill has its own chroot."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from coordinator.zk.embedded.ensemble import four_letter_word
from coordinator.zk.errors import BadData, Refused, Retryable, UsageError, ZooKeeperUnreachable
from coordinator.zk.security.access import ZooKeeperAccess, secured
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import MAX_OPERATIONS, Delete, Store
from coordinator.zk.values import Address, parsed_hosts

from ..base.settings import Settings
from ..base.waiting import wait_for
from ..faults.packets import CLOSE_SESSION, opened_ms
from .access import OPERATOR, DrillAccess
from .base import OWN_CHROOT, PREFIX, SERVERS, connect_string, version_in

ANSWER_S = 2.0
SHORTEST_MS, LONGEST_MS = 1, 0x7FFFFFFF
LEAST_TICKS, MOST_TICKS = 2, 20
"""ZooKeeper's default bounds of a session timeout, in ticks."""

TICKS_OF_A_SESSION = 4
"""The session timeout in ticks that the leases of coordinators and consumers need."""

LONGEST_SESSION_MS = 15_000
"""A drill waits 30 s for the steady state."""

NEWEST_WITHOUT_ZXID = (3, 8)
ADMIN_SESSION_MS = 10_000
CONNECT_S = 15.0
CLEARED_S = 20.0


class External:
    """See `Environment`.

    :param hosts: `host:port,host:port/chroot`.
    :param session_timeout_ms: the requested session timeout of the processes.
    :param access: how its servers are reached.
    :raises UsageError: when `hosts` is malformed, its chroot is missing, or the ensemble is unsuitable.
    :raises ZooKeeperUnreachable: when no server answers.
    :raises AuthenticationFailed: when a server and this machine refuse each other.
    """

    kind = "own"
    can: frozenset[str] = frozenset()
    is_observed = True

    def __init__(self, hosts: str, session_timeout_ms: int, access: DrillAccess | None = None) -> None:
        self.access = access or DrillAccess()
        self._parsed, self.below = parsed_hosts(hosts)
        self.addresses: tuple[str, ...] = tuple(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._parsed
        )
        self._least_ms, self._most_ms = self._granted(SHORTEST_MS), self._granted(LONGEST_MS)
        self.tick_s, longest_tick_s, why = self._ticks()
        wanted_ms = max(session_timeout_ms, round(1000 * TICKS_OF_A_SESSION * longest_tick_s))
        self.session_timeout_ms = self._granted(wanted_ms)
        self.details: Mapping[str, object] = {
            "chroot": self.below,
            "tick": why,
            "asked_ms": wanted_ms,
            "negotiated_ms": self.session_timeout_ms,
        }
        self._require(wanted_ms)
        self._open(self.below).close()  # raises when the chroot is missing

    @property
    def touches(self) -> Sequence[str]:
        return [OWN_CHROOT]

    @property
    def shown(self) -> Sequence[str]:
        return ["/"]

    def adjust(self, settings: Settings) -> Settings:
        session_ms = self.session_timeout_ms
        poll_ms = max(settings.max_poll_interval_ms, 3 * session_ms)
        return replace(settings, session_timeout_ms=session_ms, max_poll_interval_ms=poll_ms)

    def _require(self, wanted_ms: int) -> None:
        version = self.version()
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers and numbers <= NEWEST_WITHOUT_ZXID:
            raise UsageError(
                f"this ensemble runs ZooKeeper {version}; drills with --zk need 3.9 or newer (zxids in watch events)"
            )
        if self.session_timeout_ms > LONGEST_SESSION_MS:
            raise UsageError(
                f"this ensemble grants sessions of {self.session_timeout_ms} ms when {wanted_ms} ms are requested; "
                f"drills need {LONGEST_SESSION_MS} ms or less (see tickTime and minSessionTimeout)"
            )

    def _granted(self, asked_ms: int) -> int:
        """The session timeout that the first server that answers grants."""
        for address in self._parsed:
            granted = granted_ms(address, asked_ms, self.access.tls)
            if granted is not None:
                return granted
        self._open("", ANSWER_S).close()  # raises the reason, as a certificate that is refused
        raise ZooKeeperUnreachable(f"no ZooKeeper server answers at {','.join(self.addresses)}")

    def _ticks(self) -> tuple[float, float, str]:
        """The lower and the upper bound of the tick, in seconds, and their source.

        Promises use the lower bound: a promise that is too strict fails visibly.
        """
        for host, port in self._parsed:
            for line in four_letter_word(host, port, "conf", access=self.access.tls).splitlines():
                name, _, value = line.partition("=")
                if name == "tickTime" and value.strip().isdigit() and int(value) > 0:
                    return int(value) / 1000, int(value) / 1000, "from the server (conf)"
        by_least, by_most = self._least_ms / LEAST_TICKS / 1000, self._most_ms / MOST_TICKS / 1000
        if by_least == by_most:
            return by_least, by_least, "from the shortest and the longest granted session (conf is not allowed)"
        shorter, longer = sorted((by_least, by_most))
        return shorter, longer, f"assumed: sessions range from {self._least_ms} to {self._most_ms} ms"

    # ---- queries

    def version(self) -> str:
        """See `Environment`; empty where `srvr` is not allowed."""
        answers = (version_in(four_letter_word(host, port, access=self.access.tls)) for host, port in self._parsed)
        return next((version for version in answers if version), "")

    def is_healthy(self) -> bool:
        """Whether a server serves; the rest of the ensemble is the operator's concern."""
        session_ms, tls = self.session_timeout_ms, self.access.tls
        return any(granted_ms(address, session_ms, tls) is not None for address in self._parsed)

    def has_leader(self) -> bool:
        """See `Environment`: without a leader no session can be opened."""
        return self.is_healthy()

    def transaction_logs(self) -> list[Path]:
        """See `Environment`: they are not readable here."""
        return []

    def heal(self) -> None:
        """See `Environment`. No fault hit its servers, so an unavailable ensemble is for the operator.

        :raises ZooKeeperUnreachable: always.
        """
        raise ZooKeeperUnreachable(f"no ZooKeeper server answers at {','.join(self.addresses)}")

    def leader(self) -> int:
        """See `Environment`: the leader is not queried."""
        raise NotImplementedError(SERVERS)

    def kill(self, server: int) -> None:
        """See `Environment`. Never called, like the following: the servers belong to the operator."""
        raise NotImplementedError(SERVERS)

    stop = start = pause = resume = cut_off = join = kill

    def chroot_of(self, name: str) -> str:
        return f"{self.below}/{PREFIX}{name}"

    def watched(self, chroot: str) -> Sequence[str]:
        return [chroot]

    @contextmanager
    def cleared(self, chroot: str, keep: bool) -> Iterator[None]:
        """See `Environment`: a drill's chroot is removed at the end."""
        try:
            yield
        finally:
            if not keep:
                with self.opened() as store:
                    wait_for(lambda: remove_tree(store, chroot), CLEARED_S, f"{chroot} is removed from ZooKeeper")

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """A session at the root, without proxies."""
        store = self._open("")
        try:
            yield store
        finally:
            store.close()

    def _open(self, chroot: str, timeout_s: float = CONNECT_S) -> Store:
        hosts, access = connect_string(self.addresses, chroot), self.access.to_servers(OPERATOR)
        return open_kazoo(hosts, ADMIN_SESSION_MS, timeout_s, make_chroot=False, access=access)


def tree_of(store: Store, root: str) -> list[str]:
    """A znode and its subtree, parents first; empty when it does not exist."""
    paths = [root] if store.get(root) is not None else []
    for path in paths:
        listing = store.children(path)
        paths += [f"{path}/{name}" for name in (listing.names if listing is not None else ())]
    return paths


def remove_tree(store: Store, root: str) -> bool:
    """Remove a znode and its subtree; whether they are gone: others may create children concurrently."""
    deepest_first = [Delete(path) for path in reversed(tree_of(store, root))]
    try:
        for first in range(0, len(deepest_first), MAX_OPERATIONS):
            store.commit(deepest_first[first : first + MAX_OPERATIONS])
    except (Refused, Retryable):
        return False
    return True


def granted_ms(address: Address, asked_ms: int, tls: ZooKeeperAccess) -> int | None:
    """The session timeout that a server grants to a request for `asked_ms`; None when it does not serve.

    Where SASL is required the session ends by its timeout, since only a session that has authenticated may be closed.
    """
    context = tls.tls_context()
    request = struct.pack(">iqiqi16s?", 0, 0, asked_ms, 0, 16, b"", False)
    try:
        plain = socket.create_connection(address, ANSWER_S)
        with plain if context is None else secured(plain, context, address[0], ANSWER_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            (length,) = struct.unpack(">i", _received(connection, 4))
            granted = opened_ms(_received(connection, min(max(0, length), 1024)))
            connection.sendall(struct.pack(">iii", 8, 1, CLOSE_SESSION))
            _received(connection, 20)
    except (OSError, BadData):
        return None
    return granted


def _received(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        data = connection.recv(count - len(received))
        if not data:
            raise OSError("the server closed the connection")
        received += data
    return received
