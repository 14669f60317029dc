"""L4, second part: nothing is begun again without a reason."""

from __future__ import annotations

from collections.abc import Callable, Set

from ..replay.commits import Commit
from ..replay.conditions import FOREVER
from ..replay.expected_target import decided
from ..replay.fast_json import Partition
from ..replay.reading import CommandData
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, GroupView, StateView

MOST_SENT = 4
"""Two are sent at once, then one a second."""

WITHIN_S = 2.0

Sent = tuple[object, ...]


class Repeats:
    """The same start is sent four times within 2 s at most, and no generation has the target of the previous one.

    The same start: of epoch, incarnation, generation, partitions, ask and reset. The same target: of members (static
    ones in any incarnation), threads, topics and strategy; a generation has it only when a member runs partitions
    without owner znodes. It is judged while neither members, topics nor a manual write have changed the group since the
    last write of its state, and not under client-side assignment (S9).
    """

    def __init__(self, world: Replay, report: Callable[..., None]) -> None:
        self._world = world
        self._report = report
        self._sent: dict[tuple[str, str], tuple[Sent, list[Event]]] = {}

    def on_commit(self, commit: Commit) -> None:
        """Commands were sent, or a state was written."""
        if commit.by_hand:
            return
        for view, command in commit.made:
            if command.data is not None and command.data.is_start:
                self._judge_start(view, command.data, commit)
        for group, before, after in commit.states:
            self._judge_generation(group, before, after, commit)

    def _judge_start(self, view: ChannelView, data: CommandData, commit: Commit) -> None:
        start = (data.epoch, data.incarnation, data.generation, data.partitions, data.ask, data.region)
        key = view.group.name, view.consumer
        known, times = self._sent.get(key, (start, []))
        times = [event for event in times if known == start and commit.at - event["at"] <= WITHIN_S]
        times.append(commit.event)
        self._sent[key] = start, times
        if len(times) > MOST_SENT:
            self._report(
                f"the same start was sent to {view.consumer} of group {view.group.name} {len(times)} times from "
                f"{moment(times[0]['at'])} to {moment(commit.at)}",
                *times,
            )

    def _judge_generation(
        self, group: GroupView, before: StateView | None, after: StateView | None, commit: Commit
    ) -> None:
        was = before.data if before is not None and not before.by_hand else None
        now = after.data if after is not None else None
        if was is None or now is None or now.generation != was.generation + 1 or not now.target or now.client:
            return
        target = decided(group, now, FOREVER)
        if target is None or target != decided(group, was, FOREVER):
            return
        if before is None or any(_lost_owners(view) for view in group.channels.values()):
            return
        if now.region != was.region:
            return
        changed = max(group.hand_at, group.changed_at, self._world.topics_changed_at)
        if changed < before.written["at"]:
            self._report(
                f"generation {now.generation} of group {group.name} begins at {moment(commit.at)} in epoch "
                f"{now.epoch} with the target of the generation before (epoch {was.epoch})",
                before.written,
                commit.event,
            )


def _lost_owners(view: ChannelView) -> Set[Partition]:
    """The partitions that it runs without an owner znode."""
    if view.data is None or not view.is_live:
        return frozenset()
    return view.data.running.keys() - view.group.owners.keys()
