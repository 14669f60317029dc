"""L2 and L3: no change is missed, and stuck members are isolated."""

from __future__ import annotations

from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

from ..replay.commits import Changed, Commit
from ..replay.conditions import FOREVER, Fault
from ..replay.expected_target import Item, can_be_led, extra_s, has_failed, held, hold_s, is_kept, item_text, mismatches
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import GroupView
from .base import Invariant
from .l1_settles import is_settled

MORE_S = 1.0
"""Seconds of a rebalance itself, on top of `notice`: the debounce, a straggler's half second, the round trips."""

SHORT_S = 60.0
"""Seconds after which a previously stuck member delays nothing."""

Wait = tuple[str, str, TopicPartition, int]
"""Group, consumer, partition, generation."""


class Unhindered(Invariant):
    """A stuck group or consumer delays no partitions of others.

    While a process is stuck (a fault of kind `stuck`, `hang` or `pause` that did not hit a node) and no other fault is
    active: a group without it is Stable within `notice` + 1 s of its last change (with client-side assignment,
    `assignment_timeout` more); and no free partition waits longer than that in a generation. Free means that no channel
    runs it, no start names it, no eviction hold covers it, it has no owner znode, and its member has no pending stop or
    start. With the bound `turn`, partitions are judged by that instead of `notice`, regardless of faults of members, as
    long as no fault hits a server or a node. In a consistent region all members stop together, and wait for a
    checkpoint: `hold` is added, a fault of one of its groups hits all, and no member is started with a part of its
    target.
    """

    name = "L3"
    sentence = "A stuck group or consumer delays no partitions of others."
    wants = Changed.STATE | Changed.RUNNING
    needs_bounds = True

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._unsettled: dict[str, float] = {}
        self._waiting: dict[Wait, float] = {}

    def on_commit(self, commit: Commit) -> None:
        if not self._unsettled and not self._waiting:
            return
        for group, _, _ in commit.states:
            if group.known is not None and group.known.state == STABLE:
                self._unsettled.pop(group.name, None)
        for change in commit.channels:
            view = change.view
            for key in [key for key in self._waiting if key[0] == view.group.name and key[2] in view.running]:
                del self._waiting[key]

    def on_tick(self, now: float) -> None:
        if not self.world.bounds:
            return
        self._look_at_groups(now)
        self._look_at_partitions(now)

    def _look_at_groups(self, now: float) -> None:
        conditions = self.world.conditions
        stuck = [fault for fault in conditions.stuck if fault.until >= now]
        if not stuck or conditions.undisturbed_since(now) > now:
            self._unsettled.clear()
            return
        able = max(conditions.acting_since(now), conditions.disturbed_until + self._effects_s)
        self.judged += able <= now
        felt = self._felt(now)
        for name, group in self.world.groups.items():
            is_busy = not is_settled(group) or bool(mismatches(self.world, group))
            if not is_busy or any(hits(each, group, self.world) for each in felt):
                self._unsettled.pop(name, None)
            else:
                since = self._unsettled.setdefault(name, now)
                self._judge_group(group, stuck[0], max(since, able), now)

    def _look_at_partitions(self, now: float) -> None:
        conditions = self.world.conditions
        acting, disturbed = conditions.acting_since(now), conditions.hindered_until
        if "turn" not in self.world.bounds:
            is_stuck = any(fault.until >= now for fault in conditions.stuck)
            disturbed = conditions.disturbed_until if is_stuck else FOREVER
        if max(acting, disturbed) > now:
            self._waiting.clear()
            return
        able = max(acting, disturbed + self._effects_s)
        felt, waiting = self._felt(now), {}
        for name, group in self.world.groups.items():
            is_judged = "turn" in self.world.bounds or any(hits(each, group, self.world) for each in felt)
            if group.known is None or not is_judged:
                continue
            generation = group.known.generation
            for consumer, partition in self._free(group, felt):
                key = (name, consumer, partition, generation)
                waiting[key] = self._waiting.get(key, now)
        self._waiting = waiting
        for (name, consumer, partition, _), since in waiting.items():
            self._judge_partition(self.world.groups[name], consumer, partition, max(since, able), now)

    def _felt(self, now: float) -> list[Fault]:
        """Faults of stuck processes that may have effects."""
        return [fault for fault in self.world.conditions.stuck if fault.until + self._effects_s >= now]

    @property
    def _effects_s(self) -> float:
        """How long an ended fault may have effects: a session ended by it must expire first."""
        return self.world.bounds["session_timeout"] + 2 * self.world.bounds["tick"] + 1

    def _judge_group(self, group: GroupView, fault: Fault, since: float, now: float) -> None:
        since = max(since, group.changed_at, self.world.topics_changed_at, group.hand_at)
        since = max(since, self.world.conditions.unpaused_since(group.name))
        allowed = self.world.bounds["notice"] + MORE_S + extra_s(self.world, group)
        is_excused = group.is_edited or not can_be_led(self.world, group) or has_failed(self.world, group)
        if now - since <= allowed or is_excused:
            return
        self._unsettled[group.name] = float("inf")
        why = f"{group} has waited from {moment(since)} to {moment(now)} to become Stable, while only"
        stuck = ", ".join(sorted(fault.names)) or "a process"
        self.broken(f"{why} {stuck} of another group was stuck", fault.event, group.written)

    def _free(self, group: GroupView, faults: list[Fault]) -> list[tuple[str, TopicPartition]]:
        """(consumer, partition) of free partitions that their consumer does not run."""
        state = group.known
        if state is None or group.is_edited or has_failed(self.world, group):
            return []
        is_whole = self.world.regions.of(group.name) is not None  # there a start is never partial
        if any(view.data is None for view in group.channels.values()):
            return []
        starts = [command for _, command in group.pending if command.is_start]
        given = held(group, state).union(group.owners, *(command.partitions for command in starts))
        found = []
        for name in group.live_members:
            view, share = group.channels[name], state.target.get(name)
            if share is None or view.data is None or share.incarnation != view.data.incarnation:
                continue
            if is_whole and not share.partitions.isdisjoint(given):
                continue
            if any(each.data is None or each.is_stop or each.is_start for each in view.commands.values()):
                continue  # one command after the other
            if not any(fault.hit(name, view.owner) for fault in faults) and not view.by_hand:
                found += [(name, partition) for partition in share.partitions - given]
        return found

    def _judge_partition(self, group: GroupView, consumer: str, part: TopicPartition, since: float, now: float) -> None:
        bounds = self.world.bounds
        since = max(since, group.hand_at, self.world.conditions.unpaused_since(group.name))
        if now - since <= bounds.get("turn", bounds["notice"]) + MORE_S + hold_s(self.world, group):
            return
        generation = group.known.generation if group.known is not None else 0
        self._waiting[group.name, consumer, part, generation] = float("inf")
        stuck = [each for each in self.world.conditions.stuck if hits(each, group, self.world)]
        why = f"{part} of {group} was kept from {consumer} from {moment(since)} to {moment(now)}"
        self.broken(f"{why}, though no other member had it", stuck[-1].event if stuck else None, group.written)


