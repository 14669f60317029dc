"""A group of the operator's choice, directly in the path of `--zk`: the drill has no chroot there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from coordinator.zk.errors import Refused, UsageError
from coordinator.zk.store import Create, Store
from coordinator.zk.znodes.paths import (
    CONSUMERS,
    COORDINATOR,
    COORDINATOR_EPOCH,
    DRILL,
    GROUPS,
    NODES,
    PAUSED,
    REGIONS,
    Brokers,
    GroupPaths,
    RegionPaths,
    checked_name,
)

from ..base.settings import REGION, Settings
from ..base.waiting import wait_for
from .access import DrillAccess
from .external import CLEARED_S, External, remove_tree

ANOTHER = "another drill runs at --zk: wait until it ends"


class NamedGroup(External):
    """See `Environment` and `External`. The drill has no chroot here, but a group, and a topic with a unique name.

    :param group: the group's name.
    :raises UsageError: also when `group` is not a valid group name.
    """

    def __init__(self, hosts: str, session_timeout_ms: int, group: str, access: DrillAccess | None = None) -> None:
        super().__init__(hosts, session_timeout_ms, access)
        self._group = checked_name("group", group)
        self._topic = f"zk-group-drill-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ').lower()}"
        self._made = (GroupPaths(self._group).root, RegionPaths(REGION).root, Brokers().topic(self._topic))
        self._mine = [f"{self.below}{path}" for path in self._made]
        self.details = {**self.details, "group": self._group, "topic": self._topic}

    @property
    def touches(self) -> Sequence[str]:
        """See `Environment`: every written path, and the roots of written subtrees."""
        shared = [f"{self.below}{path}" for path in (COORDINATOR, COORDINATOR_EPOCH, f"{NODES} and below", DRILL)]
        return [*shared, *(f"{path} and below" for path in self._mine)]

    @property
    def shown(self) -> Sequence[str]:
        """See `Environment`: the znodes of the drill, without its neighbours."""
        return [COORDINATOR, COORDINATOR_EPOCH, *self._made]

    def adjust(self, settings: Settings) -> Settings:
        return replace(super().adjust(settings), group=self._group, topic=self._topic)

    def chroot_of(self, name: str) -> str:
        """See `Environment`: the operator's."""
        return self.below

    def watched(self, chroot: str) -> Sequence[str]:
        return [f"{chroot}{CONSUMERS}", f"{chroot}{Brokers().brokers_path}"]

    @contextmanager
    def cleared(self, chroot: str, keep: bool) -> Iterator[None]:
        """See `Environment`: removes the group's and the topic's subtrees; the epoch stays, since it never goes back.

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
            raise UsageError(
                ANOTHER if refused.reason == "node-exists" else f"the drill cannot start: {refused}"
            ) from None

    def require_no_members(self, store: Store) -> None:
        """
        :param store: a session at the root.
        :raises UsageError: when the path is in use, so that a drill would interfere, or when the group exists.
        """
        if store.get(f"{self.below}{DRILL}") is not None:
            raise UsageError(ANOTHER)
        self._require_no_group(store)

    def _require_no_group(self, store: Store) -> None:
        if store.get(f"{self.below}{COORDINATOR}") is not None:
            raise UsageError(f"a coordinator runs at --zk: stop all nodes there before a drill on {self._group}")
        if store.get(f"{self.below}{PAUSED}") is not None:
            raise UsageError("groups are paused at --zk: resume them before a drill")
        groups = _names(store, f"{self.below}{GROUPS}")
        if self._group in groups:
            raise UsageError(f"group {self._group} exists: give another name")
        if groups:
            raise UsageError(
                f"group {min(groups)} exists at --zk, too: a coordinator manages every group of its path, "
                "so a drill needs a path without other groups"
            )
        if REGION in _names(store, f"{self.below}{REGIONS}"):
            raise UsageError(f"consistent region {REGION} exists at --zk: drills use that name, and remove it")
        if _names(store, f"{self.below}{Brokers().brokers_path}/ids"):
            raise UsageError("a Kafka broker is registered at --zk: drills create no topic beside it")


def _names(store: Store, path: str) -> list[str]:
    listing = store.children(path)
    return list(listing.names) if listing is not None else []
