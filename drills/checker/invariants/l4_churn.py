"""L4: progress under churn."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.zk.znodes.group_state import STABLE, GroupState
from coordinator.zk.znodes.records import Command

from ..replay.commits import HAND, Changed, Commit, StateChange
from ..replay.conditions import FOREVER, NEVER
from ..replay.expected_target import decided, extra_s, held, runs_target
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, CommandView
from .base import Invariant, Rules
from .l1_settles import Settled

WITHDRAWN_FOR_S = 1.0
"""Seconds: a command may be withdrawn in one turn and replaced in the next; so short a gap ends no wait."""

REMOVED_FOR_S = 2.0
"""The same of one that the consumer has removed and not carried out: it is sent again a second later."""

MOST_SENT = 4
"""Two commands are sent at once, then one a second."""

WITHIN_S = 2.0

Sent = tuple[object, ...]


@dataclass(slots=True, eq=False)
class _Wait:
    """A consumer's wait: since when it has had commands and carried out none; without a command it ends at `until`."""

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
    and it has no command left, and runs its target with owner znodes; or it has none, and waits for others. And after
    `calm`, past L1's deadline, no new generation begins without a change. Repeated starts and generations are judged
    by `Repeats`.
    """

    name = "L4"
    sentence = "Churn does not livelock, and does not postpone an eviction."
    wants = Changed.SENT | Changed.GONE | Changed.NAMED | Changed.LIFE | Changed.MEMBER | Changed.STATE
    needs_bounds = True

    def __init__(self, world: Replay, settled: Settled) -> None:
        super().__init__(world)
        self._settled = settled
        self._waits: dict[tuple[str, str], _Wait] = {}
        self._edited: set[tuple[str, str]] = set()
        self._repeats = Repeats(self)

    # ---- evictions

    def on_commit(self, commit: Commit) -> None:
        self._repeats.on_commit(commit)
        for change in commit.channels:
            was, now, view = change.same, change.after, change.view
            key = view.group.name, view.consumer
            is_new = was is None or now is None or not now.is_live
            # The wait begins with a remaining command, which takes several commits, or restores a state.
            begins = was is not None and now is not None and was.command != now.command and now.command in view.commands
            if is_new or begins:
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
            if self.world.conditions.calm is not None:
                self._judge_generation(written, commit)

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

    # ---- generations

    def _judge_generation(self, written: StateChange, commit: Commit) -> None:
        group, before, after = written
        if before is None or before.data is None or after is None or after.data is None:
            return
        if after.data.generation <= before.data.generation or commit.at <= self._settled.deadline(group):
            return
        changed, bounds = max(group.changed_at, group.hand_at, self.world.topics_changed_at), self.world.bounds
        if commit.at - changed > bounds["notice"] + bounds["session_timeout"] + extra_s(self.world, group, asks=2):
            why = f"generation {after.data.generation} of {group} begins at {commit.moment}, and nothing has changed"
            self.broken_by(commit, f"{why} since {moment(changed)}", self.world.conditions.calm, before.written)

    def undecided(self) -> tuple[str, bool] | None:
        return ("there is no `calm` event", False) if self.world.conditions.calm is None else None


class Repeats(Rules):
    """The same start is sent four times within 2 s at most, and no generation has the target of the previous one.

    The same start: of epoch, incarnation, generation, partitions, ask and reset. The same target: of members (static
    ones in any incarnation), threads, topics and strategy; a generation has it only when a member has run partitions
    without owner znodes since the one before. It is judged while neither members, topics nor a manual write have
    changed the group since the generation before began, and not under client-side assignment (S9). Coordinators' own
    changes are no reason for one: ended members and removed seats are missing in the target.
    """

    def __init__(self, invariant: Invariant) -> None:
        super().__init__(invariant)
        self._sent: dict[tuple[str, str], tuple[Sent, list[Event]]] = {}
        self._begun: dict[str, float] = {}
        self._changed: set[str] = set()

    def on_commit(self, commit: Commit) -> None:
        """Commands were sent, a state was written, or members have changed."""
        if not self.world.process(commit.who).is_node:
            self._changed |= {group.name for group, _, _ in commit.members}
            self._changed |= {change.view.group.name for change in commit.channels if commit.mask & Changed.LIFE}
        if commit.by_hand:
            return
        for view, command in commit.made:
            if command.data is not None and command.is_start:
                self._judge_start(view, command.data, commit)
        for written in commit.states:
            self._judge_generation(written, commit)

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

    def _judge_generation(self, written: StateChange, commit: Commit) -> None:
        group, before, _ = written
        was, now = written.was, written.now
        if before is None or was is None or now is None or now.generation == was.generation:
            return
        # A turn in several commits writes the state in each: its reads are older than the last of them.
        begun, self._begun[group.name] = self._begun.get(group.name, NEVER), commit.at
        has_changed = group.name in self._changed
        self._changed.discard(group.name)
        if has_changed or now.generation != was.generation + 1 or now.client:
            return
        target = decided(group, now, FOREVER)
        if target is None or target != decided(group, was, FOREVER) or now.region != was.region:
            return
        if not group.had_lost_owners(begun) and max(group.hand_at, self.world.topics_changed_at) < begun:
            why = f"generation {now.generation} of {group} begins at {commit.moment} in epoch {now.epoch} with the"
            self.broken_by(commit, f"{why} target of the generation before (epoch {was.epoch})", before.written)
