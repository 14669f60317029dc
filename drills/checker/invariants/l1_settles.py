"""L1: the group is Stable soon after the last fault; L5: client-side assignment terminates, also when leaders fail."""

from __future__ import annotations

from dataclasses import dataclass

from zk_group.coordinator.zk.znodes.group_state import CLIENT, STABLE
from zk_group.coordinator.zk.znodes.paths import ask_number

from ..replay.commits import HAND, Changed, ChannelChange, Commit
from ..replay.conditions import FOREVER, NEVER, Fault
from ..replay.expected_target import can_be_led, has_failed, hold_s, longest_ask_s, runs_target
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import AskView, GroupView, OwnerView
from .base import Invariant

SILENT_SHARE = 2 / 3
"""A member sends a heartbeat every third of its poll interval: a dead member is evicted no sooner after that."""

LOST_STATE_S = 40.0
"""Seconds that partitions wait after a group's state was lost or edited manually: the partitions under eviction holds
are unknown."""


@dataclass(slots=True, eq=False)
class _Unsettled:
    """An unsettled group: since when, why, and the last commit of its state."""

    since: Event
    why: str
    state: Event | None


class Settled(Invariant):
    """After the last fault the group is Stable within the negotiated timeout + 2 ticks + 1 s; with a live but stuck
    consumer, its rebalance timeout + lease + 1 s.

    A consumer stuck from `calm` on has left after its poll interval and a session timeout.
    A coordinator elected after `calm` counts its silence from the election: the group may be later by that time.
    Where a member's poll interval is below the session timeout, a lease more: the dead may be evicted first.
    From then on until the end every group with live members is Stable and each of them runs its target. The time
    counts from `calm`; from the last command that a stuck lying member has named in its channel (L4 judges how long
    it may stay); from a coordinator's rewrite of a manually edited state (and 40 s: its eviction holds are lost); or
    from its removal of the seat of a static member that has not come back; for a group of a consistent region from its
    last reset, with `hold` added. A deadline missed before a lie, or before the removal of a seat, stays missed.
    Not judged: paused groups, groups of a failed region, with a registration made
    unreadable by a manual edit, or with a manually edited state, or with an owner znode of a lying member,
    until its session ends. Groups with client-side assignment, now or after `calm`, are L5's (`Decided`).
    """

    name = "L1"
    sentence = (
        "After the last fault the group is Stable within the negotiated timeout + 2 ticks + 1 s; "
        "with a stuck consumer, its rebalance timeout + lease + 1 s."
    )
    wants = Changed.LIFE | Changed.RUNNING | Changed.NAMED | Changed.MEMBER | Changed.STATE
    events = ("calm", "elected", "end")
    needs_bounds = True

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._calm: Event | None = None
        self._stuck: Fault | None = None
        self._silent_after_s = 0.0
        self._led: dict[str, float] = {}
        self._unsettled: dict[str, _Unsettled] = {}
        self._marked: set[str] = set()
        self._rewritten: dict[str, float] = {}
        self._lied: dict[str, float] = {}
        self._given_up: dict[str, float] = {}
        self._late: str | None = "there is no `calm` event"
        self._is_due = False

    def bound(self, group: GroupView) -> float:
        """Seconds after `calm` until the group must have settled."""
        bounds = self.world.bounds
        found: float = bounds["session_timeout"] + 2 * bounds["tick"] + 1
        shortest = bounds.get("shortest_poll_interval", bounds["poll_interval"])
        if shortest * SILENT_SHARE < bounds["session_timeout"]:
            found += bounds["lease"]  # a dead member may be evicted before its session expires
        elif group.name in self._marked or any(view.by_hand for view in group.channels.values()):
            # The next coordinator counts an eviction hold from its own election on; a lying member sends no heartbeat.
            found += bounds["lease"]
        stuck = [name for name in {*group.members, *group.channels} if self._stuck and self._is_stuck(group, name)]
        if stuck:
            found = max(found, bounds["poll_interval"] + bounds["lease"] + 1 + self._silent_after_s)
        if any(name in group.channels and group.channels[name].by_hand for name in stuck):
            # It does not leave by itself: its silence counts once a sweep has read its channel.
            found += bounds["sweep"]
        if self.is_led(group):
            found += longest_ask_s(self.world) * (1 + self._may_not_answer(group))
        return found + hold_s(self.world, group)

    def is_led(self, group: GroupView) -> bool:
        """Whether the group has client-side assignment, or had after `calm`, or changes to it."""
        if group.is_led or (self._calm is not None and self._led.get(group.name, NEVER) >= self._calm["at"]):
            return True
        registrations = [member.registration for member in group.members.values()]
        return any(each is not None and each.pattern == CLIENT for each in registrations)

    def concerns(self, group: GroupView) -> bool:
        """Whether this invariant judges the group."""
        return not self.is_led(group)

    def _may_not_answer(self, group: GroupView) -> int:
        """Leaders that may fail in turn: stuck ones, and those with broken assignors."""
        broken = self.world.conditions.broken
        names = {*group.members, *group.channels}
        return sum(self._is_stuck(group, name) or (broken is not None and broken.hit(name)) for name in names)

    def _is_stuck(self, group: GroupView, consumer: str) -> bool:
        owner = group.channels[consumer].owner if consumer in group.channels else ""
        names = (consumer, f"{group.name}/{consumer}", owner, owner.partition("#")[0])
        return self._stuck is not None and self._stuck.hit(*names)

    def deadline(self, group: GroupView) -> float:
        """When the group must have settled again; infinity while that is not judged."""
        if self._calm is None or not self.world.bounds:
            return float("inf")
        calm: float = self._calm["at"]
        since = max(calm, self._rewritten.get(group.name, NEVER), self._lied.get(group.name, NEVER))
        if group.name in self._unsettled:
            since = max(since, self._given_up.get(group.name, NEVER))
            region = self.world.regions.of(group.name)
            if region is not None and region.reset_at is not None:
                since = max(since, region.reset_at["at"])
        return since + self.bound(group)

    def is_judged(self, group: GroupView) -> bool:
        """Whether neither a manual edit nor a pause blocks the group."""
        if group.is_edited:
            return False
        if any(member.by_hand and member.registration is None for member in group.members.values()):
            return False
        if any(owner.by_hand and not _is_live(group, owner) for owner in group.owners.values()):
            return False
        if not can_be_led(self.world, group) or has_failed(self.world, group):
            return False
        return self.world.conditions.unpaused_since(group.name) < FOREVER

    def on_commit(self, commit: Commit) -> None:
        for group, before, after in commit.states:
            was_led = before is not None and before.data is not None and before.data.client is not None
            if was_led or group.is_led:
                self._led[group.name] = commit.at
            was_lost = before is not None and before.by_hand
            was_lost = was_lost or (before is None and group.state_hand_at > NEVER)
            if was_lost and after is not None and not commit.by_hand:
                self._rewritten[group.name] = commit.at + LOST_STATE_S
        if self._calm is None:
            return
        groups = {change.view.group.name: change.view.group for change in commit.channels}
        groups |= {group.name: group for group, _, _ in commit.states + commit.members}
        for change in commit.channels if commit.by_hand and commit.who != HAND else ():
            self._count_lie(change, commit.event)
        for group in groups.values():
            self._count_seat(group, commit.event)
            self._look(group, commit.event)

    def _count_seat(self, group: GroupView, event: Event) -> None:
        """A removed seat extends the deadline from now on, but not a missed one."""
        if group.seat_given_up_at > self._given_up.get(group.name, NEVER):
            self._report_missed(group, event)
            self._given_up[group.name] = group.seat_given_up_at

    def _count_lie(self, change: ChannelChange, event: Event) -> None:
        """Likewise a command acknowledged by a stuck lying member: its silence counts from then."""
        group, name, same, after = change.view.group, change.view.consumer, change.same, change.after
        has_named = same is not None and after is not None and same.command != after.command
        if has_named and group.live(name) and self._is_stuck(group, name):
            self._report_missed(group, event)
            self._lied[group.name] = event["at"]

    def _report_missed(self, group: GroupView, event: Event) -> None:
        known = self._unsettled.get(group.name)
        if known is not None and self.is_judged(group) and event["at"] > self.deadline(group):
            self._report(group, known, event)
            del self._unsettled[group.name]

    def _look(self, group: GroupView, event: Event) -> None:
        known = self._unsettled.get(group.name)
        if not is_settled(group):
            self._begin(group, known.since if known is not None else event)
        else:
            self._report_missed(group, event)
            self._unsettled.pop(group.name, None)

    def _begin(self, group: GroupView, since: Event) -> None:
        self._unsettled[group.name] = _Unsettled(since, _why_unsettled(group), group.written)

    def _report(self, group: GroupView, unsettled: _Unsettled, until: Event) -> None:
        if not self.concerns(group):
            return
        since = unsettled.since
        why = f"{group} was not settled from {moment(since['at'])} to {moment(until['at'])} ({unsettled.why})"
        due = f"and had to be at {moment(self.deadline(group))}"
        self.broken(f"{why}, {due}", unsettled.state, self._calm, since, until)

    def on_calm(self, event: Event) -> None:
        self._calm = event
        stuck = {name: value for name, value in event.items() if name != "broken"}
        self._stuck = Fault({**stuck, "kind": "stuck"}) if event.get("stuck") else None
        self._unsettled.clear()
        for group in self.world.groups.values():
            if group.known is not None and group.known.marks:
                self._marked.add(group.name)
            if not is_settled(group):
                self._begin(group, event)

    def on_elected(self, event: Event) -> None:
        """A stuck consumer's silence counts from here, if the calm has not lasted longer than an election takes."""
        if self._calm is not None and self.world.bounds:
            late = event["at"] - self._calm["at"]
            if late <= self.world.bounds["session_timeout"] + 2 * self.world.bounds["tick"]:
                self._silent_after_s = max(self._silent_after_s, late)

    def on_end(self, event: Event) -> None:
        if self._calm is None or not self.world.bounds:
            return
        self._late = None
        for name, group in sorted(self.world.groups.items()):
            if not self.concerns(group) or (not group.live_members and name not in self._unsettled):
                continue
            deadline = self.deadline(group)
            if event["at"] <= deadline:
                self._late = f"the history ends at {moment(event['at'])}, before {moment(deadline)}"
                self._is_due = True
            elif self.is_judged(group):
                self.judged += 1
                if name in self._unsettled:
                    self._report(group, self._unsettled[name], event)
                self._judge_stuck(group, self._calm, event)

    def _judge_stuck(self, group: GroupView, calm: Event, end: Event) -> None:
        """A consumer that has not polled since the calm for its poll interval has left."""
        limit = self.world.bounds["poll_interval"] + self.world.bounds["session_timeout"] + 1
        for name, view in sorted(group.channels.items()):
            if group.live(name) and self._is_stuck(group, name) and end["at"] > calm["at"] + limit:
                why = f"{view} has not polled since {moment(calm['at'])}, and is a member at {moment(end['at'])}"
                self.broken(why, view.since, calm, end)

    def undecided(self) -> tuple[str, bool] | None:
        if self._calm is not None and self._late is not None and not self._is_due:
            return "the history has no `end`", True
        return (self._late, self._is_due) if self._late is not None else None


