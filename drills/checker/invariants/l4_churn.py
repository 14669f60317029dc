"""L4: progress under churn."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from coordinator.zk.znodes.group_state import STABLE

from ..replay.channel_data import ChannelData
from ..replay.commits import GONE, HAND, LIFE, NAMED, SENT, STATE, Commit
from ..replay.conditions import FOREVER, NEVER
from ..replay.expected_target import decided, hold_s, longest_ask_s, runs_target
from ..replay.fast_json import Partition
from ..replay.reading import CommandData, StateData
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, GroupView, StateView
from .base import Invariant
from .l1_settles import Settled

WITHDRAWN_FOR_S = 1.0
"""Seconds: a command may be withdrawn in one turn and replaced in the next; so short a gap ends no wait."""

REMOVED_FOR_S = 2.0
"""The same of one that the consumer has removed and not carried out: it is sent again a second later."""

MOST_SENT = 4
"""Two are sent at once, then one a second."""

WITHIN_S = 2.0

Sent = tuple[object, ...]


@dataclass(slots=True, eq=False)
class _Wait:
    """Since when a consumer has had commands and carried out none; it has none, and the wait is over at `until`."""

    view: ChannelView
    first: Event
    until: float = FOREVER


def _begins(view: ChannelView, before: ChannelData, after: ChannelData) -> bool:
    """Whether the consumer begins with a command that stays: it takes several commits, or restores a state."""
    return before.command != after.command and after.command in view.commands


def _is_carried_out(data: CommandData | None, view: ChannelView) -> bool:
    """Whether the consumer's channel shows a stop or start; of any other command it need not."""
    if data is None or view.data is None:
        return True
    running = view.data.running.keys()
    if data.is_stop:
        return not running & (data.partitions or running)
    return not data.is_start or data.partitions <= running | view.data.refused


def _has_owners(view: ChannelView) -> bool:
    """Whether each partition that the consumer runs has an owner znode."""
    return view.data is not None and view.data.running.keys() <= view.group.owners.keys()


def _waits_for_others(group: GroupView, state: StateData, name: str) -> bool:
    """Whether all that a member lacks of its target has owner znodes, or is run by others or marked."""
    target, data = state.target.get(name), group.channels[name].data
    if target is None or data is None:
        return False
    missing = target.partitions - data.running.keys()
    taken = {*group.owners, *(part for marked in state.marks.values() for part in marked)}
    for other, view in group.channels.items():
        if other != name and view.data is not None:
            taken |= view.data.running.keys()
    return bool(missing) and missing <= taken


