"""The operator's own ensemble: its servers are not touched, and the drill has its own chroot there, or a group."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from zk_group.coordinator.zk.embedded.ensemble import four_letter_word
from zk_group.coordinator.zk.errors import BadData, Refused, Retryable, UsageError, ZooKeeperUnreachable
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, secured
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create, Delete, Operation, Store
from zk_group.coordinator.zk.update import clear_below
from zk_group.coordinator.zk.values import Address, parsed_hosts, require
from zk_group.coordinator.zk.znodes import paths
from zk_group.coordinator.zk.znodes.paths import (
    CONSUMERS,
    COORDINATOR,
    DRILL,
    Brokers,
    GroupPaths,
    RegionPaths,
    checked_name,
)

from ..base.processes import wait_for
from ..base.settings import REGION, Settings
from ..faults.proxy import CLOSE_SESSION, opened_ms
from .base import OPERATOR, PREFIX, DrillAccess, Environment, connect_string, version_in

ANSWER_S = 2.0
SHORTEST_MS, LONGEST_MS = 1, 0x7FFFFFFF
LEAST_TICKS, MOST_TICKS = 2, 20
"""ZooKeeper's default bounds of a session timeout, in ticks."""

TICKS_OF_A_SESSION = 4
"""The minimum session timeout for the leases of coordinators and consumers, in ticks."""

LONGEST_SESSION_MS = 15_000
"""A drill waits 30 s for the steady state."""

NEWEST_WITHOUT_ZXID = (3, 8)
ADMIN_SESSION_MS = 10_000
CONNECT_S = 15.0
CLEARED_S = 20.0
MOST_AT_ONCE = 10_000
ANOTHER = "another drill runs at --zk: wait until it ends"


