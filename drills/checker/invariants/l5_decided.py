"""L5: client-side assignment terminates, also when leaders fail."""

from __future__ import annotations

from coordinator.zk.znodes.paths import ask_number

from ..replay.replay import Replay
from ..replay.verdict import moment
from ..replay.znode_views import AskView, GroupView
from .l1_settles import Settled


class Decided(Settled):
    """A leader's death, hang or error at any point, and any number of joins meanwhile, end in a Stable group.

    As L1, for groups with client-side assignment, with `assignment_timeout` (a leader's without an answer, and the
    backoff after it) once, and once for each member that is stuck, or whose assignor fails for good. A group with
    broken assignors only (`broken` of `calm`) is not judged.

    And no leader is waited for without an `assign`: a pending ask has its `assign` in the leader's channel, or its
    answer, within `notice`.
    """

    name = "L5"
    sentence = "A leader's death, hang or error at any point, and any number of joins meanwhile, end in a Stable group."

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._unasked: dict[str, tuple[str, float]] = {}

    def concerns(self, group: GroupView) -> bool:
        return self.is_led(group)

    def on_tick(self, now: float) -> None:
        found: dict[str, tuple[str, float]] = {}
        for name, group in self.world.groups.items():
            view = _not_asked(group)
            if view is None:
                continue
            known, since = self._unasked.get(name, ("", now))
            found[name] = (view.name, since if known == view.name else now)
            if self.world.bounds and self._judge_asked(group, view, found[name][1], now):
                found[name] = (view.name, float("inf"))  # reported once
        self._unasked = found

    def _judge_asked(self, group: GroupView, view: AskView, since: float, now: float) -> bool:
        bounds, conditions = self.world.bounds, self.world.conditions
        able = max(conditions.undisturbed_since(now), conditions.unpaused_since(group.name), group.hand_at)
        allowed = bounds["notice"] + (bounds["session_timeout"] if able > since else 0.0)
        is_late = now - max(since, able) > allowed and not group.is_edited
        if is_late:
            why = f"{view} is waited for from {moment(since)} to {moment(now)}, and no `assign` for it stands"
            self.broken(f"{why} in the channel of its leader", view.made, group.written)
        return is_late


def _not_asked(group: GroupView) -> AskView | None:
    """The pending ask of a live leader with neither a command nor an answer."""
    view, client = group.newest_ask, group.known.client if group.known is not None else None
    if view is None or view.gone is not None or view.answered is not None or view.ask is None or view.by_hand:
        return None
    if client is None or view.number <= max(ask_number(client.ask), ask_number(client.failed_ask)):
        return None
    if not group.is_asked(view.ask):
        return None
    commands = group.channels[view.ask.leader].commands.values()
    return None if any(each.asks_for(view.name) for each in commands) else view
