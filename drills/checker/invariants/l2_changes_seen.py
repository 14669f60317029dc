"""L2: no change is missed."""

from __future__ import annotations

from ..replay.commits import Changed, Commit
from ..replay.expected_target import Item, can_be_led, extra_s, has_failed, is_kept, item_text, mismatches
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import GroupView
from .base import Invariant
from .l3_isolation import hits

SHORT_S = 60.0
"""Seconds after which a previously stuck member delays nothing."""


class ChangesSeen(Invariant):
    """Every change is seen though its watch event was lost.

    A member that joins or leaves, another subscription, a topic that is created, deleted, recreated or gets partitions:
    the target of the group's state reflects it within `notice`. The time counts from the change, or from when a
    coordinator acts without a break and undisturbed (then with the session timeout added); after `calm` no excuse lasts
    longer than an election. A static member that has left may keep its part for a session timeout more, while it has a
    seat. Under client-side assignment a pending ask comes first, so `assignment_timeout` is added twice, and nothing
    counts while a member of the group is stuck; in a consistent region a checkpoint comes first, so `hold` is added.
    The target's coverage is compared, not its distribution.
    """

    name = "L2"
    sentence = "Every change is seen though its watch event was lost."
    wants = Changed.STATE | Changed.MEMBER | Changed.TOPIC | Changed.LIFE
    events = ("end",)
    needs_bounds = needs_end = True

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._items: dict[str, dict[Item, Event]] = {}

    def on_commit(self, commit: Commit) -> None:
        if commit.mask & Changed.TOPIC:
            groups = set(self.world.groups.values())
        else:
            groups = {change.view.group for change in commit.channels}
            groups.update(group for group, _, _ in commit.states)
            groups.update(group for group, _, _ in commit.members)
        for group in groups:
            self._compare(group, commit.event)

    def _compare(self, group: GroupView, event: Event) -> None:
        known = self._items.get(group.name)
        found = mismatches(self.world, group)
        if not found:
            if known:
                del self._items[group.name]
            return
        self.judged += known is None
        if known:
            self._items[group.name] = {item: known.get(item, event) for item in found}
        else:
            self._items[group.name] = dict.fromkeys(found, event)

    def on_tick(self, now: float) -> None:
        if self._items and self.world.bounds:
            for name in list(self._items):
                self._judge(self.world.groups[name], now, None)

    def _judge(self, group: GroupView, now: float, end: Event | None) -> None:
        items = self._items[group.name]
        due = [item for item, event in items.items() if self._is_overdue(group, item, event["at"], now)]
        if due:
            item = due[0]
            since = items[item]
            for each in due:
                items[each] = {**since, "at": float("inf")}  # reported once
            why = f"{item_text(item)}, {group}: so since {moment(since['at'])}, and not in the target at {moment(now)}"
            self.broken(why, since, group.written, end)

    def _is_overdue(self, group: GroupView, item: Item, since: float, now: float) -> bool:
        bounds, conditions = self.world.bounds, self.world.conditions
        able = max(conditions.undisturbed_since(now), conditions.unpaused_since(group.name))
        if conditions.calm is not None and conditions.unpaused_since(group.name) < float("inf"):
            able = min(able, conditions.calm["at"] + bounds["session_timeout"] + 2 * bounds["tick"] + 1)
        if group.is_led:
            able = max(able, self._led_since(group, now))
        if has_failed(self.world, group):
            return False
        late = bounds["notice"] + (bounds["session_timeout"] if able > since else 0.0)
        late += extra_s(self.world, group, asks=2)
        if is_kept(self.world, group, item):
            late += bounds["session_timeout"]
        return now - max(since, able) > late

    def _led_since(self, group: GroupView, now: float) -> float:
        """Since when no member of the group is stuck; after `calm` for at most a leader's time."""
        if not can_be_led(self.world, group):
            return float("inf")
        conditions = self.world.conditions
        felt = [each for each in conditions.stuck if each.until > now - SHORT_S and hits(each, group, self.world)]
        until = max((min(each.until, now) for each in felt), default=float("-inf"))
        if conditions.calm is None:
            return until
        latest: float = conditions.calm["at"] + self.world.bounds["poll_interval"] + self.world.bounds["lease"]
        return min(until, latest)

    def on_end(self, event: Event) -> None:
        for name in list(self._items) if self.world.bounds else ():
            self._judge(self.world.groups[name], event["at"], event)

    def undecided(self) -> tuple[str, bool] | None:
        if self._items:
            name, items = min(self._items.items())
            item, since = min(items.items(), key=lambda pair: pair[1]["at"])
            return (
                f"{item_text(item)}, group {name}, since {moment(since['at'])}: the history ends before that is due",
                False,
            )
        return None
