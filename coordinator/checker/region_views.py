"""Replays what is written below `/consumers/regions`: regions, checkpoints with contributions, initial offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coordinator.zk.paths import REGIONS, RegionPaths, checkpoint_number
from coordinator.zk.ranges import is_partition
from coordinator.zk.records import OffsetRecord
from coordinator.zk.regions import COMPLETED, CONSUMERS, ENDS, INITIAL, Checkpoint, Contribution, Region

from .commits import CREATE, DELETE, REGION, Commit, Route
from .sketches import Key, Sketch
from .texts import Partition, strictly
from .verdict import Event

PREFIX = f"{REGIONS}/"
ROOT, CHECKPOINT, CONTRIBUTION, END = "region", "checkpoint", "contribution", "end"

_PARSE_REGION, _PARSE_CHECKPOINT, _PARSE_CONTRIBUTION = Region.parse, Checkpoint.parse, Contribution.parse
_PARSE_OFFSET = OffsetRecord.parse


class CheckpointView:
    """A checkpoint with what stands below it.

    :ivar data: None when it cannot be read.
    :ivar contributions: name -> what it says (None when that cannot be read), and the commit that made it.
    :ivar members: name -> what the member keeps for itself, as its application has said.
    :ivar ends: `completed`, `aborted`, `abandoned` -> the commit that made it.
    :ivar by_hand: whether a hand has written anything of it.
    """

    __slots__ = ("by_hand", "contributions", "data", "ends", "made", "members", "number")

    def __init__(self, number: int, data: Checkpoint | None, made: Event) -> None:
        self.number = number
        self.data = data
        self.made = made
        self.contributions: dict[str, tuple[Contribution | None, Event]] = {}
        self.members: dict[str, Mapping[Key, Sketch]] = {}
        self.ends: dict[str, Event] = {}
        self.by_hand = False

    def of(self, group: str) -> Iterator[tuple[str, Contribution]]:
        """The contributions of a group that count: of its participants and members away, then what was copied."""
        participants = self.data.participants.get(group) if self.data is not None else None
        away = self.away(group)
        prefix = f"{group}~"
        names = [name for name in self.contributions if name.startswith(prefix)]
        for name in sorted(names, key=lambda name: (name.count("~") > 1, name)):
            given, rest = self.contributions[name][0], name[len(prefix) :]
            if given is not None and (participants is None or "~" in rest or rest in participants or rest in away):
                yield rest, given

    def away(self, group: str) -> tuple[str, ...]:
        """Static members of a group that were away when it began."""
        return self.data.away.get(group, ()) if self.data is not None else ()

    def offsets(self, group: str) -> dict[Partition, tuple[int, str]]:
        """Partition -> offset and topic id, of a group."""
        found: dict[Partition, tuple[int, str]] = {}
        for _, given in self.of(group):
            for (topic, number), offset in given.offsets.items():
                found.setdefault((topic, number), (offset, given.topics.get(topic, "")))
        return found


class RegionView:
    """A region.

    :ivar data: None while there is none that can be read.
    :ivar written: the commit that wrote it last.  :ivar reset_at: the one with which its present reset began.
    :ivar initial: group and partition -> where the group began with it, and the topic's id.
    """

    __slots__ = ("by_hand", "checkpoints", "data", "initial", "name", "reset_at", "written")

    def __init__(self, name: str) -> None:
        self.name = name
        self.data: Region | None = None
        self.written: Event | None = None
        self.reset_at: Event | None = None
        self.checkpoints: dict[int, CheckpointView] = {}
        self.initial: dict[tuple[str, Partition], tuple[int, str]] = {}
        self.by_hand = False

    def offsets(self, group: str, checkpoint: int) -> dict[Partition, tuple[int, str]] | None:
        """Where a group stands in a cut: nowhere in one from before it came; None where that is not known."""
        if checkpoint == INITIAL or (self.data is not None and checkpoint < self.data.first.get(group, 1)):
            return {}
        view = self.checkpoints.get(checkpoint)
        if view is None or view.by_hand or COMPLETED not in view.ends:
            return None
        return view.offsets(group)

    def paused(self, group: str, consumer: str, incarnation: str) -> CheckpointView | None:
        """The open checkpoint to which an incarnation has contributed: it waits for its end."""
        view = self.checkpoints.get(self.data.open) if self.data is not None and self.data.open else None
        if view is None or view.ends:
            return None
        given = view.contributions.get(f"{group}~{consumer}", (None, None))[0]
        return view if given is not None and given.incarnation == incarnation else None


class RegionChange:
    """One operation at or below a region.

    :ivar name: of a contribution, or of an end.
    :ivar before: of the region's own znode, what it said.  :ivar after: likewise.
    :ivar is_new: whether the znode is made; else it is set, or removed (`is_removed`).
    """

    __slots__ = ("after", "before", "checkpoint", "is_new", "is_removed", "name", "view", "what")

    def __init__(
        self, view: RegionView, what: str, verb: str, checkpoint: CheckpointView | None = None, name: str = ""
    ) -> None:
        self.view = view
        self.what = what
        self.checkpoint = checkpoint
        self.name = name
        self.before: Region | None = None
        self.after: Region | None = None
        self.is_new = verb == CREATE
        self.is_removed = verb == DELETE


class Regions:
    """Every region of a history.

    :ivar views: by name.  :ivar ever: groups that are or were in one of plain consumers.
    """

    def __init__(self) -> None:
        self.views: dict[str, RegionView] = {}
        self.ever: set[str] = set()
        self._of: dict[str, RegionView] = {}

    def of(self, group: str) -> RegionView | None:
        """The region of plain consumers that a group is bound to."""
        return self._of.get(group)

    def siblings(self, group: str) -> tuple[str, ...]:
        """The groups of a group's region, itself among them."""
        view = self._of.get(group)
        return view.data.groups if view is not None and view.data is not None else (group,)

    def handle(self, commit: Commit, route: Route, verb: str, op: Event) -> None:
        """Apply one operation."""
        name, *parts = route.path[len(PREFIX) :].split("/")
        view = self.views.get(name)
        if view is None:
            view = self.views[name] = RegionView(name)
        text = "" if verb == DELETE else op.get("data") or ""
        commit.mask |= REGION
        if not parts:
            self._root(commit, view, verb, text)
        elif parts[0] == "initial" and len(parts) == 4 and is_partition(parts[3]):
            found = strictly(_PARSE_OFFSET, route.path, text) if text else None
            key = parts[1], (parts[2], int(parts[3]))
            view.initial.pop(key, None)
            if found is not None:
                view.initial[key] = found.offset, found.topic_id
        elif parts[0] == "checkpoints" and len(parts) in (2, 3) and (number := checkpoint_number(parts[1])):
            below = parts[2] if len(parts) == 3 else ""
            self._checkpoint(commit, view, number, below, verb, route.path, text)

    def _root(self, commit: Commit, view: RegionView, verb: str, text: str) -> None:
        change = RegionChange(view, ROOT, verb)
        change.before = view.data
        after = strictly(_PARSE_REGION, RegionPaths(view.name).root, text) if text else None
        change.after = view.data = after
        view.written, view.by_hand = commit.event, commit.by_hand
        if after is not None and (change.before is None or change.before.reset != after.reset):
            view.reset_at = commit.event
        if after is not None and after.kind == CONSUMERS:
            for group in change.before.groups if change.before is not None else ():
                self._of.pop(group, None)
            self._of.update(dict.fromkeys(after.groups, view))
            self.ever.update(after.groups)
        commit.regions += (change,)

    def _checkpoint(
        self, commit: Commit, view: RegionView, number: int, below: str, verb: str, path: str, text: str
    ) -> None:
        checkpoint = view.checkpoints.get(number)
        if checkpoint is None:
            if verb == DELETE:
                return
            checkpoint = view.checkpoints[number] = CheckpointView(number, None, commit.event)
        what = END if below in ENDS else CONTRIBUTION if "~" in below else CHECKPOINT
        if below and what == CHECKPOINT:
            return  # nothing that counts
        checkpoint.by_hand = checkpoint.by_hand or commit.by_hand
        if what == CHECKPOINT:
            if verb == DELETE:
                del view.checkpoints[number]
            else:
                checkpoint.data = strictly(_PARSE_CHECKPOINT, path, text)
        elif what == END:
            checkpoint.ends.pop(below, None)
            if verb != DELETE:
                checkpoint.ends[below] = commit.event
        else:
            checkpoint.contributions.pop(below, None)
            if verb != DELETE:
                checkpoint.contributions[below] = strictly(_PARSE_CONTRIBUTION, path, text), commit.event
        commit.regions += (RegionChange(view, what, verb, checkpoint, below),)