def is_settled(group: GroupView) -> bool:
    """Whether a group has no live members, or is Stable with each of them running its target."""
    return not _why_unsettled(group)


def _why_unsettled(group: GroupView) -> str:
    """Why a group is not settled; empty when it is."""
    live, state = group.live_members, group.known
    if not live:
        return ""
    if state is None:
        return "its state is missing or cannot be read"
    if state.state != STABLE:
        return f"{state.state} in generation {state.generation}"
    odd = next((name for name in live if not runs_target(group, state, name)), None)
    return f"{odd} does not run its target" if odd is not None else ""


def _is_live(group: GroupView, owner: OwnerView) -> bool:
    """Whether an owner znode names a live member's incarnation."""
    data = owner.data
    return data is not None and group.live(data.consumer) and group.channels[data.consumer].lives_as(data.incarnation)


class Decided(Settled):
    """A leader's death, hang or error at any point, and any number of joins meanwhile, end in a Stable group.

    As L1, for groups with client-side assignment, with `assignment_timeout` (a leader's without a proposal, and the
    backoff after it) once, and once for each member that is stuck, or whose assignor fails for good. A group with
    broken assignors only (`broken` of `calm`) is not judged.

    And no leader is waited for without an `assign`: a pending request has its `assign` in the leader's channel, or its
    `answer`, within `notice`.
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
    """The pending request of a live leader with neither a command nor an `answer`."""
    view, client = group.newest_ask, group.known.client if group.known is not None else None
    if view is None or view.gone is not None or view.answered is not None or view.ask is None or view.by_hand:
        return None
    if client is None or view.number <= max(ask_number(client.ask), ask_number(client.failed_ask)):
        return None
    if not group.is_asked(view.ask):
        return None
    commands = group.channels[view.ask.leader].commands.values()
    return None if any(each.asks_for(view.name) for each in commands) else view
