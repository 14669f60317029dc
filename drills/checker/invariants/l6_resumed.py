"""L6: a consistent region resumes, and reaches new cuts."""

from __future__ import annotations

from zk_group.coordinator.zk.znodes.regions import ABORTED, COMPLETED, RUNNING

from ..replay.expected_target import has_failed
from ..replay.replay import Replay
from ..replay.verdict import moment
from ..replay.znode_views import GroupView, RegionView
from .base import Invariant
from .l1_settles import is_settled

RESET_TIMEOUT_S = 15.0
CHECKPOINT_S = 60.0
DRAIN_S = 60.0
"""Used where `bounds` lack them."""

MOST_DOUBLINGS = 4
"""Maximum number of times that the interval doubles after checkpoints without all contributions."""


def _aborted(view: RegionView) -> int:
    """Consecutive aborted checkpoints: they delay the next one."""
    found = 0
    for number in sorted(view.checkpoints, reverse=True):
        ends = view.checkpoints[number].ends
        if COMPLETED in ends:
            break
        found += ABORTED in ends
    return found


def _is_whole(group: GroupView) -> bool:
    """Whether every member of the target is present, or away from its seat; except the member that inherits the states
    of departed members."""
    state = group.known
    if state is None or not state.target:
        return True
    away = state.region.away if state.region is not None else ()
    return min(state.target) not in away and all(group.live(name) or name in away for name in state.target)


class Resumed(Invariant):
    """A region is Running again within `reset_timeout` after its groups are Stable, and reaches a new cut within an
    interval and a drain of calm.

    Judged after `calm`, while every group of the region is settled (as in L1) with all of its target present, no member
    is stuck, and nothing is paused. A cut is new when it is above the one before, or the region was reset meanwhile.
    After aborted checkpoints the interval doubles.
    """

    name = "L6"
    sentence = "A region is Running again soon after its groups are Stable, and reaches a new cut within an interval."
    needs_bounds = True

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._resetting: dict[str, float] = {}
        self._standing: dict[str, tuple[tuple[int, int], float]] = {}

    def on_tick(self, now: float) -> None:
        if self.world.conditions.calm is None or not self.world.bounds:
            return
        for name, view in self.world.regions.views.items():
            region = view.data
            if region is None or view.by_hand or not self._is_calm(view, now):
                self._resetting.pop(name, None)
                self._standing.pop(name, None)
            elif region.state != RUNNING:
                self._standing.pop(name, None)
                self._judge_reset(view, self._resetting.setdefault(name, now), now)
            else:
                self._resetting.pop(name, None)
                where = (region.reset, region.sequence)
                known, since = self._standing.get(name, (where, now))
                self._standing[name] = (where, since if known == where else now)
                self._judge_cut(view, self._standing[name][1], now)

    def _is_calm(self, view: RegionView, now: float) -> bool:
        conditions = self.world.conditions
        if conditions.undisturbed_since(now) > now or view.data is None:
            return False
        groups = [self.world.groups[name] for name in view.data.groups if name in self.world.groups]
        stuck = [fault for fault in conditions.stuck if fault.until >= now]
        names = {name for group in groups for name in (*group.channels, *(c.owner for c in group.channels.values()))}
        return (
            any(group.live_members for group in groups)
            and not any(has_failed(self.world, group) for group in groups)
            and all(
                is_settled(group) and _is_whole(group) and conditions.unpaused_since(group.name) <= now
                for group in groups
            )
            and not any(group.is_edited for group in groups)
            and not any(fault.hit(*names) for fault in stuck)
        )

    def _judge_reset(self, view: RegionView, since: float, now: float) -> None:
        self.judged += 1
        allowed = self.world.bounds.get("reset_timeout", RESET_TIMEOUT_S)
        if view.data is not None and now - since > allowed:
            self._resetting[view.name] = float("inf")
            why = f"region {view.name} is {view.data.state} at {moment(now)}, and its groups are Stable since"
            self.broken(f"{why} {moment(since)}", self.world.conditions.calm, view.written)

    def _judge_cut(self, view: RegionView, since: float, now: float) -> None:
        self.judged += 1
        interval: float = self.world.bounds.get("checkpoint_interval", CHECKPOINT_S)
        interval *= 2 ** min(_aborted(view), MOST_DOUBLINGS)
        if view.data is not None and now - since > interval + self.world.bounds.get("drain_timeout", DRAIN_S):
            self._standing[view.name] = ((view.data.reset, view.data.sequence), float("inf"))
            why = f"region {view.name} stands on checkpoint {view.data.sequence} from {moment(since)} to {moment(now)}"
            self.broken(why, self.world.conditions.calm, view.written)
