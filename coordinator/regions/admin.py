"""What operators ask about consistent regions, and of them. Reads and requests only: the coordinator acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..zk.errors import BadData, CoordinatorError, Refused, UsageError
from ..zk.names import is_name, shown
from ..zk.paths import REGIONS, GroupPaths, RegionPaths, checkpoint_number
from ..zk.regions import (
    ABANDONED,
    ABORTED,
    CHECKPOINT,
    COMPLETED,
    ENDS,
    INITIAL,
    SLOTS,
    Checkpoint,
    CheckpointEnd,
    Contribution,
    Region,
    RegionRequest,
    is_checkpoint,
)
from ..zk.state import GroupState
from ..zk.store import Create, SetData, Store

OPEN = "open"


class RegionNotFound(CoordinatorError):
    """There is no region of this name."""


@dataclass(frozen=True, slots=True)
class ShownCheckpoint:
    """A checkpoint as it stands.

    :ivar state: `open`, or how it ended.  :ivar contributions: names of those who have contributed.
    """

    sequence: int
    state: str
    checkpoint: Checkpoint | None
    end: CheckpointEnd | None
    contributions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShownRegion:
    """A region with its checkpoints, the oldest first.

    :ivar region: None when it cannot be read.
    :ivar members: group -> members in its target.
    """

    name: str
    region: Region | None
    members: Mapping[str, int]
    checkpoints: Sequence[ShownCheckpoint] = ()

    @property
    def state(self) -> str:
        return self.region.state if self.region is not None else "unreadable"


def region_names(store: Store) -> list[str]:
    """Every region."""
    listing = store.children(REGIONS)
    return sorted(name for name in (listing.names if listing is not None else ()) if is_name(name))


def read_region(store: Store, name: str) -> ShownRegion:
    """
    :raises RegionNotFound: when there is none.
    """
    paths = RegionPaths(name)
    node = store.get(paths.root) if is_name(name) else None
    if node is None:
        known = ", ".join(region_names(store)) or "none"
        raise RegionNotFound(f"there is no consistent region {shown(name)}; there are: {known}")
    try:
        region = Region.parse(paths.root, node.data)
    except BadData:
        return ShownRegion(name, None, {})
    listing = store.children(paths.checkpoints)
    numbers = sorted(filter(None, map(checkpoint_number, listing.names if listing is not None else ())))
    return ShownRegion(name, region, _members(store, region), [_checkpoint(store, paths, n) for n in numbers])


def _members(store: Store, region: Region) -> dict[str, int]:
    nodes = store.get_many([GroupPaths(group).state for group in region.groups])
    found = {}
    for group, node in zip(region.groups, nodes, strict=True):
        try:
            found[group] = len(GroupState.parse(group, node.data).target) if node is not None else 0
        except BadData:
            found[group] = 0
    return found


def _checkpoint(store: Store, paths: RegionPaths, sequence: int) -> ShownCheckpoint:
    node, listing = store.get(paths.checkpoint(sequence)), store.children(paths.checkpoint(sequence))
    names = listing.names if listing is not None else []
    how = next((each for each in (ABANDONED, ABORTED, COMPLETED) if each in names), OPEN)
    ended = store.get(paths.end(sequence, how)) if how != OPEN else None
    try:
        checkpoint = Checkpoint.parse(paths.checkpoint(sequence), node.data) if node is not None else None
        end = CheckpointEnd.parse(how, ended.data) if ended is not None else None
    except BadData:
        checkpoint, end = None, None
    given = tuple(sorted(name for name in names if name not in ENDS))
    return ShownCheckpoint(sequence, how, checkpoint, end, given)


def read_contributions(store: Store, region: str, sequence: int) -> dict[str, Contribution | None]:
    """Name -> contribution of one checkpoint, None for one that cannot be read."""
    paths = RegionPaths(region)
    found: dict[str, Contribution | None] = {}
    for name in _checkpoint(store, paths, sequence).contributions:
        path = f"{paths.checkpoint(sequence)}/{name}"
        node = store.get(path)
        try:
            found[name] = Contribution.parse(path, node.data) if node is not None else None
        except BadData:
            found[name] = None
    return found


def checked_target(found: ShownRegion, sequence: int | None) -> int:
    """The checkpoint that a reset goes back to.

    :param sequence: None for the one that the region stands on.
    :raises UsageError: when there is no such complete checkpoint, and for a region of slots.
    """
    if found.region is not None and found.region.kind == SLOTS:
        raise UsageError(
            f"a region of slots is never reset, and {found.name} is one: start queries at a checkpoint instead "
            "(startingSegments=checkpoint:NUMBER)"
        )
    to = (found.region.sequence if found.region is not None else INITIAL) if sequence is None else sequence
    complete = [each.sequence for each in found.checkpoints if each.state == COMPLETED]
    if to != INITIAL and to not in complete:
        there = ", ".join(map(str, complete)) or "none"
        raise UsageError(f"region {found.name} has no complete checkpoint {to}; it has: {there} (or --to-initial)")
    return to


def request(store: Store, region: str, asked: RegionRequest) -> None:
    """Ask the coordinator for something; it answers by removing the request.

    :raises UsageError: when another request stands.
    :raises RegionNotFound: when there is no such region.
    """
    paths = RegionPaths(region)
    standing = store.get(paths.request)
    try:
        if standing is not None and asked.what != CHECKPOINT and is_checkpoint(paths.request, standing.data):
            store.commit([SetData(paths.request, asked.to_bytes(), standing.stat.version)])
        else:
            store.commit([Create(paths.request, asked.to_bytes())])
    except Refused as refused:
        if refused.reason == "node-exists":
            raise UsageError(
                f"a request for region {region} stands already, and is not answered yet: is a coordinator elected? "
                "(zk-coordinator status)"
            ) from refused
        raise RegionNotFound(f"there is no consistent region {shown(region)}") from refused
