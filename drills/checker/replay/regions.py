"""Replays writes below `/consumers/regions`: regions, checkpoints with contributions, initial offsets."""

from __future__ import annotations

from coordinator.zk.znodes.paths import REGIONS, RegionPaths, checkpoint_number
from coordinator.zk.znodes.ranges import is_partition
from coordinator.zk.znodes.records import OffsetRecord
from coordinator.zk.znodes.regions import CONSUMERS, ENDS, Checkpoint, Contribution, Region

from .commits import REGION, Commit, Route
from .event_schema import CREATE, DELETE
from .fast_json import strictly
from .region_views import CHECKPOINT, CONTRIBUTION, END, ROOT, CheckpointView, RegionChange, RegionView
from .verdict import Event

PREFIX = f"{REGIONS}/"

_PARSE_REGION, _PARSE_CHECKPOINT, _PARSE_CONTRIBUTION = Region.parse, Checkpoint.parse, Contribution.parse
_PARSE_OFFSET = OffsetRecord.parse


class RegionViews:
    """Every region of a history.

    :ivar views: by name.  :ivar ever: groups that are or were in a region of plain consumers.
    """

    def __init__(self) -> None:
        self.views: dict[str, RegionView] = {}
        self.ever: set[str] = set()
        self._of: dict[str, RegionView] = {}

    def of(self, group: str) -> RegionView | None:
        """The region of plain consumers of a group."""
        return self._of.get(group)

    def siblings(self, group: str) -> tuple[str, ...]:
        """The groups of a group's region, including itself."""
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
        before = view.data
        after = view.data = strictly(_PARSE_REGION, RegionPaths(view.name).root, text) if text else None
        view.written, view.by_hand = commit.event, commit.by_hand
        if after is not None and (before is None or before.reset != after.reset):
            view.reset_at = commit.event
        if after is not None and after.kind == CONSUMERS:
            for group in before.groups if before is not None else ():
                self._of.pop(group, None)
            self._of.update(dict.fromkeys(after.groups, view))
            self.ever.update(after.groups)
        commit.regions += (RegionChange(view, ROOT, verb == CREATE, verb == DELETE, before=before, after=after),)

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
            return  # not relevant
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
        commit.regions += (RegionChange(view, what, verb == CREATE, verb == DELETE, checkpoint, below),)
