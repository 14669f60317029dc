"""The observer of a drill: a session that is told of every change, behind a proxy that hears what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from ..zk.errors import CoordinatorError, StoreError
from ..zk.kazoo_store import open_tree_store
from ..zk.store import SessionState, TreeEvent, TreeStore
from .ground import connect_string
from .histories import Event
from .observed import observed
from .proxy import Proxy
from .tap import Tap, Traffic

SESSION_MS = 30_000
LOST = "the observer has lost its connection to ZooKeeper: what happened from then on is not known"


class Observer:
    """Watches everything below some znodes, from when it is entered until it is asked what it has seen.

    :param addresses: of the servers.
    :param tap: hears the processes of the drill; and, from now on, this session.
    :param roots: whole paths; what stands below them is watched.
    :param chroot: what events leave out of their paths.
    :ivar proxies: before each server.
    :ivar missing: why what happened is not known, or not the drill's alone; "" when it is both.
    """

    def __init__(self, addresses: Sequence[str], tap: Tap, roots: Sequence[str], chroot: str) -> None:
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
        :raises ZooKeeperUnreachable: when nobody answers.
        :raises StoreError: when the server has no such watches.
        """
        with ExitStack() as stack:
            proxies = [stack.enter_context(Proxy(one, self._tap, is_observer=True)) for one in self._addresses]
            self.proxies = proxies
            self._store: TreeStore = open_tree_store(connect_string([each.hosts for each in proxies], ""), SESSION_MS)
            stack.callback(self._store.close)
            self._store.add_listener(self._on_state)
            for root in self._roots:
                self._store.watch_tree(root, self._on_event)
            self._since = self._seen_so_far(self._tap.taken())
            self._stack = stack.pop_all()
        return self

    def events(self, who: Mapping[int, str]) -> list[Event]:
        """What ZooKeeper has done until now.

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
        """The last transaction that its server had done when it answered last: it was told of all up to that."""
        return traffic.alive.get(self._store.session_id, 0)

    def _on_state(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED and not self._is_asked:
            self._tap.observer_lost(LOST)

    def _on_event(self, event: TreeEvent) -> None:
        """Read at once what may be somebody else's; the answer is heard on its way."""
        if event.kind != "deleted":
            with suppress(CoordinatorError):
                self._store.send_get(event.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_asked = True
        self._stack.close()


def somebody_else(events: Sequence[Event]) -> str:
    """What was committed past every proxy, by nobody of the drill; "" when nothing was.

    The checker takes it for a hand's, whom it excuses, and whatever the processes did to it then shows nothing.
    """
    strange = [
        op["path"] for event in events if event["event"] == "commit" and event["session"] is None for op in event["ops"]
    ]
    more = f" and {len(strange) - 1} more" if strange[1:] else ""
    return f"somebody else wrote {strange[0]}{more}" if strange else ""
