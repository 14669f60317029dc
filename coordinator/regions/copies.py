"""The contributions that a checkpoint copies from the cut before: those of members and partitions without any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..zk.errors import BadData
from ..zk.store import Store
from ..zk.znodes.cuts import GroupCut, read_cut
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import RegionPaths, contribution_name
from ..zk.znodes.regions import CONSUMERS, INITIAL, Contribution
from .plan import RegionSnapshot


class Copies:
    """The region's current cut: known from its contributions, and read only where it is not."""

    def __init__(self, store: Store, paths: RegionPaths) -> None:
        self._store = store
        self._paths = paths
        self._known: tuple[int, dict[str, GroupCut]] = INITIAL, {}

    def completed(self, snapshot: RegionSnapshot, sequence: int, copies: Sequence[tuple[str, Contribution]]) -> None:
        """The open checkpoint is complete, with these copies."""
        self._known = sequence, {} if copies else _cuts(snapshot)

    def copies(self, snapshot: RegionSnapshot) -> Iterator[tuple[str, Contribution]]:
        """The parts of the cut before for which there is no contributor.

        These are groups without members, static members that are away, and unassigned partitions.

        :raises BadData: when the cut is unreadable.
        """
        if snapshot.region.kind != CONSUMERS:
            return
        before = snapshot.region.sequence
        present = _cuts(snapshot)
        for group in snapshot.region.groups:
            if not snapshot.region.cut_of(group):
                continue
            cut = self._cut(before, group)
            run = present[group].sources if group in present else {}
            left: dict[str, set[TopicPartition]] = {}
            for part, name in cut.sources.items():
                if part not in run:
                    left.setdefault(name, set()).add(part)
            away = snapshot.checkpoint.away.get(group, ()) if snapshot.checkpoint is not None else ()
            names = [name for name in cut.names if group not in present or name in left or name in away]
            paths = [self._paths.contribution(before, group, name) for name in names]
            for name, path, node in zip(names, paths, self._store.get_many(paths), strict=True):
                if node is None:
                    raise BadData(f"{path} is missing")
                given, mine = Contribution.parse(path, node.data), left.get(name, set())
                if group not in present:
                    yield contribution_name(group, name), given
                elif name in away:
                    yield contribution_name(group, name), _only(given, mine)
                else:
                    # A copied one keeps its name, which is unique in the cut before.
                    copied = name if "~" in name else f"{name}~{before}"
                    yield contribution_name(group, copied), replace(_only(given, mine), member_state="")

    def _cut(self, sequence: int, group: str) -> GroupCut:
        """A group's part of a cut, which never changes."""
        if self._known[0] != sequence:
            self._known = sequence, {}
        if group not in self._known[1]:
            self._known[1][group] = read_cut(self._store, self._paths, sequence, group)
        return self._known[1][group]


def _cuts(snapshot: RegionSnapshot) -> dict[str, GroupCut]:
    """Each group's part of the open checkpoint: the contributions of its participants."""
    groups = snapshot.checkpoint.participants if snapshot.checkpoint is not None else {}
    found: dict[str, GroupCut] = {}
    for group, members in groups.items():
        given = {name: snapshot.contributions.get((group, name)) for name in sorted(members)}
        sources = {part: name for name, each in given.items() if each is not None for part in each.offsets}
        found[group] = GroupCut(sources, tuple(given))
    return found


def _only(given: Contribution, partitions: set[TopicPartition]) -> Contribution:
    """A contribution reduced to these partitions."""
    offsets = {part: offset for part, offset in given.offsets.items() if part in partitions}
    topics = {part.topic for part in offsets}
    return replace(
        given,
        offsets=offsets,
        topics={topic: topic_id for topic, topic_id in given.topics.items() if topic in topics},
        states={part: state for part, state in given.states.items() if part in partitions},
    )
