"""The observer of a drill: a session with a recursive watch, behind a proxy that captures its watch events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from coordinator.zk.errors import CoordinatorError, StoreError
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import SessionState, TreeEvent, TreeStore

from ..environments.access import OPERATOR, DrillAccess
from ..environments.base import connect_string
from ..faults.proxy import Proxy
from ..faults.traffic_capture import Tap, Traffic
from .histories import Event
from .reconstruction import observed

SESSION_MS = 30_000
LOST = "the observer has lost its connection to ZooKeeper: later changes are unknown"


class WatchObserver:
    """Watches the subtrees of some znodes, from `__enter__` until its events are read.

    :param addresses: of the servers.
    :param tap: captures the processes of the drill, and this session.
    :param roots: the full paths of the watched subtrees.
    :param chroot: the prefix that events omit from their paths.
    :param access: how it authenticates.
    :ivar proxies: before each server.
    :ivar missing: why changes are unknown, or not the drill's only; "" otherwise.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        tap: Tap,
        roots: Sequence[str],
        chroot: str,
        access: DrillAccess | None = None,
    ) -> None:
        self._access = access or DrillAccess()
        self._addresses = addresses
        self._tap = tap
        self._roots = roots
        self._chroot = chroot
        self._stack = ExitStack()
        self._is_asked = False
        self._since = 0
        self.missing = ""

    def __enter__(self) -> Self:
        """
        :raises ZooKeeperUnreachable: when no server answers.
        :raises StoreError: when the server has no such watches.
        """
        with ExitStack() as stack:
            self.proxies = [
                stack.enter_context(Proxy(one, self._tap, is_observer=True, access=self._access.tls))
                for one in self._addresses
            ]
            self._store: TreeStore = open_kazoo(
                connect_string([each.hosts for each in self.proxies], ""),
                SESSION_MS,
                make_chroot=False,
                access=self._access.behind_proxy(OPERATOR),
            )
            stack.callback(self._store.close)
            self._store.add_listener(self._on_state)
            for root in self._roots:
                self._store.watch_tree(root, self._on_event)
            self._since = self._seen_so_far(self._tap.taken())
            self._stack = stack.pop_all()
        return self

    def events(self, who: Mapping[int, str]) -> list[Event]:
        """The transactions of ZooKeeper so far.

        :param who: session -> process.
        """
        try:
            self._store.sync()
            self._store.get(self._roots[0])
        except StoreError:
            self._tap.observer_lost(LOST)
        self._is_asked = True
        traffic = self._tap.taken()
        found = observed(traffic, who, self._roots, self._chroot, self._since, self._seen_so_far(traffic))
        self.missing = found.problem or somebody_else(found.events)
        return found.events

    def _seen_so_far(self, traffic: Traffic) -> int:
        """The last zxid in its server's latest reply: the observer has received every change up to it."""
        return traffic.alive.get(self._store.session_id, 0)

    def _on_state(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED and not self._is_asked:
            self._tap.observer_lost(LOST)

    def _on_event(self, event: TreeEvent) -> None:
        """Read a possible stranger's data at once; the proxy captures the reply."""
        if event.kind != "deleted":
            with suppress(CoordinatorError):
                self._store.send_get(event.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_asked = True
        self._stack.close()


def somebody_else(events: Sequence[Event]) -> str:
    """The first commit past the proxies, by a stranger; "" without one.

    The checker excuses it as a manual change, so the behaviour of the processes proves nothing.
    """
    strange = [
        op["path"] for event in events if event["event"] == "commit" and event["session"] is None for op in event["ops"]
    ]
    more = f" and {len(strange) - 1} more" if strange[1:] else ""
    return f"a stranger wrote {strange[0]}{more}" if strange else ""
