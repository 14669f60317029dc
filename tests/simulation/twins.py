"""The same requests to the modelled ZooKeeper and to a real one, and what is to be the same about the answers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from tests.simulation.alone import Alone
from tests.simulation.store import SimStore
from zk_group.coordinator.zk.errors import CoordinatorError, Refused
from zk_group.coordinator.zk.security.access import digest_identity
from zk_group.coordinator.zk.store import DENIED, AclStore, Listing, Node, Stat, Store, Watch

SETTLE_S = 0.1
"""After so much virtual time every follower has what the leader has, and every event has come."""

Watches = dict[str, Watch]


class TwinNumbers:
    """Pairs of numbers that stand for the same: they need not be equal, but are in the same order."""

    def __init__(self) -> None:
        self._modelled: list[int] = []
        self._real: list[int] = []

    def pair(self, modelled: int, real: int) -> None:
        """:raises AssertionError: when one of them is paired otherwise, or stands elsewhere in the order."""
        index = bisect_left(self._modelled, modelled)
        if index < len(self._modelled) and self._modelled[index] == modelled:
            assert self._real[index] == real, f"zxid {modelled:#x} was {self._real[index]:#x} and is {real:#x}"
            return
        assert index == 0 or self._real[index - 1] < real, f"zxid {modelled:#x} is {real:#x}: too early"
        assert index == len(self._real) or real < self._real[index], f"zxid {modelled:#x} is {real:#x}: too late"
        self._modelled.insert(index, modelled)
        self._real.insert(index, real)


class Twin:
    """A session with either.

    :ivar fired: what the watches of either were called for and not yet compared: (their name, path).
    """

    def __init__(self, number: int, modelled: SimStore, real: AclStore) -> None:
        self.number = number
        self.modelled = modelled
        self.real = real
        self.is_closed = False
        self.fired: tuple[list[tuple[str, str]], list[tuple[str, str]]] = ([], [])
        self._watches: dict[str, tuple[Watch, Watch]] = {}

    def watches(self, name: str | None) -> tuple[Watch | None, Watch | None]:
        """The watch of that name for either side: the same ones each time. None for none."""
        if name is None:
            return None, None
        if name not in self._watches:
            modelled, real = self.fired
            self._watches[name] = (
                lambda path: modelled.append((name, path)),
                lambda path: real.append((name, path)),
            )
        return self._watches[name]


class Twins:
    """Sessions with the modelled ZooKeeper, each with its twin on a real one.

    :param open_real: opens a session with the real one, which has the credentials of a `user:password`, or none.
    """

    def __init__(self, world: Alone, open_real: Callable[[str], AclStore]) -> None:
        self.world = world
        self.all: list[Twin] = []
        self._open_real = open_real
        self._zxids = TwinNumbers()

    def open(self, digest: str = "") -> Twin:
        """A new session with either.

        :param digest: `user:password` of both; empty for none.
        """
        modelled = self.world.open(identities=[digest_identity(digest)] if digest else [])
        twin = Twin(len(self.all), modelled, self._open_real(digest))
        self.all.append(twin)
        return twin

    def same(self, twin: Twin, ask: Callable[[AclStore, Watch | None], Any], watch: str | None = None) -> Any:
        """Ask both; what the model said, which is what the real one said.

        :param ask: gets a store, and that side's watch of the name `watch`.
        :raises AssertionError: when they differ.
        """
        modelled_watch, real_watch = twin.watches(watch)
        store = twin.modelled
        modelled = _outcome(lambda: self.world.call(lambda: ask(store, modelled_watch), store.process))
        real = _outcome(lambda: ask(twin.real, real_watch))
        self.world.wait(SETTLE_S)
        self._compare(modelled, real)
        return modelled

    def _compare(self, modelled: Any, real: Any) -> None:
        assert type(modelled) is type(real), f"model: {modelled!r}, ZooKeeper: {real!r}"
        if isinstance(modelled, Refused):
            its, reals = (modelled.index, modelled.path, modelled.reason), (real.index, real.path, real.reason)
            assert its == reals, f"model: {its}, ZooKeeper: {reals}"
        elif isinstance(modelled, Node):
            assert modelled.data == real.data
            if modelled.data != DENIED:
                self._compare_stats(modelled.stat, real.stat)
        elif isinstance(modelled, Listing):
            assert (sorted(modelled.found), modelled.denied) == (sorted(real.found), real.denied)
            if not modelled.denied:
                self._compare_stats(modelled.stat, real.stat)
        elif isinstance(modelled, list):
            assert len(modelled) == len(real)
            for one, other in zip(modelled, real, strict=True):
                self._compare(one, other)
        elif not isinstance(modelled, CoordinatorError):
            assert modelled == real, f"model: {modelled!r}, ZooKeeper: {real!r}"

    def _compare_stats(self, modelled: Stat, real: Stat) -> None:
        for field in ("czxid", "mzxid", "pzxid"):
            self._zxids.pair(getattr(modelled, field), getattr(real, field))
        for field in ("version", "cversion", "children"):
            assert getattr(modelled, field) == getattr(real, field), f"{field}: model {modelled}, ZooKeeper {real}"
        owners = [twin.number for twin in self.all if twin.modelled.session_id == modelled.ephemeral_owner]
        real_owners = [twin.number for twin in self.all if twin.real.session_id == real.ephemeral_owner]
        assert owners == real_owners, f"ephemeral_owner: model {modelled}, ZooKeeper {real}"

    def compare_watches(self, is_ordered: bool = True) -> None:
        """Whether the same watches have fired on either side, for each session in the same order.

        :raises AssertionError: when they have not.
        """
        for twin in self.all:
            if not twin.is_closed:
                drain(twin.real)
            modelled, real = ([*one] for one in twin.fired)
            for one in twin.fired:
                one.clear()
            if is_ordered:
                modelled, real = _in_any_order_for_a_path(modelled), _in_any_order_for_a_path(real)
            else:
                modelled, real = sorted(modelled), sorted(real)
            assert modelled == real, f"session {twin.number}: fired in the model {modelled}, by ZooKeeper {real}"

    def close(self, twin: Twin) -> None:
        """End a session on either side."""
        self.same(twin, lambda store, _: store.close())
        twin.is_closed = True
        for one in twin.fired:
            one.clear()  # kazoo calls all watches of a session that is closed, or none: it is a race

    def close_all(self) -> None:
        """End every real session."""
        for twin in self.all:
            twin.real.close()


def drain(store: Store) -> None:
    """Wait until a real store has called the watches of all that had happened when this was called."""
    store.sync()
    store._client.handler.callback_queue.join()  # type: ignore[attr-defined]


def _outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except CoordinatorError as error:
        return error


def _in_any_order_for_a_path(fired: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Several watches on one path are called in no order: by name then, wherever they stand together."""
    ordered: list[tuple[str, str]] = []
    run: list[tuple[str, str]] = []
    for one in [*fired, None]:
        if run and (one is None or one[1] != run[0][1]):
            ordered += sorted(run)
            run = []
        if one is not None:
            run.append(one)
    return ordered
