"""Reading a region: in its own turn (open checkpoint, groups, contributions, last the request), and in a group's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TypeVar

from ..planning.snapshot import ChannelView, Member, RegionView
from ..planning.target import is_live
from ..term.reading import GroupMemory, ParsedRecords
from ..term.term import Term
from ..zk.errors import BadData
from ..zk.runtime import Runtime
from ..zk.security.policy import AclPolicy
from ..zk.store import DENIED, Node, existing_nodes, nodes_at
from ..zk.values import in_chunks
from ..zk.znodes.cuts import CONTRIBUTIONS_AT_ONCE, NO_CUT, GroupCut, read_cut
from ..zk.znodes.group_state import GroupState
from ..zk.znodes.json_fields import readable
from ..zk.znodes.partitions import TopicPartition
from ..zk.znodes.paths import ACL_POLICY, GroupPaths, RegionPaths, checkpoint_number, contribution_name
from ..zk.znodes.regions import (
    ABANDONED,
    ABORTED,
    COMPLETED,
    CONSUMERS,
    ENDS,
    INITIAL,
    Checkpoint,
    CheckpointEnd,
    Contribution,
    Region,
    RegionRequest,
)
from .plan import Cuts, OpenCheckpoint, RegionGroups, RegionSnapshot, Requests

T = TypeVar("T")


class RegionReader:
    """Reads one region in one term. An ended checkpoint, a contribution and a cut are each read once.

    :param is_paused: whether a group is paused.
    :param failure: why a group's turns fail; empty while they succeed.
    """

    def __init__(
        self, term: Term, paths: RegionPaths, is_paused: Callable[[str], bool], failure: Callable[[str], str]
    ) -> None:
        self._term = term
        self._store = term.store
        self._paths = paths
        self._is_paused = is_paused
        self._failure = failure
        self._records = ParsedRecords(term.problems.report)
        self.timing = Timing(term.runtime)
        self.forget()

    def forget(self) -> None:
        """Drop the cache: another region with the same name may use the same numbers."""
        self.timing.forget()
        self._given: tuple[int, dict[tuple[str, str], Contribution | None]] = 0, {}
        self._ends: dict[int, str] = {}
        self._cut_of: tuple[int, dict[str, GroupCut]] = INITIAL, {}
        self.numbers: tuple[int, ...] = ()

    def read(self, wanted: str) -> RegionSnapshot | None:
        """The region, None when it does not exist or is unreadable.

        :param wanted: the reason for a checkpoint, empty without one.
        :raises Retryable: when ZooKeeper did not answer.
        """
        node = self._store.get(self._paths.root)
        region = self._parsed(self._paths.root, node, Region.parse) if node is not None else None
        if node is None or region is None:
            return None
        open_names = self._checkpoints(region)
        there = set(self.numbers) - {region.open}  # an operator may have created some
        region = replace(region, next_sequence=next(each for each in count(region.next_sequence) if each not in there))
        checkpoint, groups, versions = self._groups(region)
        contributions = self._contributions(region.open, checkpoint, open_names) if checkpoint is not None else {}
        # After the contributions: no checkpoint completes with that of a member that had requested a reset before.
        asked = self._store.get(self._paths.request)
        request = self._parsed(self._paths.request, asked, RegionRequest.parse) if asked is not None else None
        self._records.forget_unseen()
        strays = frozenset(ENDS).intersection(open_names)
        cut_s, open_s = self.timing.cut_s, self.timing.open_s(region.open)
        self.read_cut(region)
        paused = frozenset(group for group in region.groups if self._is_paused(group))
        failing = {group: why for group in region.groups if (why := self._failure(group))}
        return RegionSnapshot(
            region,
            RegionGroups(groups, versions, paused, failing),
            OpenCheckpoint(checkpoint, contributions, strays, open_s),
            Cuts(self.ended(COMPLETED), self.timing.late, cut_s),
            Requests(request, asked.stat.version if asked is not None else None, wanted),
            now_ms=self._term.runtime.wall_ms(),
            version=node.stat.version,
        )

    def read_cut(self, region: Region) -> None:
        """When the region's current cut completed: a later coordinator reads it once."""
        if self.timing.cut[0] == region.sequence:
            return
        path = self._paths.end(region.sequence, COMPLETED)
        node = self._store.get(path) if region.sequence else None
        end = self._parsed(path, node, CheckpointEnd.parse) if node is not None else None
        age_ms = max(0, self._term.runtime.wall_ms() - end.at_ms) if end is not None else 0
        self.timing.stands_on(region.sequence, age_ms)

    def ended(self, *ends: str) -> tuple[int, ...]:
        """The checkpoints with these ends, in order."""
        return tuple(number for number in self.numbers if self._ends.get(number) in ends)

    def read_again(self, sequence: int) -> None:
        """A checkpoint is removed, or its end changes."""
        self._ends.pop(sequence, None)

    def _checkpoints(self, region: Region) -> Sequence[str]:
        """Read the list of checkpoints and their ends, and the children of the open one."""
        paths = [self._paths.checkpoints, *([self._paths.checkpoint(region.open)] if region.open else [])]
        listing, *opened = self._store.children_many(paths)
        numbers = sorted(filter(None, map(checkpoint_number, listing.names if listing is not None else ())))
        unknown = [number for number in numbers if number not in self._ends and number != region.open]
        below = self._store.children_many([self._paths.checkpoint(number) for number in unknown])
        for number, each in zip(unknown, below, strict=True):
            names = each.names if each is not None and not each.denied else []  # reported when it is to be removed
            if how := next((end for end in (ABANDONED, ABORTED, COMPLETED) if end in names), ""):
                self._ends[number] = how
        there = set(numbers) - {region.open}
        self._ends = {number: how for number, how in self._ends.items() if number in there}
        self.numbers = tuple(numbers)
        return opened[0].names if opened and opened[0] is not None else ()

    def _contributions(
        self, sequence: int, checkpoint: Checkpoint, names: Sequence[str]
    ) -> Mapping[tuple[str, str], Contribution | None]:
        """The contributions to the open checkpoint."""
        if self._given[0] != sequence:
            self._given = sequence, {}
        known, there = self._given[1], frozenset(names)
        contributors = [
            (group, consumer)
            for group, members in checkpoint.participants.items()
            for consumer in members
            if (group, consumer) not in known and contribution_name(group, consumer) in there
        ]
        for batch in in_chunks(contributors, CONTRIBUTIONS_AT_ONCE):
            nodes = existing_nodes(self._store, batch, lambda each: self._paths.contribution(sequence, *each))
            for contributor, path, node in nodes:
                known[contributor] = self._parsed(path, node, Contribution.parse)
        return known

    def _groups(self, region: Region) -> tuple[Checkpoint | None, dict[str, GroupState], dict[str, int]]:
        """The open checkpoint, and the states of the region's groups, with their versions."""
        opened = [self._paths.checkpoint(region.open)] if region.open else []
        paths = [GroupPaths(group).state for group in region.groups]
        nodes = self._store.get_many([*opened, *paths])
        first = nodes[0] if opened else None
        checkpoint = self._parsed(opened[0], first, Checkpoint.parse) if first is not None else None
        found, versions = {}, {}
        for group, path, node in zip(region.groups, paths, nodes[len(opened) :], strict=True):
            state = self._parsed(path, node, GroupState.parse) if node is not None else None
            if node is not None and state is not None:
                found[group], versions[group] = state, node.stat.version
        return checkpoint, found, versions

    def _parsed(self, path: str, node: Node, parse: Callable[[str, bytes], T]) -> T | None:
        found = self._records.parsed(path, node, parse)
        if found is not None:
            self._term.problems.clear(path)
        return found

    # ---- copies

    def completed(self, snapshot: RegionSnapshot, sequence: int, copies: Sequence[tuple[str, Contribution]]) -> None:
        """The open checkpoint is complete, with these copies."""
        self._cut_of = sequence, {} if copies else _cuts(snapshot.open)

    def copies(self, snapshot: RegionSnapshot) -> Iterator[tuple[str, Contribution]]:
        """The parts of the previous cut without a contributor.

        These are groups without members, static members that are away, and unassigned partitions.

        :raises BadData: when the cut is unreadable.
        """
        if snapshot.region.kind != CONSUMERS:
            return
        before, checkpoint = snapshot.region.sequence, snapshot.open.checkpoint
        present = _cuts(snapshot.open)
        for group in snapshot.region.groups:
            if not snapshot.region.cut_of(group):
                continue
            cut = self._cut(before, group)
            run = present[group].sources if group in present else {}
            left: dict[str, set[TopicPartition]] = {}
            for part, name in cut.sources.items():
                if part not in run:
                    left.setdefault(name, set()).add(part)
            away = checkpoint.away.get(group, ()) if checkpoint is not None else ()
            names = [name for name in cut.names if group not in present or name in left or name in away]
            for name, path, node in nodes_at(self._store, names, partial(self._paths.contribution, before, group)):
                if node is None:
                    raise BadData(f"{path} is missing")
                given, mine = Contribution.parse(path, node.data), left.get(name, set())
                if group not in present:
                    yield contribution_name(group, name), given
                elif name in away:
                    yield contribution_name(group, name), _only(given, mine)
                else:
                    # A copied one keeps its name, which is unique in the previous cut.
                    copied = name if "~" in name else f"{name}~{before}"
                    yield contribution_name(group, copied), replace(_only(given, mine), member_state="")

    def _cut(self, sequence: int, group: str) -> GroupCut:
        """A group's part of a cut, which never changes."""
        if self._cut_of[0] != sequence:
            self._cut_of = sequence, {}
        if group not in self._cut_of[1]:
            self._cut_of[1][group] = read_cut(self._store, self._paths, sequence, group)
        return self._cut_of[1][group]


