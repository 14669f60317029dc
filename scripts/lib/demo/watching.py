"""The timeline: elections and group states, observed by watches in ZooKeeper."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from coordinator.planning.rebalance_history import in_order
from coordinator.zk.errors import BadData, StoreError
from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Store
from coordinator.zk.znodes.group_state import GroupState, Rebalance
from coordinator.zk.znodes.paths import COORDINATOR, REBALANCE_PREFIX, SEGMENT_PREFIX, GroupPaths, sequence
from coordinator.zk.znodes.records import CoordinatorRecord


@dataclass(frozen=True)
class Happening:
    """One entry of the timeline; `at` is seconds since the epoch."""

    at: float
    what: str


class Observer:
    """Reads the coordinator's and the group's znodes after each watch event."""

    def __init__(self, zk: str, group: str) -> None:
        self._store: Store = open_kazoo(zk, 10_000)
        self._paths = GroupPaths(group)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._stopping = threading.Event()
        self._happenings: list[Happening] = []
        self.elected: list[tuple[float, CoordinatorRecord]] = []
        self.state = GroupState()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)
        self._thread.start()

    def note(self, what: str) -> float:
        """Add the demo's own entry to the timeline; returns its time."""
        now = time.time()
        with self._lock:
            self._happenings.append(Happening(now, what))
        return now

    def coordinator(self) -> CoordinatorRecord | None:
        """The coordinator."""
        node = self._store.get(COORDINATOR)
        return CoordinatorRecord.parse(COORDINATOR, node.data) if node else None

    def rebalances(self) -> list[Rebalance]:
        """The group's history, the oldest first."""
        listing = self._store.children(self._paths.history)
        names = [name for name in (listing.names if listing else ()) if name.startswith(REBALANCE_PREFIX)]
        names.sort(key=lambda name: sequence(name) or 0)
        paths = [f"{self._paths.history}/{name}" for name in names]
        nodes = self._store.get_many(paths)
        return [Rebalance.parse(path, node.data) for path, node in zip(paths, nodes, strict=True) if node]

    def timeline(self) -> list[Happening]:
        """The timeline so far, in order, with the rebalances of the group's history."""
        with self._lock:
            happenings = list(self._happenings)
        rebalances = in_order(self.rebalances())
        happenings += [Happening(rebalance.started_ms / 1000, summary(rebalance)) for rebalance in rebalances]
        return sorted(happenings, key=lambda happening: happening.at)

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
        """Stop watching."""
        self._stopping.set()
        self._changed.set()
        self._thread.join(5)
        self._store.close()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            try:
                self._look()
            except (StoreError, BadData):
                self._changed.wait(0.1)
                continue
            self._changed.wait(1.0)

    def _look(self) -> None:
        node = self._store.get(COORDINATOR, watch=lambda _: self._changed.set())
        if node is not None:
            record = CoordinatorRecord.parse(COORDINATOR, node.data)
            if not self.elected or self.elected[-1][1].epoch != record.epoch:
                self.elected.append((self.note(f"{record.node} elected, epoch {record.epoch}"), record))
        state = self._store.get(self._paths.state, watch=self._on_state)
        if state is not None:
            self.state = GroupState.parse(self._paths.state, state.data)

    def _on_state(self, path: str) -> None:
        self._changed.set()


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
