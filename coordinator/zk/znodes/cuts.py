"""The complete checkpoints of a region: a group's part of one, and cuts in the order of its segments (sources R24)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from ..errors import BadData
from ..runtime import Runtime
from ..store import Store, existing_nodes, nodes_at
from ..values import in_chunks
from .group_state import GroupState
from .partitions import TopicPartition
from .paths import GroupPaths, RegionPaths, checkpoint_number, contribution_name
from .regions import COMPLETED, Checkpoint, Contribution

REGION_S = 10.0
"""Seconds for which a group's region is cached: no checkpoint of a new region has completed before."""


class Cut(NamedTuple):
    """A complete checkpoint: it contains exactly the segments whose czxid is below its own."""

    sequence: int
    czxid: int


class GroupCuts:
    """The complete checkpoints of a group's region. Each is read once: it never changes.

    The region is read again every few seconds only: a state may be large.

    :ivar region: as last read; empty without one.
    """

    def __init__(self, runtime: Runtime, group: str) -> None:
        self._runtime = runtime
        self._group = group
        self._asked_at = float("-inf")
        self.region = ""
        self._known: dict[int, Cut] = {}
        self._life = 0

    def read(self, store: Store, is_asked: bool = False) -> tuple[Cut, ...]:
        """The retained cuts, in order; none for a group without a region.

        :param is_asked: whether to read the region in any case.
        :raises StoreError: when there was no reply.
        :raises BadData: when the group's state cannot be read.
        """
        now = self._runtime.monotonic()
        if is_asked or now - self._asked_at >= REGION_S:
            path = GroupPaths(self._group).state
            node = store.get(path)
            bound = GroupState.parse(path, node.data).region if node is not None else None
            self._asked_at, before, self.region = now, self.region, bound.name if bound is not None else ""
            if self.region != before:
                self._known, self._life = {}, 0
        return self._cuts(store, RegionPaths(self.region)) if self.region else ()

    def _cuts(self, store: Store, paths: RegionPaths) -> tuple[Cut, ...]:
        listing = store.children(paths.checkpoints)
        numbers = sorted(filter(None, map(checkpoint_number, listing.names if listing is not None else ())))
        life = listing.stat.czxid if listing is not None else 0
        if life != self._life:  # a recreated region counts from 1 again
            self._life, self._known = life, {}
        newest = max(self._known, default=0)  # one at a time: below it none completes any more
        unknown = [number for number in numbers if number > newest]
        nodes = existing_nodes(store, unknown, lambda number: paths.end(number, COMPLETED))
        cuts = {number: Cut(number, node.stat.czxid) for number, _, node in nodes}
        self._known = {number: cut for number, cut in (self._known | cuts).items() if number in set(numbers)}
        return tuple(self._known[number] for number in sorted(self._known))


def checkpoint_named(value: str) -> int:
    """The sequence in `checkpoint:42`; 0 for any other text."""
    prefix, _, number = value.partition(":")
    is_number = number.isascii() and number.isdigit() and len(number) <= 10
    return int(number) if prefix == "checkpoint" and is_number else 0


CONTRIBUTIONS_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class GroupCut:
    """A group's part of a complete checkpoint, which never changes.

    :ivar sources: partition -> the name of its contribution.  :ivar names: of all contributions.
    """

    sources: Mapping[TopicPartition, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


NO_CUT = GroupCut()


def read_cut(store: Store, paths: RegionPaths, sequence: int, group: str) -> GroupCut:
    """Read a group's part of a complete checkpoint: its participants' contributions, then copies from the cut before.

    Other znodes below the checkpoint are ignored.

    :raises BadData: when the checkpoint, or a contribution, cannot be read.
    """
    prefix = contribution_name(group, "")
    node, listing = store.get(paths.checkpoint(sequence)), store.children(paths.checkpoint(sequence))
    if node is None or listing is None:
        raise BadData(f"{paths.checkpoint(sequence)} is missing")
    checkpoint = Checkpoint.parse(paths.checkpoint(sequence), node.data)
    participants = checkpoint.participants.get(group)
    contributors = [name[len(prefix) :] for name in listing.names if name.startswith(prefix)]
    if missing := sorted((participants or {}).keys() - set(contributors)):
        raise BadData(f"{paths.contribution(sequence, group, missing[0])} is missing")
    copied = checkpoint.away.get(group, ())
    known = [one for one in contributors if participants is None or "~" in one or one in participants or one in copied]
    names = sorted(known, key=lambda name: ("~" not in name, name))
    sources: dict[TopicPartition, str] = {}
    for name, given in contributions(store, paths, sequence, group, names):
        sources |= dict.fromkeys(given.offsets, name)
    return GroupCut(sources, tuple(sorted(names)))


def contributions(
    store: Store, paths: RegionPaths, sequence: int, group: str, names: Sequence[str], most: int = CONTRIBUTIONS_AT_ONCE
) -> Iterator[tuple[str, Contribution]]:
    """The contributions of a group's members to a complete checkpoint, with their names.

    :param most: maximum number to read at once.
    :raises BadData: when one is missing, or cannot be read.
    """
    for batch in in_chunks(names, most):
        for name, path, node in nodes_at(store, batch, partial(paths.contribution, sequence, group)):
            if node is None:
                raise BadData(f"{path} is missing")
            yield name, Contribution.parse(path, node.data)