class External(Environment):
    """The operator's ensemble. No fault hits its servers.

    :param hosts: `host:port,host:port/chroot`.
    :param session_timeout_ms: the requested session timeout of the processes.
    :param access: to its servers.
    :raises UsageError: when `hosts` is malformed, its chroot is missing, or the ensemble is unsuitable.
    :raises ZooKeeperUnreachable: when no server answers.
    :raises AuthenticationFailed: when a server and this machine refuse each other.
    """

    kind = "own"
    is_observed = True

    def __init__(self, hosts: str, session_timeout_ms: int, access: DrillAccess | None = None) -> None:
        self.access = access or DrillAccess()
        self._parsed, self.below = parsed_hosts(hosts)
        hosts_of = [(f"[{host}]" if ":" in host else host, port) for host, port in self._parsed]
        self.addresses = tuple(f"{host}:{port}" for host, port in hosts_of)
        self._least_ms, self._most_ms = self._granted(SHORTEST_MS), self._granted(LONGEST_MS)
        self.tick_s, longest_tick_s, why = self._ticks()
        wanted_ms = max(session_timeout_ms, round(1000 * TICKS_OF_A_SESSION * longest_tick_s))
        self.session_timeout_ms = self._granted(wanted_ms)
        granted = {"asked_ms": wanted_ms, "negotiated_ms": self.session_timeout_ms}
        self.details: Mapping[str, object] = {"chroot": self.below, "tick": why, **granted}
        self._require(wanted_ms)
        self._open(self.below).close()  # raises when the chroot is missing

    def adjust(self, settings: Settings) -> Settings:
        session_ms = self.session_timeout_ms
        poll_ms = max(settings.max_poll_interval_ms, 3 * session_ms)
        return replace(settings, session_timeout_ms=session_ms, max_poll_interval_ms=poll_ms)

    def _require(self, wanted_ms: int) -> None:
        version = self.version()
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if numbers and numbers <= NEWEST_WITHOUT_ZXID:
            needed = "drills with --zk need 3.9 or newer (zxids in watch events)"
            raise UsageError(f"this ensemble runs ZooKeeper {version}; {needed}")
        if self.session_timeout_ms > LONGEST_SESSION_MS:
            raise UsageError(
                f"this ensemble grants sessions of {self.session_timeout_ms} ms when {wanted_ms} ms are requested; "
                f"drills need {LONGEST_SESSION_MS} ms or less (see tickTime and minSessionTimeout)"
            )

    def _granted(self, asked_ms: int) -> int:
        """The session timeout granted by the first server that replies."""
        for address in self._parsed:
            granted = granted_ms(address, asked_ms, self.access.tls)
            if granted is not None:
                return granted
        self._open("", ANSWER_S).close()  # raises the reason, as a refused certificate
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
        shorter, longer = sorted((self._least_ms / LEAST_TICKS / 1000, self._most_ms / MOST_TICKS / 1000))
        if shorter == longer:
            return shorter, longer, "from the shortest and the longest granted session (conf is not allowed)"
        return shorter, longer, f"assumed: sessions range from {self._least_ms} to {self._most_ms} ms"

    # ---- queries

    def version(self) -> str:
        """Its ZooKeeper version; empty where `srvr` is not allowed."""
        answers = (version_in(four_letter_word(host, port, access=self.access.tls)) for host, port in self._parsed)
        return next((version for version in answers if version), "")

    def is_healthy(self) -> bool:
        """Whether a server serves; the rest of the ensemble is the operator's concern."""
        session_ms, tls = self.session_timeout_ms, self.access.tls
        return any(granted_ms(address, session_ms, tls) is not None for address in self._parsed)

    def heal(self) -> None:
        """
        :raises ZooKeeperUnreachable: always: an unavailable ensemble is for the operator.
        """
        raise ZooKeeperUnreachable(f"no ZooKeeper server answers at {','.join(self.addresses)}")

    def chroot_of(self, name: str) -> str:
        return f"{self.below}/{PREFIX}{name}"

    @contextmanager
    def cleared(self, chroot: str, keep: bool) -> Iterator[None]:
        try:
            yield
        finally:
            if not keep:
                with self.opened() as store:
                    wait_for(lambda: remove_tree(store, chroot), CLEARED_S, f"{chroot} is removed from ZooKeeper")

    def opened(self) -> AbstractContextManager[Store]:
        """A session at the root, without proxies."""
        return closing(self._open(""))

    def _open(self, chroot: str, timeout_s: float = CONNECT_S) -> Store:
        hosts, access = connect_string(self.addresses, chroot), self.access.to_servers(OPERATOR)
        return open_kazoo(hosts, ADMIN_SESSION_MS, timeout_s, make_chroot=False, access=access)


def remove_tree(store: Store, root: str) -> bool:
    """Remove a part of a znode's subtree, at last the znode; whether all is removed: others may create children."""

    def commit(operations: Sequence[Operation]) -> bool:
        store.commit(operations)
        return True

    try:
        is_empty = clear_below(store, root, commit, MOST_AT_ONCE)
        if is_empty and store.get(root) is not None:
            store.commit([Delete(root)])
    except (Refused, Retryable):
        return False
    return is_empty


