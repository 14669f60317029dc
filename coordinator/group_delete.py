"""Removing a group that nobody uses, with everything that stands below it in ZooKeeper.

A small group goes in one multi. A larger one takes several, and the command may die, or a member register, between any
two of them. So the order is: first what a group can do without (segments, as if they had been collected; history,
channels of the dead), then its offsets, and **last, in one multi, its `state` with all parents**. Until then `state`
stands with its generation and its marks, and what is left is an Empty group that is whole: it can be deleted again, and
a member that joins it goes on where the offsets that are left say. Were `state` removed first, every later multi would
have lost its fence, and the coordinator, which makes a lost `state` anew, would let everybody wait for a lease.

Each multi checks the version of `state`, that nobody is registered and that no query has come, so whoever comes in the
middle stops the removal at the next one. A member that registers beside the last is either there before it, which
refuses it whole, or finds its parents gone, and makes them anew: another group of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .group_fence import GroupIdNotFound, GroupNotEmpty, Standing, is_seat, look
from .regions.unbinding import unbinding
from .segments import local_file
from .zk.errors import BadData, OutcomeUnknown, Refused, StoreError
from .zk.fenced import batches
from .zk.paths import GroupPaths
from .zk.sealed import Query, Segment, SegmentsRecord
from .zk.store import MAX_OPERATIONS, Check, Delete, Node, Operation, SetData, Store

TRIES = 10
ROOM = MAX_OPERATIONS - 12
"""Operations of a multi besides its fences."""

NODES_AT_ONCE = 1000


@dataclass(slots=True)
class Removed:
    """What a removal has done.

    :ivar znodes: so many are gone, `offsets` of them offsets.
    :ivar elsewhere: so many files of segments could not be removed from here.
    """

    znodes: int = 0
    offsets: int = 0
    elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class _Step:
    """One multi: its fence, what it removes, and the segments among that."""

    fence: Sequence[Operation]
    removals: Sequence[Operation]
    segments: Sequence[Node] = ()


def delete_group(store: Store, group: str, remove: Callable[[Path], None] = Path.unlink) -> Removed:
    """Remove a group.

    :param remove: removes a segment's file, after the multi that removes its znode.
    :raises GroupIdNotFound: when there is none of that name.
    :raises GroupNotEmpty: when somebody uses it; it says what had been removed before they came.
    :raises BadData: when its state cannot be read.
    :raises StoreError: when ZooKeeper did not answer, or others write in it all the time.
    """
    paths, removed = GroupPaths(group), Removed()
    unanswered: _Step | None = None
    for _ in range(TRIES):
        if unanswered is not None and not any(store.get_many([op.path for op in unanswered.removals])):
            _note(removed, paths, unanswered, remove)
        unanswered = None
        standing = look(store, group)
        if not standing.exists:
            if removed.znodes:
                return removed
            raise GroupIdNotFound("GroupIdNotFound: The group id does not exist.")
        tree = _tree(store, paths.root)
        if why := _in_use(standing, tree):
            raise GroupNotEmpty(f"GroupNotEmpty: The group is not empty: {why}.{standing.hint}{_so_far(removed)}")
        try:
            for step in _steps(standing, tree, unbinding(store, group)):
                unanswered = step
                store.commit([*step.fence, *step.removals])
                _note(removed, paths, step, remove)
            return removed
        except Refused:
            unanswered = None  # somebody has come, or a turn has written: look again
        except OutcomeUnknown:
            store.sync()
    raise StoreError(f"the znodes of group {group} keep changing: try again.{_so_far(removed)}")


def _so_far(removed: Removed) -> str:
    if not removed.znodes:
        return ""
    lost = f", {removed.offsets} offsets among them" if removed.offsets else ""
    return f" {removed.znodes} of its znodes had been removed before{lost}; what is left is a whole group"


def _note(removed: Removed, paths: GroupPaths, step: _Step, remove: Callable[[Path], None]) -> None:
    """Count what a multi has removed, and remove the files that it leaves without a name."""
    removed.znodes += len(step.removals)
    removed.offsets += sum(op.path.startswith(f"{paths.offsets}/") and op.path.count("/") == 6 for op in step.removals)
    for node in step.segments:
        try:
            file = local_file(paths.group, Segment.parse("", node.data))
            if file is None:
                removed.elsewhere += 1
            else:
                remove(file)
        except FileNotFoundError:
            continue
        except (BadData, OSError, ValueError):
            removed.elsewhere += 1


def _tree(store: Store, root: str) -> dict[str, Node]:
    """Every znode at and below `root`, parents before what is below them."""
    found: dict[str, Node] = {}
    level = [root]
    while level:
        parents: list[str] = []
        for first in range(0, len(level), NODES_AT_ONCE):
            some = level[first : first + NODES_AT_ONCE]
            there = {p: node for p, node in zip(some, store.get_many(some), strict=True) if node is not None}
            found |= there
            parents += [path for path, node in there.items() if node.stat.children]
        listings = store.children_many(parents)
        level = [f"{p}/{n}" for p, each in zip(parents, listings, strict=True) if each for n in sorted(each.names)]
    return found


def _in_use(standing: Standing, tree: Mapping[str, Node]) -> str | None:
    """Who uses the group, None when nobody does."""
    paths = standing.paths
    if standing.used_by:
        return standing.used_by
    if not standing.is_inactive:
        return f"the current state is {standing.state.state}"
    if standing.state.marks:
        # A channel that is made anew begins at version 0: whoever was evicted must have given up before it goes.
        return f"the lease of {standing.state.marks[0].consumer}, which was evicted, may still run"
    for path, node in tree.items():
        name = path.rsplit("/", 1)[1]
        if path == paths.id(name):
            return f"consumer {name} has just registered"
        if path == paths.seat(name) and is_seat(node):
            return f"static member {name} has just taken a seat"
        if path == paths.pool(name):
            return f"fetcher pool {name} runs"
        if path == paths.query(name) and not _is_expired(path, node):
            return f"query {name} reads its segments (`queries remove {paths.group} {name} --execute` lets go of them)"
    return None


def _is_expired(path: str, node: Node) -> bool:
    try:
        return bool(Query.parse(path, node.data).expired_ms)
    except BadData:
        return False


# ---- the multis


def _steps(standing: Standing, tree: Mapping[str, Node], unbound: Sequence[Operation]) -> Iterator[_Step]:
    """The multis, each to be committed only after the one before.

    The last needs no fence besides what it removes: `state` by its version, and parents, which must be empty by then.

    :param unbound: what takes the group out of its consistent region, with the last.
    """
    paths = standing.paths
    top = {path for path in tree if path.count("/") == paths.root.count("/") + 1}
    needed = {path for path in tree if path.startswith((f"{paths.offsets}/", f"{paths.owners}/", f"{paths.queries}/"))}
    segments = [path for path in tree if path == paths.segment(path.rsplit("/", 1)[1])]
    spare = [path for path in tree if path not in {paths.root, *top, *needed, *segments}]
    fence = [*standing.state_fence(), *standing.vacancy_fence(), *_no_query(paths, tree)]
    end: list[Operation] = [
        *(Delete(path) for path in sorted(top - {paths.state})),
        *([] if standing.version is None else [Delete(paths.state, standing.version)]),
        Delete(paths.root),
    ]
    if len(spare) + len(needed) + len(segments) + len(end) <= ROOM:
        below = [Delete(path) for path in reversed([*spare, *needed, *segments])]
        yield _Step(unbound, [*sorted(below, key=_depth), *end], [tree[path] for path in segments])
        return
    yield from _collected(paths, tree, segments, fence)
    for some in batches([[Delete(path)] for path in sorted(spare, key=lambda p: -p.count("/"))], ROOM):
        yield _Step(fence, some)
    units: list[list[Operation]] = [[Delete(path)] for path in sorted(needed, key=lambda p: (-p.count("/"), p))]
    steps = list(batches([*units, end], ROOM))
    for some in steps[:-1]:
        yield _Step(fence, some)
    yield _Step(unbound, steps[-1])


def _depth(operation: Operation) -> int:
    return -operation.path.count("/")


def _no_query(paths: GroupPaths, tree: Mapping[str, Node]) -> list[Operation]:
    """The version of `queries` stands for the set of queries: refused when one has come."""
    return [Check(paths.queries, tree[paths.queries].stat.version)] if paths.queries in tree else []


def _collected(
    paths: GroupPaths, tree: Mapping[str, Node], segments: Sequence[str], fence: Sequence[Operation]
) -> Iterator[_Step]:
    """Segments go oldest first, and `segments` says that they are collected, as when queries have finished them."""
    if not segments:
        return
    root = tree[paths.segments]
    try:
        record = SegmentsRecord.parse(paths.segments, root.data)
    except BadData:
        record = SegmentsRecord()
    oldest_first = sorted(segments, key=lambda path: tree[path].stat.czxid)
    for nth, some in enumerate(batches([[Delete(path)] for path in oldest_first], ROOM)):
        nodes = [tree[operation.path] for operation in some]
        data = replace(record, collected=max(record.collected, nodes[-1].stat.czxid)).to_bytes()
        yield _Step([*fence, SetData(paths.segments, data, root.stat.version + nth)], some, nodes)
