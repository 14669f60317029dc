"""The timeline: elections and group states, as seen in ZooKeeper."""

from __future__ import annotations

import time
from contextlib import suppress

from zk_group.coordinator.admin.groups import Reading, read_history
from zk_group.coordinator.zk.errors import BadData, StoreError
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.group_state import GroupState, Rebalance
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, SEGMENT_PREFIX, GroupPaths
from zk_group.coordinator.zk.znodes.records import CoordinatorRecord


class Observer:
    """Reads the coordinator's and the group's znodes at each `look`.

    :ivar elected: each election: its time on ZooKeeper's clock, in seconds, and the coordinator.
    :ivar state: the group's state.
    """

    def __init__(self, zk: str, group: str) -> None:
        self._store: Store = open_kazoo(zk, 10_000)
        self._group = group
        self._paths = GroupPaths(group)
        self._entries: list[tuple[float, str]] = []
        self.elected: list[tuple[float, CoordinatorRecord]] = []
        self.state = GroupState()

    def look(self) -> None:
        """Read them, unless ZooKeeper is unavailable."""
        with suppress(StoreError, BadData):
            node = self._store.get(COORDINATOR)
            if node is not None:
                record, at = CoordinatorRecord.parse(COORDINATOR, node.data), node.stat.ctime_ms / 1000
                if not self.elected or self.elected[-1][1].epoch != record.epoch:
                    self.elected.append((at, record))
                    self._entries.append((at, f"{record.node} elected, epoch {record.epoch}"))
            state = self._store.get(self._paths.state)
            if state is not None:
                self.state = GroupState.parse(self._paths.state, state.data)

    def note(self, what: str) -> float:
        """Add the demo's own entry to the timeline; returns its time."""
        self._entries.append((time.time(), what))
        return self._entries[-1][0]

    def rebalances(self) -> list[Rebalance]:
        """The group's history, the oldest first."""
        return read_history(Reading(self._store), self._group)

    def timeline(self) -> list[tuple[float, str]]:
        """The entries so far with their times (seconds since the epoch), and the rebalances of the group's history."""
        rebalances = [(rebalance.started_ms / 1000, summary(rebalance)) for rebalance in self.rebalances()]
        return sorted([*self._entries, *rebalances], key=lambda entry: entry[0])

    def situation(self) -> str:
        """The group's state, in one line."""
        state = self.state
        try:
            listing = self._store.children(self._paths.segments)
        except StoreError as error:
            return f"the group is unreadable ({error})"
        sealed = sum(name.startswith(SEGMENT_PREFIX) for name in listing.names) if listing else 0
        return (
            f"the group is {state.state or 'missing'} at generation {state.generation} with {len(state.target)} "
            f"consumers, and has sealed {sealed} segments"
        )

    def close(self) -> None:
        """End its session."""
        self._store.close()


def summary(rebalance: Rebalance) -> str:
    """One line: generation, trigger, partitions moved, standstill."""
    if rebalance.standstill_ms is not None:
        standstill = f"longest standstill {rebalance.standstill_ms} ms at most"
    elif rebalance.replaced_by is not None:
        standstill = f"replaced by generation {rebalance.replaced_by} before its end"
    else:
        standstill = "no standstill" if rebalance.finished_ms is not None else "unfinished"
    return (
        f"rebalance: generation {rebalance.generation} ({rebalance.trigger}), "
        f"{rebalance.moved} partitions moved, {standstill}"
    )