class Timing:
    """Ages by the monotonic clock, in seconds.

    :ivar late: consecutive checkpoints that were aborted because they took too long.
    :ivar cut: the region's current cut, and when it completed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ended_at = runtime.monotonic()
        self.late = 0
        self.forget()

    def forget(self) -> None:
        """Another region with the same name may use the same numbers."""
        self.cut: tuple[int, float] = -1, 0.0
        self._seen: tuple[int, float] = 0, 0.0
        self._begun: tuple[int, float] = 0, 0.0

    @property
    def cut_s(self) -> float:
        """Since the last checkpoint ended, or the term began."""
        return self._runtime.monotonic() - self._ended_at

    @property
    def age_s(self) -> float:
        """Since the region's current cut completed."""
        return self._runtime.monotonic() - self.cut[1]

    def open_s(self, sequence: int) -> float:
        """Since the open checkpoint was first seen."""
        now = self._runtime.monotonic()
        if self._seen[0] != sequence:
            self._seen = sequence, now
        return now - self._seen[1]

    def took_ms(self, snapshot: RegionSnapshot) -> int:
        """From the begin of the open checkpoint until now; by wall clocks if another coordinator began it."""
        sequence, since = self._begun
        if sequence == snapshot.region.open:
            return round((self._runtime.monotonic() - since) * 1000)
        checkpoint = snapshot.open.checkpoint
        return max(0, snapshot.now_ms - checkpoint.since_ms) if checkpoint is not None else 0

    def begun(self, sequence: int) -> None:
        """A checkpoint has begun."""
        self._seen = self._begun = sequence, self._runtime.monotonic()

    def ended(self, is_late: bool) -> None:
        """The open checkpoint has completed, or was aborted."""
        self._ended_at = self._runtime.monotonic()
        self.late = self.late + 1 if is_late else 0

    def stands_on(self, sequence: int, age_ms: int = 0) -> None:
        """The region's current cut completed this long ago."""
        self.cut = sequence, self._runtime.monotonic() - age_ms / 1000


