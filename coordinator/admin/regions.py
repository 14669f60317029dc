"""Operator commands for consistent regions. Reads and requests only: the coordinator acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..zk.errors import CoordinatorError, OutcomeUnknown, Refused, StoreError, UsageError
from ..zk.store import Create, SetData, Store
from ..zk.update import Failure, retried
from ..zk.znodes import regions
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.paths import REGIONS, GroupPaths, RegionPaths, checkpoint_number, is_name, shown
from ..zk.znodes.regions import RegionRequest, is_replaced
from .groups import Reading

OPEN = "open"


class RegionNotFound(CoordinatorError):
    """The region does not exist."""


@dataclass(frozen=True, slots=True)
class ShownCheckpoint:
    """A checkpoint of a region.

    :ivar state: `open`, or its end.  :ivar contributions: names of the contributors.
    """

    sequence: int
    state: str
    checkpoint: regions.Checkpoint | None
    end: regions.CheckpointEnd | None
    contributions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShownRegion:
    """A region with its checkpoints, oldest first.

    :ivar region: None when it cannot be read.
    :ivar members: group -> members in its target.
    :ivar cut_ms: completion time of the checkpoint that it would reset to; None for the initial state.
    :ivar cut_reset: number of the reset before that checkpoint; None when it is not known.
    """

    name: str
    region: regions.Region | None
    members: Mapping[str, int]
    checkpoints: Sequence[ShownCheckpoint] = ()
    cut_ms: int | None = None
    cut_reset: int | None = None

    @property
    def state(self) -> str:
        return self.region.state if self.region is not None else "unreadable"


def existing_region(reading: Reading, name: str) -> ShownRegion:
    """
    :raises RegionNotFound: when it does not exist.
    """
    if not is_name(name) or reading.store.get(RegionPaths(name).root) is None:
        known = ", ".join(reading.names(REGIONS)) or "none"
        raise RegionNotFound(f"there is no consistent region {shown(name)}; there are: {known}")
    return read_region(reading, name)


def read_region(reading: Reading, name: str, newest: int | None = None) -> ShownRegion:
    """Read a region.

    :param newest: number of its newest checkpoints to read; all of them by default.
    """
    paths = RegionPaths(name)
    region = reading.parsed(paths.root, regions.Region.parse)
    if region is None:
        return ShownRegion(name, None, {})
    states = reading.parsed_many([GroupPaths(group).state for group in region.groups], GroupState.parse)
    members = {group: len(state.target) if state else 0 for group, state in zip(region.groups, states, strict=True)}
    listing = reading.store.children(paths.checkpoints) if newest != 0 else None
    numbers = sorted(filter(None, map(checkpoint_number, listing.names if listing is not None else ())))
    checkpoints = _checkpoints(reading, paths, numbers if newest is None else numbers[-newest:])
    if region.sequence == regions.INITIAL:
        return ShownRegion(name, region, members, checkpoints)
    cut = reading.parsed(paths.end(region.sequence, regions.COMPLETED), regions.CheckpointEnd.parse)
    begun = reading.parsed(paths.checkpoint(region.sequence), regions.Checkpoint.parse)
    cut_ms, cut_reset = cut.at_ms if cut is not None else None, begun.reset if begun is not None else None
    return ShownRegion(name, region, members, checkpoints, cut_ms, cut_reset)


def _checkpoints(reading: Reading, paths: RegionPaths, numbers: Sequence[int]) -> list[ShownCheckpoint]:
    where = [paths.checkpoint(number) for number in numbers]
    checkpoints = reading.parsed_many(where, regions.Checkpoint.parse)
    listings = reading.store.children_many(where)
    below = [listing.names if listing is not None else [] for listing in listings]
    states = [
        next((each for each in (regions.ABANDONED, regions.ABORTED, regions.COMPLETED) if each in names), OPEN)
        for names in below
    ]
    ended = [paths.end(number, how) for number, how in zip(numbers, states, strict=True) if how != OPEN]
    ends = dict(zip(ended, reading.parsed_many(ended, regions.CheckpointEnd.parse), strict=True))
    return [
        ShownCheckpoint(
            number, how, checkpoint, ends.get(paths.end(number, how)), tuple(sorted(set(names) - set(regions.ENDS)))
        )
        for number, how, checkpoint, names in zip(numbers, states, checkpoints, below, strict=True)
    ]


def read_contributions(reading: Reading, region: str, sequence: int) -> dict[str, regions.Contribution | None]:
    """Name -> contribution of one checkpoint, None for an unreadable one."""
    paths = RegionPaths(region)
    listing = reading.store.children(paths.checkpoint(sequence))
    names = sorted(set(listing.names if listing is not None else ()) - set(regions.ENDS))
    where = [f"{paths.checkpoint(sequence)}/{name}" for name in names]
    return dict(zip(names, reading.parsed_many(where, regions.Contribution.parse), strict=True))


def checked_target(found: ShownRegion, sequence: int | None) -> int:
    """The checkpoint that a reset returns to.

    :param sequence: None for the region's current one.
    :raises UsageError: when there is no such complete checkpoint, and for a region of slots.
    """
    if found.region is not None and found.region.kind == regions.SLOTS:
        raise UsageError(
            f"a region of slots is never reset, and {found.name} is one: start queries at a checkpoint instead "
            "(startingSegments=checkpoint:NUMBER)"
        )
    to = (found.region.sequence if found.region is not None else regions.INITIAL) if sequence is None else sequence
    complete = [each.sequence for each in found.checkpoints if each.state == regions.COMPLETED]
    if to != regions.INITIAL and to not in complete:
        there = ", ".join(map(str, complete)) or "none"
        raise UsageError(f"region {found.name} has no complete checkpoint {to}; it has: {there} (or --to-initial)")
    return to


def abandoned_by(found: ShownRegion, sequence: int) -> list[int]:
    """The complete checkpoints after `sequence`, which a reset to it abandons."""
    return [each.sequence for each in found.checkpoints if each.state == regions.COMPLETED and each.sequence > sequence]


def request(store: Store, region: str, asked: RegionRequest) -> None:
    """Send a request to the coordinator, which answers by removing it.

    :raises UsageError: when another request is pending.
    :raises StoreError: when the reply was lost, and the request is not there: it may have been answered.
    :raises RegionNotFound: when there is no such region.
    """
    paths = RegionPaths(region)

    def attempt(before: Failure | None) -> None:
        if isinstance(before, Refused) and store.get(paths.root) is None:
            raise RegionNotFound(f"there is no consistent region {shown(region)}") from before
        standing, data = store.get(paths.request), asked.to_bytes()
        if isinstance(before, OutcomeUnknown):
            if standing is not None and standing.data == data:
                return
            # It may have been answered already: sent again, a reset would come twice.
            raise StoreError(
                f"the reply to the request for region {region} was lost: look at `zk-coordinator regions describe "
                f"{region}` before you send it again"
            ) from before
        if standing is not None and not is_replaced(paths.request, standing.data, asked):
            raise UsageError(
                f"a request for region {region} is already pending, without an answer: is a coordinator elected? "
                "(zk-coordinator status)"
            )
        version = standing.stat.version if standing is not None else 0
        store.commit([Create(paths.request, data) if standing is None else SetData(paths.request, data, version)])

    retried(store, attempt, lambda: f"{paths.request} keeps changing: try again")
