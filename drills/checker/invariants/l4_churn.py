"""L4: progress under churn."""

from __future__ import annotations

from dataclasses import dataclass

from zk_group.coordinator.zk.znodes.group_state import STABLE, GroupState
from zk_group.coordinator.zk.znodes.records import Command

from ..replay.commits import HAND, Changed, Commit
from ..replay.conditions import FOREVER
from ..replay.expected_target import held, runs_target
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, CommandView
from .base import Invariant

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


def _is_carried_out(command: CommandView, view: ChannelView) -> bool:
    """Whether the consumer's channel shows a stop or start; of any other command it need not."""
    if command.data is None or view.data is None:
        return True
    running = view.running.keys()
    if command.is_stop:
        return not running & (command.partitions or running)
    return not command.is_start or command.partitions <= running | view.data.refused


def _has_nothing_to_do(view: ChannelView, state: GroupState) -> bool:
    """Whether it runs its target with owner znodes in a stable group; or a part of it, and others have all the rest."""
    group, target = view.group, state.target.get(view.consumer)
    if state.state == STABLE:
        return runs_target(group, state, view.consumer) and view.has_owners
    if target is None or not view.running.keys() <= target.partitions:
        return False
    missing = target.partitions - view.running.keys()
    owned = {part for part, owner in group.owners.items() if owner.data is None or owner.data.consumer != view.consumer}
    return bool(missing) and missing <= owned | held(group, state)


class ChurnProgress(Invariant):
    """Churn does not livelock, and does not postpone an eviction.

    A member that has commands and carries out none for its `max_poll_interval_ms` + `notice` has been evicted (or left)
    by then, though its commands are withdrawn, or removed by itself, and replaced meanwhile; unless the group is Stable
    and it has no command left, and runs its target with owner znodes; or it has none, and waits for others. And the
    same start (of epoch, incarnation, generation, partitions, ask and reset) is sent four times within 2 s at most.
    """

    name = "L4"
    sentence = "Churn does not livelock, and does not postpone an eviction."
    wants = Changed.SENT | Changed.GONE | Changed.NAMED | Changed.LIFE | Changed.STATE
    needs_bounds = True

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._waits: dict[tuple[str, str], _Wait] = {}
        self._edited: set[tuple[str, str]] = set()
        self._sent: dict[tuple[str, str], tuple[Sent, list[Event]]] = {}

    # ---- evictions

    def on_commit(self, commit: Commit) -> None:
        for change in commit.channels:
            was, now, view = change.same, change.after, change.view
            key = view.group.name, view.consumer
            is_new = was is None or now is None or not now.is_live
            # It begins with a command that stays: it takes several commits, or restores a state.
            begins = was is not None and now is not None and was.command != now.command and now.command in view.commands
            if is_new or begins:
                self._waits.pop(key, None)
            if commit.who == HAND:
                self._edited.add(key)
            elif is_new:
                self._edited.discard(key)
        for view, command in commit.made:
            if command.data is not None and command.is_start and not command.by_hand:
                self._judge_start(view, command.data, commit)
            if view.is_live and not command.by_hand:
                self.judged += 1
                wait = self._waits.setdefault((view.group.name, view.consumer), _Wait(view, commit.event))
                if wait.view is not view or commit.at > wait.until:
                    wait = self._waits[view.group.name, view.consumer] = _Wait(view, commit.event)
                wait.until = FOREVER
        for view, command in commit.gone:
            key = (view.group.name, view.consumer)
            is_withdrawn = self.world.process(commit.who).is_node
            if key in self._waits and not is_withdrawn and _is_carried_out(command, view):
                del self._waits[key]
                if view.commands:
                    self._waits[key] = _Wait(view, commit.event)
            elif key in self._waits and not view.commands:
                self._waits[key].until = commit.at + (WITHDRAWN_FOR_S if is_withdrawn else REMOVED_FOR_S)
        for written in commit.states if not commit.by_hand else ():
            group, after = written.group, written.now
            for name in group.live_members if after is not None else ():
                view = group.channels[name]
                if after is not None and not view.commands and _has_nothing_to_do(view, after):
                    self._waits.pop((group.name, name), None)

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
            registration = view.group.registration(view.consumer)
            if registration is None or key in self._edited or not view.group.live(view.consumer):
                continue
            limit = registration.max_poll_interval_ms / 1000
            if now - since > limit + self.world.bounds["notice"]:
                del self._waits[key]
                why = f"{view} has carried out none of its commands from {moment(wait.first['at'])} to {moment(now)}"
                why = f"{why}, over its max_poll_interval_ms of {limit:g} s, and was not evicted"
                self.broken(why, view.group.members[view.consumer].written, wait.first)

    # ---- starts

    def _judge_start(self, view: ChannelView, data: Command, commit: Commit) -> None:
        start = (data.epoch, data.incarnation, data.generation, data.started, data.ask, data.region)
        key = view.group.name, view.consumer
        known, times = self._sent.get(key, (start, []))
        times = [event for event in times if known == start and commit.at - event["at"] <= WITHIN_S]
        times.append(commit.event)
        self._sent[key] = start, times
        if len(times) > MOST_SENT:
            why = f"the same start was sent to {view} {len(times)} times from {moment(times[0]['at'])}"
            self.broken(f"{why} to {commit.moment}", *times)
