"""A group of the operator's choice, in the very path of `--zk`: a drill has no chroot of its own there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from ..zk.errors import Refused, UsageError
from ..zk.names import checked_name
from ..zk.paths import (
    CONSUMERS,
    COORDINATOR,
    COORDINATOR_EPOCH,
    DRILL,
    GROUPS,
    PAUSED,
    REGIONS,
    Brokers,
    GroupPaths,
    RegionPaths,
)
from ..zk.store import Create, Store
from .own import CLEARED_S, Own, remove_tree
from .settings import REGION, Settings
from .waiting import wait_for

ANOTHER = "another drill runs at --zk: wait until it has ended"


class Named(Own):
    """See `Ground` and `Own`. A drill has no chroot of its own here, but a group, and a topic that nobody else has.

    :param group: its name.
    :raises UsageError: also when it cannot name a group.
    """

    def __init__(self, hosts: str, session_timeout_ms: int, group: str) -> None:
        super().__init__(hosts, session_timeout_ms)
        self._group = checked_name("group", group)
        self._topic = f"zk-group-drill-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ').lower()}"
        self._made = (GroupPaths(self._group).root, RegionPaths(REGION).root, Brokers().topic(self._topic))
        self._mine = [f"{self.below}{path}" for path in self._made]
        self.told = {**self.told, "group": self._group, "topic": self._topic}

    @property
    def touches(self) -> Sequence[str]:
        """See `Ground`: every path that a drill writes, and those below which it does."""
        shared = [f"{self.below}{path}" for path in (COORDINATOR, COORDINATOR_EPOCH, DRILL)]
        return [*shared, *(f"{path} and below" for path in self._mine)]

    @property
    def shown(self) -> Sequence[str]:
        """See `Ground`: what the drill made; nothing of its neighbours."""
        return [COORDINATOR, COORDINATOR_EPOCH, *self._made]

    def adjust(self, settings: Settings) -> Settings:
        """See `Ground`."""
        return replace(super().adjust(settings), group=self._group, topic=self._topic)

    def chroot_of(self, name: str) -> str:
        """See `Ground`: the operator's."""
        return self.below

    def watched(self, chroot: str) -> Sequence[str]:
        """See `Ground`."""
        return [f"{chroot}{CONSUMERS}", f"{chroot}{Brokers().brokers_path}"]

    @contextmanager
    def cleared(self, chroot: str, keep: bool) -> Iterator[None]:
        """See `Ground`: the group and the topic go with all below them; the epoch stays, since it may never go back.

        :raises UsageError: when somebody else is there, or the group itself.
        """
        with self.opened() as claim:
            self._claim(claim)
            self._require_no_group(claim)
            try:
                yield
            finally:
                if not keep:
                    with self.opened() as store:  # the claim's own may be over
                        for root in self._mine:
                            wait_for(partial(remove_tree, store, root), CLEARED_S, f"{root} is removed from ZooKeeper")

    def _claim(self, store: Store) -> None:
        """Keep every other drill from this path, for as long as the session lasts."""
        if store.get(f"{self.below}{CONSUMERS}") is None:
            with suppress(Refused):  # somebody else has made it meanwhile
                store.commit([Create(f"{self.below}{CONSUMERS}")])
        try:
            store.commit([Create(f"{self.below}{DRILL}", ephemeral=True)])
        except Refused as refused:
            raise UsageError(
                ANOTHER if refused.reason == "node-exists" else f"a drill cannot begin: {refused}"
            ) from None

    def require_nobody(self, store: Store) -> None:
        """
        :param store: a session at the root.
        :raises UsageError: when somebody is there, whom a drill would disturb, or the group, which it would remove.
        """
        if store.get(f"{self.below}{DRILL}") is not None:
            raise UsageError(ANOTHER)
        self._require_no_group(store)

    def _require_no_group(self, store: Store) -> None:
        if store.get(f"{self.below}{COORDINATOR}") is not None:
            raise UsageError(f"somebody coordinates at --zk: stop all nodes there before a drill on {self._group}")
        if store.get(f"{self.below}{PAUSED}") is not None:
            raise UsageError("somebody has paused groups at --zk: resume them before a drill")
        groups = _names(store, f"{self.below}{GROUPS}")
        if self._group in groups:
            raise UsageError(f"group {self._group} exists: name one that does not")
        if groups:
            raise UsageError(
                f"group {min(groups)} stands at --zk, too: a coordinator looks after every group of its path, "
                "so drills run where there is no other"
            )
        if REGION in _names(store, f"{self.below}{REGIONS}"):
            raise UsageError(f"consistent region {REGION} stands at --zk: drills use that name, and remove it")
        if _names(store, f"{self.below}{Brokers().brokers_path}/ids"):
            raise UsageError("a real Kafka is registered at --zk, and a drill makes no topic beside it")


def _names(store: Store, path: str) -> list[str]:
    listing = store.children(path)
    return list(listing.names) if listing is not None else []