def _cuts(opened: OpenCheckpoint) -> dict[str, GroupCut]:
    """Each group's part of the open checkpoint: the contributions of its participants."""
    groups = opened.checkpoint.participants if opened.checkpoint is not None else {}
    found: dict[str, GroupCut] = {}
    for group, members in groups.items():
        given = {name: opened.contributions.get((group, name)) for name in sorted(members)}
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


@dataclass(frozen=True, slots=True)
class AbortedCheckpoint:
    """An open checkpoint as it is before its abort.

    :ivar data: of its znode; empty without one.  :ivar ends: its ends, created by an operator.
    :ivar since_ms: when it began, wall clock.
    """

    data: bytes = b""
    ends: frozenset[str] = frozenset()
    since_ms: int = 0


class GroupRegionReader:
    """Reads for one group and one epoch.

    :param bound: the region that a group is bound to; empty without one.
    """

    def __init__(self, memory: GroupMemory, group: str, bound: Callable[[str], str]) -> None:
        self._memory = memory
        self._store = memory.store
        self._group = group
        self._bound = bound
        self._cut: tuple[str, int, GroupCut] = "", INITIAL, NO_CUT

    def read(
        self, state: GroupState, members: Mapping[str, Member], channels: Mapping[str, ChannelView], held_for: int = 0
    ) -> RegionView | None:
        """The region that the group is bound to, else the one that its oldest member registers for.

        :param held_for: the checkpoint that a generation waits for; 0 without one.
        """
        # A group with a target records its region in it; the regions are asked only for a new or lost group.
        if state.region is not None:
            return replace(self._view(state.region.name, held_for), has_initial=False)
        name = "" if state.target else self._bound(self._group)
        view = self._view(name, held_for) if name else None
        if view is not None and (view.is_unreadable or (view.record and self._group in view.record.groups)):
            return view
        offered = [
            (not is_live(member, channels.get(name)), member.czxid, member.registration.region.name)
            for name, member in members.items()
            if member.registration is not None and member.registration.region is not None
        ]
        if not offered:
            return None
        named = min(offered)[2]
        view = self._view(named, held_for)
        return replace(view, refusal=self._refusal(named) or view.refusal)

    def _refusal(self, region: str) -> str:
        """Why the access policy refuses the group's binding: in a region each group may harm the others."""
        path = GroupPaths(self._group).acl
        top, own = self._store.get_many([ACL_POLICY, path])
        if top is None or top.data == DENIED:  # in a secured chroot this coordinator could not bind it either
            return ""
        is_secure: bool | None = None  # unknown while the chroot's policy is malformed: then as the group's says,
        with suppress(BadData):  # without which a secured chroot lets no member register
            is_secure = AclPolicy.parse(ACL_POLICY, top.data).is_secure
        if is_secure is False:
            return ""
        try:
            of_group = AclPolicy.parse(path, own.data) if own is not None else AclPolicy()
        except BadData as error:
            return str(error)
        if region in of_group.regions or not (is_secure or of_group.is_secure):
            return ""
        remedy = f"zk-coordinator acl members {self._group} --members ID --regions {region}"
        return f"group {self._group} may not be bound to consistent region {region}: an operator permits it by {remedy}"

    def _view(self, name: str, held_for: int) -> RegionView:
        paths = RegionPaths(name)
        node = self._store.get(paths.root)
        record = self._memory.parsed(paths.root, node, Region.parse) if node is not None else None
        if node is None or record is None:
            return RegionView(name, None, node.stat.version if node is not None else None)
        cut, refusal = NO_CUT, ""
        try:
            cut = self._read_cut(paths, record.cut_of(self._group)) if record.kind == CONSUMERS else cut
        except BadData as error:
            refusal = f"{error}: restore it, or go back to another checkpoint (regions reset {name} --to NUMBER)"
        is_new = self._group not in record.groups
        has_initial = is_new and self._store.get(paths.initial_of_group(self._group)) is not None
        return RegionView(
            name,
            record,
            node.stat.version,
            cut,
            held_for=held_for,
            held_s=self._memory.age_s("held", str(held_for)) if held_for else 0.0,
            has_initial=has_initial,
            refusal=refusal,
        )

    def aborted(self, region: str, sequence: int) -> AbortedCheckpoint:
        """The checkpoint that a turn aborts."""
        path = RegionPaths(region).checkpoint(sequence)
        node, listing = self._store.get(path), self._store.children(path)
        ends = frozenset(ENDS).intersection(listing.names if listing is not None else ())
        if node is None:
            return AbortedCheckpoint(ends=ends)
        begun = readable(Checkpoint.parse, "a checkpoint", node)
        since_ms = begun.since_ms if begun is not None else node.stat.mtime_ms
        return AbortedCheckpoint(node.data, ends, since_ms)

    def _read_cut(self, paths: RegionPaths, sequence: int) -> GroupCut:
        if self._cut[:2] != (paths.region, sequence):
            cut = read_cut(self._store, paths, sequence, self._group) if sequence != INITIAL else NO_CUT
            self._cut = paths.region, sequence, cut
        return self._cut[2]
