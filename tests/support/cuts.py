"""A consistent region of slots, made by hand: group `g` is in region `r`, and checkpoints complete on request."""

from __future__ import annotations

from zk_group.coordinator.zk.store import Create, Delete, SetData, Store
from zk_group.coordinator.zk.update import ensure
from zk_group.coordinator.zk.znodes.group_state import GroupState
from zk_group.coordinator.zk.znodes.paths import GroupPaths, RegionPaths
from zk_group.coordinator.zk.znodes.regions import COMPLETED, SLOTS, Checkpoint, CheckpointEnd, GroupRegion, Region

REGION = RegionPaths("r")


class HandMadeRegion:
    """Region `r` of group `g`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._number = 0
        group = GroupPaths("g")
        ensure(store, [*group.skeleton, *REGION.skeleton])
        state = GroupState(region=GroupRegion("r")).to_bytes()
        there = store.get(group.state) is not None
        store.commit([SetData(group.state, state) if there else Create(group.state, state)])
        store.commit([Create(REGION.root, Region(SLOTS, groups=("g",)).to_bytes()), Create(REGION.checkpoints)])

    def cut(self, end: str = COMPLETED) -> int:
        """One more complete checkpoint, or one that is `ABORTED`; its number."""
        self._number += 1
        path = REGION.checkpoint(self._number)
        self._store.commit([Create(path, Checkpoint("a test", 1, 0, {}).to_bytes())])
        self._store.commit([Create(REGION.end(self._number, end), CheckpointEnd().to_bytes())])
        return self._number

    def again(self) -> None:
        """As a region is that was removed and made again."""
        self._number = 0
        self._store.commit([Delete(REGION.checkpoints)])
        self._store.commit([Create(REGION.checkpoints)])

    def czxid(self, number: int) -> int:
        node = self._store.get(REGION.end(number, COMPLETED))
        assert node is not None
        return node.stat.czxid

    def retire(self, number: int) -> None:
        """As the coordinator removes a checkpoint that is kept no more."""
        self._store.commit([Delete(REGION.end(number, COMPLETED))])
        self._store.commit([Delete(REGION.checkpoint(number))])
