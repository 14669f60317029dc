"""What a coordinator may start: partitions that are free."""

from __future__ import annotations

from collections.abc import Callable

from ..replay.commits import Commit
from ..replay.fast_json import Partition
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, CommandView

EVICTED = "evicted"
CLOCK_RATES = 0.02
"""The coordinator measures the lease by its own clock."""


class FreePartitions:
    """A start names a partition that its member does not run yet only when the partition is free (Rebalance 6).

    - No other live incarnation runs it.
    - No start to another one was there before, also if this commit withdraws it: the member may have begun with it.
    - One lease has passed since the eviction of an incarnation that ran it, also through a failover of the coordinator:
      the evicted process may not have noticed, and fetches until its lease lapses.

    :param report: called with the violation and its witness.
    """

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._leases_s: dict[tuple[str, str], float] = {}
        self._marks: dict[tuple[str, Partition], tuple[float, str, Event]] = {}

    def on_commit(self, commit: Commit) -> None:
        """A commit with starts, evictions or registrations."""
        for view, command in commit.made:
            if not command.by_hand and command.data is not None and command.data.is_start:
                running = view.data.running if view.data is not None else {}
                named = command.data.partitions - running.keys()
                if named:
                    self._judge(view, named, commit)
        for change in commit.channels:
            before, after, view = change.before, change.after, change.view
            if before is None or after is None or before.ended is not None or commit.by_hand:
                continue
            if after.ended is not None and after.ended.startswith(EVICTED):
                name = view.group.name
                lease_s = self._leases_s.get((name, view.consumer), 0.0)
                until = commit.at + lease_s * (1 - CLOCK_RATES)
                self._marks |= {(name, part): (until, view.consumer, commit.event) for part in before.running}
        for group, _, member in commit.members:
            if member is not None and member.registration is not None and not member.by_hand:
                self._leases_s[group.name, member.consumer] = member.registration.lease_ms / 1000

    def _judge(self, to: ChannelView, named: frozenset[Partition], commit: Commit) -> None:
        group = to.group
        for part in named:
            until, consumer, eviction = self._marks.get((group.name, part), (0.0, "", commit.event))
            if commit.at < until:
                self._say(to, part, commit, f"{consumer}, evicted, may fetch it until {moment(until)}", eviction)
        withdrawn = [(view, command) for view, command in commit.gone if view.group is group and view is not to]
        for view in group.channels.values():
            if view is to or view.by_hand or view.data is None or not view.data.is_live:
                continue
            if taken := named & view.data.running.keys():
                self._say(to, min(taken), commit, f"{view.consumer} runs it", view.since)
            before = [*view.commands.values(), *(command for other, command in withdrawn if other is view)]
            for command in before:
                if _begins(view, command) & named and command.made is not commit.event:
                    part = min(_begins(view, command) & named)
                    self._say(to, part, commit, f"{command.name} named it to {view.consumer}", command.made)

    def _say(self, to: ChannelView, part: Partition, commit: Commit, why: str, since: Event) -> None:
        self._report(
            f"{part[0]}-{part[1]} of group {to.group.name} was sent to {to.consumer} at {moment(commit.at)}, "
            f"and was not free: {why}",
            since,
            commit.event,
        )


def _begins(view: ChannelView, command: CommandView) -> frozenset[Partition]:
    """What a start of the present incarnation adds to what it runs."""
    data = command.data
    if data is None or command.by_hand or not data.is_start or view.data is None:
        return frozenset()
    return data.partitions - view.data.running.keys() if data.incarnation == view.data.incarnation else frozenset()