class ChurnProgress(Invariant):
    """Churn does not livelock, and does not postpone an eviction.

    A member that has commands and carries out none for its `max_poll_interval_ms` + `notice` has been evicted (or left)
    by then, though its commands are withdrawn, or removed by itself, and replaced meanwhile; unless the group is Stable
    and it has no command left, and runs its target with owner znodes; or it has none, and waits for others. And after
    `calm`, past L1's deadline, no new generation begins without a change. Repeated starts and generations are judged
    by `Repeats`.
    """

    name = "L4"
    sentence = "Churn does not livelock, and does not postpone an eviction."
    wants = SENT | GONE | NAMED | LIFE | STATE
    needs_bounds = True

    def __init__(self, world: Replay, settled: Settled) -> None:
        super().__init__(world)
        self._settled = settled
        self._waits: dict[tuple[str, str], _Wait] = {}
        self._edited: set[tuple[str, str]] = set()
        self._repeats = Repeats(world, self.broken)

    # ---- evictions

    def on_commit(self, commit: Commit) -> None:
        self._repeats.on_commit(commit)
        for change in commit.channels:
            was, now, view = change.before, change.after, change.view
            key = view.group.name, view.consumer
            is_new = was is None or now is None or not now.is_live or was.incarnation != now.incarnation
            if is_new or (now is not None and was is not None and _begins(view, was, now)):
                self._waits.pop(key, None)
            if commit.who == HAND:
                self._edited.add(key)
            elif is_new:
                self._edited.discard(key)
        for view, command in commit.made:
            if view.is_live and not command.by_hand:
                self.judged += 1
                wait = self._waits.setdefault((view.group.name, view.consumer), _Wait(view, commit.event))
                if wait.view is not view or commit.at > wait.until:
                    wait = self._waits[view.group.name, view.consumer] = _Wait(view, commit.event)
                wait.until = FOREVER
        for view, command in commit.gone:
            key = (view.group.name, view.consumer)
            is_withdrawn = self.world.process(commit.who).is_node
            if key in self._waits and not is_withdrawn and _is_carried_out(command.data, view):
                del self._waits[key]
                if view.commands:
                    self._waits[key] = _Wait(view, commit.event)
            elif key in self._waits and not view.commands:
                self._waits[key].until = commit.at + (WITHDRAWN_FOR_S if is_withdrawn else REMOVED_FOR_S)
        for group, before, after in commit.states:
            if after is not None and after.data is not None and after.data.state == STABLE and not commit.by_hand:
                for name in group.live_members:
                    view = group.channels[name]
                    if runs_target(group, after.data, name) and not view.commands and _has_owners(view):
                        self._waits.pop((group.name, name), None)
            elif after is not None and after.data is not None and not commit.by_hand:
                for name in group.live_members:
                    if not group.channels[name].commands and _waits_for_others(group, after.data, name):
                        self._waits.pop((group.name, name), None)
            if self.world.conditions.calm is not None and not commit.by_hand:
                self._judge_generation(group.name, before, after, commit)

    def on_tick(self, now: float) -> None:
        if not self._waits or not self.world.bounds:
            return
        able = self.world.conditions.undisturbed_since(now)
        for key, wait in list(self._waits.items()):
            view = wait.view
            if now > wait.until:
                del self._waits[key]
                continue
            since = max(wait.first["at"], able, self.world.conditions.unpaused_since(view.group.name))
            member = view.group.members.get(view.consumer)
            registration = member.registration if member is not None else None
            if registration is None or key in self._edited or not view.group.live(view.consumer):
                continue
            limit = registration.max_poll_interval_ms / 1000
            if now - since > limit + self.world.bounds["notice"]:
                del self._waits[key]
                self.broken(
                    f"{view.consumer} of group {view.group.name} has carried out none of its commands from "
                    f"{moment(wait.first['at'])} to {moment(now)}, over its max_poll_interval_ms of {limit:g} s, and "
                    "was not evicted",
                    member.written if member is not None else None,
                    wait.first,
                )

    # ---- generations

    def _judge_generation(self, name: str, before: StateView | None, after: StateView | None, commit: Commit) -> None:
        if before is None or before.data is None or after is None or after.data is None:
            return
        group = self.world.groups[name]
        if after.data.generation <= before.data.generation or commit.at <= self._settled.deadline(group):
            return
        changed = max(group.changed_at, group.hand_at, self.world.topics_changed_at)
        bounds = self.world.bounds
        room = (2 * longest_ask_s(self.world) if group.is_led else 0.0) + hold_s(self.world, group)
        if commit.at - changed > bounds["notice"] + bounds["session_timeout"] + room:
            self.broken(
                f"generation {after.data.generation} of group {name} begins at {moment(commit.at)}, and nothing has "
                f"changed since {moment(changed)}",
                self.world.conditions.calm,
                before.written,
                commit.event,
            )

    def undecided(self) -> tuple[str, bool] | None:
        return ("there is no `calm` event", False) if self.world.conditions.calm is None else None


class Repeats:
    """The same start is sent four times within 2 s at most, and no generation has the target of the previous one.

    The same start: of epoch, incarnation, generation, partitions, ask and reset. The same target: of members (static
    ones in any incarnation), threads, topics and strategy; a generation has it only when a member runs partitions
    without owner znodes. It is judged while neither members, topics nor a manual write have changed the group since the
    generation before began, and not under client-side assignment (S9).
    """

    def __init__(self, world: Replay, report: Callable[..., None]) -> None:
        self._world = world
        self._report = report
        self._sent: dict[tuple[str, str], tuple[Sent, list[Event]]] = {}
        self._begun: dict[str, float] = {}

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
        if was is None or now is None or now.generation == was.generation:
            return
        # A turn in several commits writes the state in each: what it has read is older than the last of them.
        begun, self._begun[group.name] = self._begun.get(group.name, NEVER), commit.at
        if now.generation != was.generation + 1 or not now.target or now.client:
            return
        target = decided(group, now, FOREVER)
        if target is None or target != decided(group, was, FOREVER):
            return
        if before is None or any(_lost_owners(view) for view in group.channels.values()):
            return
        if now.region != was.region:
            return
        changed = max(group.hand_at, group.changed_at, self._world.topics_changed_at)
        if changed < begun:
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