def hits(fault: Fault, group: GroupView, world: Replay) -> bool:
    """Whether a fault hit a member of the group, the group itself, or another group of its consistent region."""
    names = world.regions.siblings(group.name)
    return any(_hits(fault, world.groups[name], world) for name in names if name in world.groups)


def _hits(fault: Fault, group: GroupView, world: Replay) -> bool:
    names = (each for name, view in group.channels.items() for each in (name, view.owner, f"{group.name}/{name}"))
    if fault.hit(group.name, *names):
        return True
    return any(process.group == group.name and fault.hit(process.who) for process in world.processes.values())


class ChangesSeen(Invariant):
    """Every change is seen though its watch event was lost.

    A member that joins or leaves, another subscription, a topic that is created, deleted, recreated or gets partitions:
    the target of the group's state reflects it within `notice`. The time counts from the change, or from when a
    coordinator acts without a break and undisturbed (then with the session timeout added); after `calm` no excuse lasts
    longer than an election. A static member that has left may keep its part for a session timeout more, while it has a
    seat. Under client-side assignment a pending request comes first, so `assignment_timeout` is added twice; no time
    counts while a member is stuck; in a consistent region a checkpoint comes first, so `hold` is added.
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
            groups.update(group for group, _, _ in commit.states + commit.members)
        for group in groups:
            self._compare(group, commit.event)

    def _compare(self, group: GroupView, event: Event) -> None:
        known = self._items.pop(group.name, {})
        if found := mismatches(self.world, group):
            self.judged += not known
            self._items[group.name] = {item: known.get(item, event) for item in found}

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
            why = f"{item_text(item)}, group {name}, since {moment(since['at'])}: the history ends before that is due"
            return why, False
        return None
