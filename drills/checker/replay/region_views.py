"""The znodes below `/consumers/regions` in a history: regions, and checkpoints with contributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from coordinator.zk.znodes.regions import COMPLETED, INITIAL, Checkpoint, Contribution, Region

from .fast_json import Partition
from .sketches import Key, Sketch
from .verdict import Event

ROOT, CHECKPOINT, CONTRIBUTION, END = "region", "checkpoint", "contribution", "end"


@dataclass(slots=True, eq=False)
class CheckpointView:
    """A checkpoint with its children.

    :ivar data: None when it cannot be read.
    :ivar contributions: name -> its content (None when it cannot be read), and the commit that created it.
    :ivar members: name -> the member's own state, as reported by its application.
    :ivar ends: `completed`, `aborted`, `abandoned` -> the commit that created it.
    :ivar by_hand: whether any part of it was written manually.
    """

    number: int
    data: Checkpoint | None
    made: Event
    contributions: dict[str, tuple[Contribution | None, Event]] = field(default_factory=dict)
    members: dict[str, Mapping[Key, Sketch]] = field(default_factory=dict)
    ends: dict[str, Event] = field(default_factory=dict)
    by_hand: bool = False

    def of(self, group: str) -> Iterator[tuple[str, Contribution]]:
        """The valid contributions of a group: of its participants and absent members, then copies."""
        participants = self.data.participants.get(group) if self.data is not None else None
        away = self.away(group)
        prefix = f"{group}~"
        names = [name for name in self.contributions if name.startswith(prefix)]
        for name in sorted(names, key=lambda name: (name.count("~") > 1, name)):
            given, rest = self.contributions[name][0], name[len(prefix) :]
            if given is not None and (participants is None or "~" in rest or rest in participants or rest in away):
                yield rest, given

    def away(self, group: str) -> tuple[str, ...]:
        """Static members of a group that were away at its begin."""
        return self.data.away.get(group, ()) if self.data is not None else ()

    def offsets(self, group: str) -> dict[Partition, tuple[int, str]]:
        """Partition -> offset and topic id, of a group."""
        found: dict[Partition, tuple[int, str]] = {}
        for _, given in self.of(group):
            for (topic, number), offset in given.offsets.items():
                found.setdefault((topic, number), (offset, given.topics.get(topic, "")))
        return found


@dataclass(slots=True, eq=False)
class RegionView:
    """A region.

    :ivar data: None while there is no readable one.
    :ivar written: the last commit that wrote it.  :ivar reset_at: the one that began its current reset.
    :ivar initial: group and partition -> initial offset, and the topic's id.
    """

    name: str
    data: Region | None = None
    written: Event | None = None
    reset_at: Event | None = None
    checkpoints: dict[int, CheckpointView] = field(default_factory=dict)
    initial: dict[tuple[str, Partition], tuple[int, str]] = field(default_factory=dict)
    by_hand: bool = False

    def offsets(self, group: str, checkpoint: int) -> dict[Partition, tuple[int, str]] | None:
        """A group's offsets in a cut: none in one from before it joined; None when unknown."""
        if checkpoint == INITIAL or (self.data is not None and checkpoint < self.data.first.get(group, 1)):
            return {}
        view = self.checkpoints.get(checkpoint)
        if view is None or view.by_hand or COMPLETED not in view.ends:
            return None
        return view.offsets(group)

    def paused(self, group: str, consumer: str, incarnation: str) -> CheckpointView | None:
        """The open checkpoint that an incarnation has contributed to: it waits for its end."""
        view = self.checkpoints.get(self.data.open) if self.data is not None and self.data.open else None
        if view is None or view.ends:
            return None
        given = view.contributions.get(f"{group}~{consumer}", (None, None))[0]
        return view if given is not None and given.incarnation == incarnation else None


@dataclass(slots=True, eq=False)
class RegionChange:
    """One operation at or below a region.

    :ivar name: of a contribution, or of an end.
    :ivar before: the previous data of the region's own znode.  :ivar after: the new one.
    :ivar is_new: whether the znode is created; else it is set, or removed (`is_removed`).
    """

    view: RegionView
    what: str
    is_new: bool
    is_removed: bool
    checkpoint: CheckpointView | None = None
    name: str = ""
    before: Region | None = None
    after: Region | None = None
