"""S1, second part: what a coordinator hands on is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..replay.channel_data import ChannelData
from ..replay.commits import Commit
from ..replay.fast_json import Partition
from ..replay.replay import Replay
from ..replay.terms import Terms
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelChange, ChannelView, CommandView, GroupView, StateView

Mark = tuple[str, str]
"""Consumer, incarnation."""
Why = tuple[str, Event | None]
"""Why a partition is not free, and the event that proves it."""

UNKNOWN = "unknown"
"""The consumer of the one mark that a coordinator makes where `state` was lost."""

ROUNDING_S = 0.01
"""Times of real transactions are whole milliseconds."""


class FreePartitions:
    """A start gives a consumer only partitions that are free, and an eviction mark stays until its lease is over.

    Free, as of the commit that sends the start: no other channel has the partition in `running`, no start that named it
    stood before (one withdrawn by the same commit may have been obeyed), no mark of the written state covers it, and it
    has no owner znode. What a channel runs already is not given.

    A live incarnation that is ended while it runs partitions, together with its `ids`, has a mark in the same commit
    that covers them for its lease. The lease counts from the commit that wrote the mark, or from the election of
    another coordinator that reads it; where `state` was lost, from its first manual write, which the coordinator reads
    before it writes the mark. A mark is dropped earlier only when its incarnation was never ended.

    Manually written znodes are not judged, nor marks of a manually written state.
    """

    def __init__(self, world: Replay, terms: Terms, report: Callable[..., None]) -> None:
        self._world = world
        self._terms = terms
        self._report = report
        self._marked: dict[tuple[str, Mark], Event] = {}
        self._lost: dict[str, Event] = {}

    def on_commit(self, commit: Commit) -> None:
        """After the channels of the commit are known."""
        if commit.by_hand or not self._world.process(commit.who).is_node:
            for group, _, _ in commit.states:
                self._forget(group)
                self._lost.setdefault(group.name, commit.event)
            return
        for group, before, after in commit.states:
            self._judge_marks(group, before, after, commit)
            self._lost.pop(group.name, None)
        for change in commit.channels:
            if change.before is not None and change.before.is_live and change.before.running:
                self._judge_end(change, change.before, commit)
        for view, command in commit.made:
            if command.data is not None and command.data.is_start and view.data is not None and view.is_live:
                self._judge_start(view, command, commit)

    # ---- starts

    def _judge_start(self, view: ChannelView, command: CommandView, commit: Commit) -> None:
        given = command.data.partitions - view.data.running.keys() if command.data and view.data else frozenset()
        if not given or view.by_hand:
            return
        for partition in sorted(given):
            for what, since in self._taken(view, partition, commit):
                self._report(
                    f"{command.name} gives {partition[0]}-{partition[1]} of group {view.group.name} to "
                    f"{view.consumer} at {moment(commit.at)}, and {what}",
                    since,
                    commit.event,
                )
                return

    def _taken(self, view: ChannelView, partition: Partition, commit: Commit) -> Iterator[Why]:
        group = view.group
        for name, other in group.channels.items():
            if other is not view and other.data is not None and partition in other.data.running and not other.by_hand:
                yield f"{name} runs it", other.written
        for other, command in _stood(group, commit):
            data = command.data
            if data is None or not data.is_start or partition not in data.partitions or command.by_hand:
                continue
            runs = other.is_live and other.data is not None and partition in other.data.running
            if not runs and not other.by_hand:
                yield f"{command.name} of {other.consumer}, a start with it, was not acknowledged", command.made
        state = group.state.data if group.state is not None else None
        for (name, incarnation), covered in state.marks.items() if state is not None else ():
            if partition in covered:
                since = self._marked.get((group.name, (name, incarnation)))
                yield f"the lease of {name} (incarnation {incarnation}) still covers it", since
        owner = group.owners.get(partition)
        if owner is not None and not owner.by_hand:
            yield "its owner znode is there", owner.made

    # ---- marks

    def _judge_end(self, change: ChannelChange, before: ChannelData, commit: Commit) -> None:
        view, after, group = change.view, change.after, change.view.group
        state = group.state.data if group.state is not None and not group.state.by_hand else None
        is_end = after is not None and after.ended is not None and after.incarnation == before.incarnation
        if not is_end or view.by_hand or state is None:
            return
        for of, was, now in commit.members:
            registration = was.registration if was is not None and now is None and of is group else None
            if registration is None or was is None or registration.incarnation != before.incarnation or was.by_hand:
                continue
            mark = view.consumer, before.incarnation
            is_covered = before.running.keys() <= state.marks.get(mark, frozenset())
            if not is_covered or state.leases[mark] * 1000 < registration.lease_ms:
                self._report(
                    f"{view.consumer} of group {group.name} (incarnation {before.incarnation}) was ended at "
                    f"{moment(commit.at)} while it lived, and no mark covers its partitions for its lease of "
                    f"{registration.lease_ms} ms",
                    was.written,
                    commit.event,
                )

    def _forget(self, group: GroupView) -> None:
        for key in [key for key in self._marked if key[0] == group.name]:
            del self._marked[key]

    def _judge_marks(self, group: GroupView, before: StateView | None, after: StateView | None, commit: Commit) -> None:
        was = before.data if before is not None and not before.by_hand else None
        now = after.data if after is not None else None
        if was is None or now is None:
            self._forget(group)
        if now is None:
            return
        for mark in now.marks:
            if was is None or mark not in was.marks:
                self._marked[group.name, mark] = self._since(group, before, mark, commit)
                if _lives(group, mark):  # its end was planned, and is not committed yet
                    del self._marked[group.name, mark]
        for mark in was.marks if was is not None else ():
            if mark in now.marks:
                continue
            marked = self._marked.pop((group.name, mark), None)
            elected = self._terms.elected(commit)
            if was is None or marked is None or elected is None or _lives(group, mark):
                continue
            since = max(marked, elected, key=lambda event: event["at"])
            lease = was.leases[mark]
            if commit.at - since["at"] < self._terms.measured(lease) - ROUNDING_S:
                self._report(
                    f"the mark of {mark[0]} (incarnation {mark[1]}) in group {group.name} was dropped at "
                    f"{moment(commit.at)}, and its lease of {lease:g} s counts from {moment(since['at'])}",
                    marked,
                    elected,
                    commit.event,
                )

    def _since(self, group: GroupView, before: StateView | None, mark: Mark, commit: Commit) -> Event:
        """The earliest event from which the lease of a new mark counts."""
        if mark[0] == UNKNOWN and before is not None:
            return self._lost.get(group.name, before.written)
        return commit.event


def _stood(group: GroupView, commit: Commit) -> Iterator[tuple[ChannelView, CommandView]]:
    """The commands of a group that stood before a commit."""
    made = {id(command) for _, command in commit.made}
    for view in group.channels.values():
        for command in view.commands.values():
            if id(command) not in made:
                yield view, command
    for view, command in commit.gone:
        if view.group is group:
            yield view, command


def _lives(group: GroupView, mark: Mark) -> bool:
    view = group.channels.get(mark[0])
    return view is not None and view.data is not None and view.is_live and view.data.incarnation == mark[1]
