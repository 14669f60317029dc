"""L4: progress under churn."""

from __future__ import annotations

from collections.abc import Callable, Set

from ..replay.channel_data import ChannelData
from ..replay.commits import GONE, LIFE, NAMED, SENT, STATE, Commit
from ..replay.conditions import FOREVER
from ..replay.expected_target import decided, hold_s, longest_ask_s
from ..replay.fast_json import Partition
from ..replay.reading import CommandData, StateData
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, GroupView, StateView
from .base import Invariant
from .l1_settles import Settled

WITHDRAWN_FOR_S = 1.0
"""Seconds: a command may be withdrawn in one turn and replaced in the next; so short a gap ends no wait."""

MOST_SENT = 4
"""Three strikes evict, and one start in a turn that was refused is not judged."""

MOST_SENT_TO_LIAR = 10
"""To a member whose channel is written by hands, or by itself as it likes: it may send itself commands."""

MOST_LOSSES = 3
"""Three starts that a member disobeys in a row evict it; each begins in another generation."""

WITHIN_S = 2.0

Sent = tuple[object, ...]


class _Wait:
    """Since when a consumer has had commands and applied none; `idle` is since when it has none."""

    __slots__ = ("first", "idle", "view")

    def __init__(self, view: ChannelView, first: Event) -> None:
        self.view = view
        self.first = first
        self.idle = FOREVER


def _life(channel: ChannelData) -> tuple[str, str]:
    """The fields that change when a consumer applies a command, or rejoins."""
    return channel.incarnation, channel.command


class ChurnProgress(Invariant):
    """Churn does not livelock, and does not postpone an eviction.

    A member that has commands and applies none for its `max_poll_interval_ms` + `notice` has been evicted (or left) by
    then, though its commands are withdrawn and replaced meanwhile. And after `calm`, past L1's deadline, no new
    generation begins without a change. Starts and generations that are repeated are judged by `Repeats`.
    """

    name = "L4"
    sentence = "Churn does not livelock, and does not postpone an eviction."
    wants = SENT | GONE | NAMED | LIFE | STATE
    needs_bounds = True

    def __init__(self, world: Replay, settled: Settled) -> None:
        super().__init__(world)
        self._settled = settled
        self._waits: dict[tuple[str, str], _Wait] = {}
        self._repeats = Repeats(world, self.broken)

    # ---- evictions

    def on_commit(self, commit: Commit) -> None:
        self._repeats.on_commit(commit)
        for change in commit.channels:
            was, now, view = change.before, change.after, change.view
            if was is None or now is None or not now.is_live or _life(was) != _life(now):
                self._waits.pop((view.group.name, view.consumer), None)
        for view, command in commit.made:
            if view.is_live and not command.by_hand:
                self.judged += 1
                wait = self._waits.setdefault((view.group.name, view.consumer), _Wait(view, commit.event))
                if wait.view is not view or commit.at - wait.idle > WITHDRAWN_FOR_S:
                    wait = self._waits[view.group.name, view.consumer] = _Wait(view, commit.event)
                wait.idle = FOREVER
        for view, _ in commit.gone:
            key = (view.group.name, view.consumer)
            if key in self._waits and not view.commands:
                if commit.who == view.owner:
                    del self._waits[key]
                else:
                    self._waits[key].idle = commit.at
        for group, before, after in commit.states:
            if self.world.conditions.calm is not None and not commit.by_hand:
                self._judge_generation(group.name, before, after, commit)

    def on_tick(self, now: float) -> None:
        if not self._waits or not self.world.bounds:
            return
        able = self.world.conditions.undisturbed_since(now)
        for key, wait in list(self._waits.items()):
            view = wait.view
            if now - wait.idle > WITHDRAWN_FOR_S:
                del self._waits[key]
                continue
            since = max(wait.first["at"], able, self.world.conditions.unpaused_since(view.group.name))
            member = view.group.members.get(view.consumer)
            registration = member.registration if member is not None else None
            if registration is None or view.by_hand:
                continue
            limit = registration.max_poll_interval_ms / 1000
            if now - since > limit + self.world.bounds["notice"]:
                del self._waits[key]
                self.broken(
                    f"{view.consumer} of group {view.group.name} has applied none of its commands from "
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

    That a member runs partitions of it without owner znodes begins at most three such generations of an incarnation and
    a coordinator.

    The same start: of epoch, incarnation, generation, partitions, ask and reset. The same target: of members (static
    ones in any incarnation), threads, topics and strategy; a generation has it only when a member runs partitions
    without owner znodes. It is judged while neither members, topics nor a manual write have changed the group since the
    last write of its state, and not under client-side assignment (S9).
    """

    def __init__(self, world: Replay, report: Callable[..., None]) -> None:
        self._world = world
        self._report = report
        self._sent: dict[tuple[str, str], tuple[Sent, list[Event]]] = {}
        self._lost: dict[tuple[str, str], tuple[Sent, list[Event]]] = {}

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
        if len(times) > (MOST_SENT_TO_LIAR if view.by_hand else MOST_SENT):
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
        if self._lost and now is not None:
            self._end_losses(group, now)
        if was is None or now is None or now.generation != was.generation + 1 or not now.target or now.client:
            return
        target = decided(group, now, FOREVER)
        if target is None or target != decided(group, was, FOREVER):
            return
        if before is None or any(_lost_owners(view) for view in group.channels.values()):
            self._judge_losses(group, was, now, commit)
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

    def _end_losses(self, group: GroupView, now: StateData) -> None:
        """Forget those of members that run what they shall, with owner znodes."""
        for name, target in now.target.items():
            view = group.channels.get(name)
            if view is None or view.data is None or _lost_owners(view):
                continue
            if view.data.running.keys() & target.partitions:
                self._lost.pop((group.name, name), None)

    def _judge_losses(self, group: GroupView, was: StateData, now: StateData, commit: Commit) -> None:
        for view in group.channels.values():
            target = now.target.get(view.consumer)
            if view.data is None or target is None or not _lost_owners(view) & target.partitions:
                continue
            if view.data.generation != was.generation:
                continue  # it has not heard of the last one: another has begun this one
            life, key = (now.epoch, view.data.incarnation), (group.name, view.consumer)
            known, times = self._lost.get(key, (life, []))
            times = [event for event in times if known == life and event["at"] > group.hand_at] + [commit.event]
            self._lost[key] = life, times
            if len(times) > MOST_LOSSES:
                self._report(
                    f"{view.consumer} of group {group.name} runs partitions without owner znodes, which begins "
                    f"generation {now.generation} at {moment(commit.at)}, the {len(times)}th of epoch {now.epoch}, and "
                    "was not evicted",
                    *times,
                )


def _lost_owners(view: ChannelView) -> Set[Partition]:
    """The partitions that it runs without an owner znode."""
    if view.data is None or not view.is_live:
        return frozenset()
    return view.data.running.keys() - view.group.owners.keys()
