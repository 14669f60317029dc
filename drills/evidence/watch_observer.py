"""The observer of a drill: a session with a recursive watch, which gets each change of a znode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from coordinator.zk.errors import BadData, StoreError
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import SessionState, TreeEvent

from ..environments.access import OPERATOR, DrillAccess
from ..environments.base import connect_string
from ..faults.proxy import ZxidClock
from .histories import Event
from .reconstruction import Writes, observed, writes_in

SESSION_MS = 30_000
LOST = "the observer has lost its connection to ZooKeeper: later changes are unknown"


class WatchObserver:
    """Watches the subtrees of some znodes, from `__enter__` until its events are read.

    :param addresses: of the servers.
    :param clock: sees what the processes of the drill see, and this session's events.
    :param roots: the full paths of the watched subtrees.
    :param chroot: the prefix that events omit from their paths.
    :param writes: the folder in which every session of the drill records its commits.
    :param access: how it authenticates.
    :ivar seen: the events so far.  :ivar is_lost: whether it gets no more.
    :ivar missing: why changes are unknown; "" otherwise.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        clock: ZxidClock,
        roots: Sequence[str],
        chroot: str,
        writes: str,
        access: DrillAccess | None = None,
    ) -> None:
        self._access = access or DrillAccess()
        self._addresses = addresses
        self._clock = clock
        self._roots = roots
        self._chroot = chroot
        self._writes = Path(writes)
        self._stack = ExitStack()
        self.seen: list[TreeEvent] = []
        self.is_lost = self._is_over = False
        self._since = 0
        self.missing = ""

    def __enter__(self) -> Self:
        """
        :raises ZooKeeperUnreachable: when no server answers.
        :raises StoreError: when the server has no such watches.
        """
        with ExitStack() as stack:
            self._store = open_kazoo(
                connect_string(self._addresses, ""),
                SESSION_MS,
                make_chroot=False,
                access=self._access.to_servers(OPERATOR),
            )
            stack.callback(self._close)
            self._store.add_listener(self._on_state)
            for root in self._roots:
                self._store.watch_tree(root, self._on_event)
            self._since = self._store.last_zxid
            self._stack = stack.pop_all()
        return self

    def events(self, who: Mapping[int, str]) -> list[Event]:
        """The transactions of ZooKeeper until now; it watches no longer.

        :param who: session -> process.
        """
        until = 0
        try:
            self._store.sync()
            self._store.get(self._roots[0])
            until = self._store.last_zxid  # events up to it came before the answer
        except StoreError:
            self.is_lost = True
        self._close()
        if self.is_lost:
            until = self.seen[-1].zxid - 1 if self.seen else self._since
        try:
            writes, problem = writes_in(self._writes, self._chroot), LOST if self.is_lost else ""
        except (BadData, OSError) as error:
            writes, problem, until = Writes(), str(error), 0
        found = observed(writes, self.seen, self._clock, who, self._chroot, self._since, until)
        if problem and not found.problem:
            found.end(self._clock.at(until + 1), problem)
        self.missing = found.problem
        return found.events

    def _on_state(self, state: SessionState) -> None:
        if state is not SessionState.CONNECTED and not self._is_over:
            self.is_lost = True

    def _on_event(self, event: TreeEvent) -> None:
        self._clock.saw(event.zxid)
        self.seen.append(event)

    def _close(self) -> None:
        """End the session; its events so far have arrived when this returns."""
        self._is_over = True
        self._store.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
