"""S2: a Stable group runs its target."""

from __future__ import annotations

from zk_group.coordinator.zk.znodes.group_state import STABLE, GroupState

from ..replay.commits import Changed, Commit
from ..replay.expected_target import has_failed
from ..replay.znode_views import GroupView, StateView
from .base import Invariant


class Covering(Invariant):
    """Once a group is Stable, each member of its target runs exactly its share.

    Judged when a coordinator makes a state Stable; what a channel reports as refused need not run. That a target is
    disjoint is checked before it is written; L2 judges whether it covers all members and topics.
    """

    name = "S2"
    sentence = "In a Stable generation every member of the target runs exactly its share."
    wants = Changed.STATE

    def on_commit(self, commit: Commit) -> None:
        for written in commit.states:
            group, before, now = written.group, written.before, written.now
            if now is not None and now.state == STABLE and _is_new(before, now) and not has_failed(self.world, group):
                self.judged += 1
                self._judge(group, now, commit)

    def _judge(self, group: GroupView, state: GroupState, commit: Commit) -> None:
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


def _is_new(before: StateView | None, after: GroupState) -> bool:
    known = before.data if before is not None else None
    return known is None or (known.state, known.generation, known.target) != (STABLE, after.generation, after.target)
