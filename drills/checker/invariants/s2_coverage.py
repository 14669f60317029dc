"""S2: coverage of a Stable generation."""

from __future__ import annotations

from coordinator.zk.znodes.group_state import STABLE

from ..replay.commits import STATE, Commit
from ..replay.expected_target import decided, has_failed, hold_s, left_out, longest_ask_s, runs_but_refused, subscribed
from ..replay.reading import StateData
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import GroupView, StateView
from .base import Invariant


class Covering(Invariant):
    """In a Stable generation the assignments are disjoint and cover every assignable partition of every subscribed
    topic.

    Judged when a coordinator makes a state Stable. Changes less than `notice` before may be missing (longer where
    faults were active meanwhile); `left_out` explains its names. And each consumer of the target then runs exactly its
    share, except what its channel reports as refused. Under client-side assignment, the target also has every member,
    and `left_out` names topics: with its answer's view of them.

    A generation is the same or the next one of `state`, or, where that was lost, of the group; not that of channels.
    Not judged for the first state after a manual write, nor under client-side assignment (S9).
    """

    name = "S2"
    sentence = "In a Stable generation the assignments are disjoint and cover every assignable partition."
    wants = STATE
    needs_bounds = True

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._generations: dict[str, int] = {}

    def on_commit(self, commit: Commit) -> None:
        for group, before, after in commit.states:
            state = after.data if after is not None and not after.by_hand else None
            was = before.data if before is not None and not before.by_hand else None
            if after is not None and after.data is not None and self.world.process(commit.who).is_node:
                self._judge_order(group, was, after.data, before, commit)
            if state is not None and was is not None and state.generation == was.generation:
                self._judge_generation(group, was, state, before, commit)
            if (
                state is not None
                and state.state == STABLE
                and _is_new(before, state)
                and not has_failed(self.world, group)
            ):
                self.judged += 1
                self._judge(group, state, commit)

    def _judge_order(
        self, group: GroupView, was: StateData | None, now: StateData, before: StateView | None, commit: Commit
    ) -> None:
        known = self._generations.get(group.name, 0)
        self._generations[group.name] = max(known, now.generation)
        if was is None or now.client is not None or was.generation <= now.generation <= max(was.generation, known) + 1:
            return
        self.broken(
            f"generation {now.generation} of group {group.name} follows {was.generation} at {moment(commit.at)}",
            before.written if before is not None else None,
            commit.event,
        )

    def _judge_generation(
        self, group: GroupView, was: StateData, now: StateData, before: StateView | None, commit: Commit
    ) -> None:
        since = before.written["at"] if before is not None else commit.at
        one, other = decided(group, was, since), decided(group, now, since)
        if one is not None and other is not None and one != other:
            self.broken(
                f"generation {now.generation} of group {group.name} has another target after the commit at "
                f"{moment(commit.at)}",
                before.written if before is not None else None,
                commit.event,
            )

    def _judge(self, group: GroupView, state: StateData, commit: Commit) -> None:
        if state.twice is not None:
            topic, number = state.twice
            self.broken(
                f"generation {state.generation} of group {group.name} gives {topic}-{number} to two, Stable at "
                f"{moment(commit.at)}",
                commit.event,
            )
        if self.world.bounds:
            self._judge_cover(group, state, commit)
        for name, share in sorted(state.target.items()):
            view = group.channels.get(name)
            if view is None or view.by_hand or view.data is None or not view.data.is_live:
                continue
            if view.data.incarnation == share.incarnation and not runs_but_refused(share.partitions, view.data):
                odd = sorted(share.partitions ^ view.data.running.keys())
                topic, number = odd[0]
                what = "does not run" if odd[0] in share.partitions else "still runs"
                self.broken(
                    f"group {group.name} became Stable at {moment(commit.at)} in generation {state.generation} while "
                    f"{name} {what} {topic}-{number}",
                    view.written,
                    commit.event,
                )

    def _judge_cover(self, group: GroupView, state: StateData, commit: Commit) -> None:
        seen_by = commit.at - self._notice(commit.at) - (longest_ask_s(self.world) if group.is_led else 0.0)
        seen_by -= hold_s(self.world, group)
        assigned = set().union(*(share.partitions for share in state.target.values()))
        subscribers: dict[str, Event] = {}
        for name in group.live_members:
            member, channel = group.members[name], group.channels[name]
            if max(member.written["at"], channel.since["at"]) > seen_by or name in state.left_out:
                continue
            if group.is_led and name not in state.target:
                self.broken(
                    f"generation {state.generation} of group {group.name} became Stable at {moment(commit.at)} "
                    f"without {name}",
                    member.written,
                    commit.event,
                )
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
                    self.broken(
                        f"generation {state.generation} of group {group.name} became Stable at {moment(commit.at)} "
                        f"with {topic}-{number} unassigned, without a reason in `left_out`",
                        view.written,
                        subscription,
                        commit.event,
                    )
                    break

    def _notice(self, now: float) -> float:
        """Seconds before which a change is certainly seen."""
        bounds, conditions = self.world.bounds, self.world.conditions
        notice = bounds["notice"]
        longer = notice + bounds["session_timeout"]
        return longer if conditions.disturbed_until > now - longer else notice


def _is_new(before: StateView | None, after: StateData) -> bool:
    known = before.data if before is not None else None
    return known is None or known.state != STABLE or known.generation != after.generation or known.raw != after.raw
