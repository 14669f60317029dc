"""S2: coverage of a Stable generation."""

from __future__ import annotations

from dataclasses import replace

from coordinator.zk.znodes.group_state import STABLE, GroupState

from ..replay.commits import Changed, Commit, StateChange
from ..replay.conditions import NEVER
from ..replay.expected_target import decided, extra_s, given_twice, has_failed, left_out, notice_s, subscribed
from ..replay.replay import Replay
from ..replay.verdict import Event
from ..replay.znode_views import GroupView, StateView
from .base import Invariant


class Covering(Invariant):
    """In a Stable generation the assignments are disjoint and cover every assignable partition of every subscribed
    topic.

    Judged when a coordinator makes a state Stable. Changes less than `notice` before may be missing (longer where
    faults were active meanwhile); `left_out` explains its names. And each consumer of the target then runs exactly its
    share, except what its channel reports as refused. Under client-side assignment, the target also has every member,
    and `left_out` names topics: in the view of its `answer`.

    A generation is the same or the next one of `state`, or, where that was lost, of the group; not that of channels.
    Not judged for the first state after a manual write, nor under client-side assignment (S9).
    """

    name = "S2"
    sentence = "In a Stable generation the assignments are disjoint and cover every assignable partition."
    wants = Changed.STATE
    needs_bounds = True

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._generations: dict[str, int] = {}
        self._changed_at: dict[str, float] = {}

    def on_commit(self, commit: Commit) -> None:
        for written in commit.states:
            group, before, after = written
            was, now = written.was, written.now
            if after is not None and after.data is not None and self.world.process(commit.who).is_node:
                self._judge_order(written, after.data, commit)
            if before is not None and was is not None and now is not None and now.generation == was.generation:
                # A turn in several commits writes its read state in all but the last.
                since = self._changed_at.get(group.name, NEVER)
                one, other = decided(group, was, since), decided(group, now, since)
                if one is not None and other is not None and one != other:
                    why = f"generation {now.generation} of {group} has another target after the commit at"
                    self.broken_by(commit, f"{why} {commit.moment}", before.written)
            if was is None or now is None or was != replace(now, marks=was.marks, epoch=was.epoch):
                self._changed_at[group.name] = commit.at
            if now is not None and now.state == STABLE and _is_new(before, now) and not has_failed(self.world, group):
                self.judged += 1
                self._judge(group, now, commit)

    def _judge_order(self, written: StateChange, now: GroupState, commit: Commit) -> None:
        group, was, known = written.group, written.was, self._generations.get(written.group.name, 0)
        self._generations[group.name] = max(known, now.generation)
        if was is None or now.client is not None or was.generation <= now.generation <= max(was.generation, known) + 1:
            return
        why = f"generation {now.generation} of {group} follows {was.generation} at {commit.moment}"
        self.broken_by(commit, why, written.before.written if written.before is not None else None)

    def _judge(self, group: GroupView, state: GroupState, commit: Commit) -> None:
        if (twice := given_twice(state)) is not None:
            why = f"generation {state.generation} of {group} gives {twice} to two, Stable at {commit.moment}"
            self.broken(why, commit.event)
        if self.world.bounds:
            self._judge_cover(group, state, commit)
        for name, share in sorted(state.target.items()):
            view = group.channels.get(name)
            if view is None or view.by_hand or view.data is None or not view.lives_as(share.incarnation):
                continue
            running, mine = view.running.keys(), frozenset(share.partitions)
            if not mine - view.data.refused <= running <= mine:
                odd = min(mine ^ running)
                what = f"{name} does not run {odd}" if odd in mine else f"{name} still runs {odd}"
                became = f"{group} became Stable at {commit.moment} in generation {state.generation}"
                self.broken_by(commit, f"{became} while {what}", view.written)

    def _judge_cover(self, group: GroupView, state: GroupState, commit: Commit) -> None:
        seen_by = commit.at - notice_s(self.world, commit.at) - extra_s(self.world, group)
        assigned = set().union(*(share.partitions for share in state.target.values()))
        became = f"generation {state.generation} of {group} became Stable at {commit.moment}"
        subscribers: dict[str, Event] = {}
        for name in group.live_members:
            member, channel = group.members[name], group.channels[name]
            if max(member.written["at"], channel.since["at"]) > seen_by or name in state.left_out:
                continue
            if group.is_led and name not in state.target:
                self.broken_by(commit, f"{became} without {name}", member.written)
            for topic in subscribed(self.world, group, member) or ():
                subscribers.setdefault(topic, member.written)
        for topic, subscription in sorted(subscribers.items()):
            view = self.world.topics.get(topic)
            if view is None or view.data is None or view.written["at"] > seen_by:
                continue
            if topic in state.left_out and not group.is_led:
                continue
            for number in sorted(set(view.data.partitions) - left_out(self.world, group, state, topic)):
                if (topic, number) not in assigned and f"{topic}-{number}" not in state.left_out:
                    why = f"{became} with {topic}-{number} unassigned, without a reason in `left_out`"
                    self.broken_by(commit, why, view.written, subscription)
                    break


def _is_new(before: StateView | None, after: GroupState) -> bool:
    known = before.data if before is not None else None
    return known is None or (known.state, known.generation, known.target) != (STABLE, after.generation, after.target)