def granted_ms(address: Address, asked_ms: int, tls: ZooKeeperAccess) -> int | None:
    """The session timeout granted by a server to a request for `asked_ms`; None when it does not serve.

    Where SASL is required the session ends by its timeout, since only an authenticated session may be closed.
    """
    context = tls.tls_context()
    request = struct.pack(">iqiqi16s?", 0, 0, asked_ms, 0, 16, b"", False)
    try:
        plain = socket.create_connection(address, ANSWER_S)
        with plain if context is None else secured(plain, context, address[0], ANSWER_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            replies = connection.makefile("rb")
            (length,) = struct.unpack(">i", replies.read(4))
            granted = opened_ms(replies.read(min(max(0, length), 1024)))
            connection.sendall(struct.pack(">iii", 8, 1, CLOSE_SESSION))
            replies.read(20)
    except (OSError, BadData, struct.error):
        return None
    return granted


class NamedGroup(External):
    """The operator's ensemble, without a chroot of the drill: it has a group, and a topic with a unique name.

    :param group: the group's name.
    :raises UsageError: also when `group` is not a valid group name.
    """

    def __init__(self, hosts: str, session_timeout_ms: int, group: str, access: DrillAccess | None = None) -> None:
        super().__init__(hosts, session_timeout_ms, access)
        self._group = checked_name("group", group)
        self._topic = f"zk-group-drill-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ').lower()}"
        made = (GroupPaths(self._group).root, RegionPaths(REGION).root, Brokers().topic(self._topic))
        self._mine = [f"{self.below}{path}" for path in made]
        self.details = {**self.details, "group": self._group, "topic": self._topic}
        term = (COORDINATOR, paths.COORDINATOR_EPOCH)
        shared = [f"{self.below}{path}" for path in (*term, f"{paths.NODES} and below", DRILL)]
        self.touches = [*shared, *(f"{path} and below" for path in self._mine)]
        self.shown = [*term, *made]

    def adjust(self, settings: Settings) -> Settings:
        return replace(super().adjust(settings), group=self._group, topic=self._topic)

    def chroot_of(self, name: str) -> str:
        return self.below

    def watched(self, chroot: str) -> Sequence[str]:
        return [f"{chroot}{CONSUMERS}", f"{chroot}{Brokers().root}"]

    @contextmanager
    def cleared(self, chroot: str, keep: bool) -> Iterator[None]:
        """Removes the group's and the topic's subtrees at the end; the epoch stays, since it never goes back.

        :raises UsageError: when the path is in use, or the group exists.
        """
        with self.opened() as claim:
            self._claim(claim)
            self._require_no_group(claim)
            try:
                yield
            finally:
                if not keep:
                    with self.opened() as store:  # the claim's session may have expired
                        for root in self._mine:
                            wait_for(partial(remove_tree, store, root), CLEARED_S, f"{root} is removed from ZooKeeper")

    def _claim(self, store: Store) -> None:
        """Lock this path against other drills, for the session's lifetime."""
        if store.get(f"{self.below}{CONSUMERS}") is None:
            with suppress(Refused):  # created concurrently
                store.commit([Create(f"{self.below}{CONSUMERS}")])
        try:
            store.commit([Create(f"{self.below}{DRILL}", ephemeral=True)])
        except Refused as refused:
            why = ANOTHER if refused.reason == "node-exists" else f"the drill cannot start: {refused}"
            raise UsageError(why) from None

    def require_no_members(self, store: Store) -> None:
        """
        :param store: a session at the root.
        :raises UsageError: when the path is in use, so that a drill would interfere, or when the group exists.
        """
        require(store.get(f"{self.below}{DRILL}") is None, ANOTHER)
        self._require_no_group(store)

    def _require_no_group(self, store: Store) -> None:
        is_led, is_paused = (store.get(f"{self.below}{path}") is not None for path in (COORDINATOR, paths.PAUSED))
        require(not is_led, f"a coordinator runs at --zk: stop all nodes there before a drill on {self._group}")
        require(not is_paused, "groups are paused at --zk: resume them before a drill")
        groups = _names(store, f"{self.below}{paths.GROUPS}")
        require(self._group not in groups, f"group {self._group} exists: give another name")
        if groups:
            raise UsageError(
                f"group {min(groups)} exists at --zk, too: a coordinator manages every group of its path, "
                "so a drill needs a path without other groups"
            )
        names = _names(store, f"{self.below}{paths.REGIONS}")
        require(REGION not in names, f"consistent region {REGION} exists at --zk: drills use that name, and remove it")
        brokers = _names(store, f"{self.below}{Brokers().root}/ids")
        require(not brokers, "a Kafka broker is registered at --zk: drills create no topic beside it")


def _names(store: Store, path: str) -> list[str]:
    listing = store.children(path)
    return list(listing.names) if listing is not None else []
