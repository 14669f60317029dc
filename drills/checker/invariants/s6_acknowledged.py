"""S6: meaning of a command's removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.zk.znodes.group_state import STABLE
from coordinator.zk.znodes.records import ASSIGN, DRAIN

from ..replay.channel_data import ChannelData
from ..replay.commits import GONE, LIFE, NAMED, SENT, SERVER, STATE, Commit
from ..replay.fast_json import Partition
from ..replay.reading import CommandData
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelChange, ChannelView, CommandView, GroupView
from .base import Invariant
from .s3_command_order import removed

AT_ONCE = float("-inf")
SOON_S = 1.0
"""A turn of several multis takes less, while nothing disturbs it."""


class Acknowledged(Invariant):
    """Removed by the consumer means done; removed by the coordinator means withdrawn, and never applied afterwards.

    Done: the channel after the same commit names it; after a stop its partitions no longer run and are no longer
    fetched by that incarnation, after a start they run or are refused, and the channel names the start's ask; commands
    to a leader, and notices of a failure, change neither `running` nor the generation. A consumer removes one that is
    not done only when it is stale: for another incarnation, older than the channel, unreadable, about a removed ask, or
    a drain for a checkpoint that has ended. Manually created or removed commands are not judged.
    What coordinators must withdraw is judged by `Withdrawals`.
    """

    name = "S6"
    sentence = "Removed by the consumer means done; removed by the coordinator means withdrawn, and never applied."
    wants = GONE | NAMED | LIFE | SENT | STATE

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._withdrawals = Withdrawals(world, self.broken)

    def on_commit(self, commit: Commit) -> None:
        if commit.by_hand or commit.who == SERVER:
            return
        for change in commit.channels:
            self._judge_named(change, commit)
        for view, command in commit.gone:
            if command.by_hand:
                continue
            self.judged += 1
            if self._is_coordinator(view, commit):
                view.withdrawn[command.name] = commit.event
            else:
                self._judge_removed(view, command, commit)
        self._withdrawals.on_commit(commit)

    def _is_coordinator(self, view: ChannelView, commit: Commit) -> bool:
        return commit.who != view.owner and self.world.process(commit.who).is_node

    def _judge_named(self, change: ChannelChange, commit: Commit) -> None:
        """A channel names a command that was withdrawn."""
        view, before, after = change.view, change.before, change.after
        if after is None or not after.command or view.by_hand:
            return
        is_news = before is None or before.incarnation != after.incarnation or before.command != after.command
        if is_news and after.command in view.withdrawn and removed(commit, view, after.command) is None:
            self.broken(
                f"{after.command} of {view.consumer} in group {view.group.name} was withdrawn and then applied at "
                f"{moment(commit.at)}",
                view.withdrawn[after.command],
                commit.event,
            )

    def _judge_removed(self, view: ChannelView, command: CommandView, commit: Commit) -> None:
        after, before = view.data, view.data
        for change in commit.channels:
            if change.view is view:
                before = change.before
        if view.by_hand or after is None:
            return
        is_named = command.name == after.command or _stood_until_ready(view, command)
        if is_named and before is not None and before.incarnation == after.incarnation:
            self._judge_done(view, command, before, after, commit)
        elif not self._is_stale(view, command.data, before, after) and commit.who == view.owner:
            self.broken(
                f"{command.name} was removed by {view.consumer} of group {view.group.name} at {moment(commit.at)}, "
                "neither applied nor stale",
                command.made,
                commit.event,
            )

    def _judge_done(
        self, view: ChannelView, command: CommandView, before: ChannelData, after: ChannelData, commit: Commit
    ) -> None:
        data = command.data
        if data is None:
            return
        self._withdrawals.on_applied(view, command, commit)
        if not data.is_start and not data.is_stop:
            self._judge_unchanged(view, command, before, after, commit)
            return
        if data.is_start:
            left = sorted(data.partitions - after.running.keys() - after.refused)
            what = "neither runs nor is refused"
            if not left and after.ask != data.ask:
                self.broken(
                    f"{command.name}, a start of {data.ask or 'no ask'}, was acknowledged by {view.consumer} of group "
                    f"{view.group.name} at {moment(commit.at)}, and its channel names {after.ask or 'none'}",
                    command.made,
                    commit.event,
                )
        else:
            named = data.partitions or before.running.keys() | after.running.keys()
            left = sorted(named & after.running.keys())
            what = "still runs"
        if left:
            self._report(view, command, left[0], what, commit)
        elif data.is_stop:
            self._judge_silence(view, command, data, before, commit)

    def _judge_unchanged(
        self, view: ChannelView, command: CommandView, before: ChannelData, after: ChannelData, commit: Commit
    ) -> None:
        """Commands to a leader, and notices of a failure, do not change what runs."""
        option = command.data.option if command.data is not None else ""
        kept = (before.generation, before.ask, before.running.keys())
        if kept != (after.generation, after.ask, after.running.keys()):
            what = "generation" if before.generation != after.generation else "what runs"
            self.broken(
                f"{command.name}, an {option}, was acknowledged by {view.consumer} of group {view.group.name} at "
                f"{moment(commit.at)}, and changed {what} in its channel",
                command.made,
                commit.event,
            )

    def _judge_silence(
        self, view: ChannelView, command: CommandView, data: CommandData, before: ChannelData, commit: Commit
    ) -> None:
        """Stopped partitions are not fetched any more."""
        holds = self.world.fetching.of(view.group.name, view.consumer, before.incarnation)
        for (_, topic, _, number), hold in holds.items():
            is_stopped = (topic, number) in data.partitions or not data.partitions
            if is_stopped and hold.lease.until > commit.at and not hold.is_suspended:
                what = f"is still fetched by {hold.who}"
                self._report(view, command, (topic, number), what, commit, hold.begun, hold.lease.event)
                return

    def _report(
        self,
        view: ChannelView,
        command: CommandView,
        partition: Partition,
        what: str,
        commit: Commit,
        *more: Event | None,
    ) -> None:
        option = "start" if command.data is not None and command.data.is_start else "stop"
        self.broken(
            f"{command.name}, a {option}, was acknowledged by {view.consumer} of group {view.group.name} at "
            f"{moment(commit.at)}, and {partition[0]}-{partition[1]} {what}",
            command.made,
            *more,
            commit.event,
        )

    def _is_stale(
        self, view: ChannelView, command: CommandData | None, before: ChannelData | None, after: ChannelData
    ) -> bool:
        if command is not None and command.option == ASSIGN:
            ask = view.group.asks.get(command.ask)
            if ask is None or ask.ask is None or ask.by_hand:
                return True
        if command is not None and command.option == DRAIN:
            return self._is_over(view, command, after)
        return _is_old(command, before, after)

    def _is_over(self, view: ChannelView, command: CommandData, after: ChannelData) -> bool:
        """Whether a drain is for a checkpoint that has ended, or for a member without its state of that reset."""
        region, order = self.world.regions.of(view.group.name), command.region
        if region is None or order is None or after.region is None:
            return True
        checkpoint = region.checkpoints.get(order.checkpoint)
        if checkpoint is None or checkpoint.ends or checkpoint.by_hand:
            return True
        return (after.region.reset, after.region.ready) != (order.reset, order.reset)


def _stood_until_ready(view: ChannelView, command: CommandView) -> bool:
    """Whether it is a start of a consistent region: it remains until the state is restored; others are applied."""
    data = command.data
    return data is not None and data.is_start and data.region is not None and command.name in view.applied


def _is_old(command: CommandData | None, before: ChannelData | None, after: ChannelData) -> bool:
    if command is None or before is None or after.ended is not None:
        return True
    if command.incarnation != before.incarnation or before.incarnation != after.incarnation:
        return True
    return (command.epoch, command.generation) < (before.epoch, before.generation)


class Withdrawals:
    """A coordinator that sends a stop or a start has withdrawn the others that its turn does not keep.

    Withdrawals come before stops and starts: beside one that is sent, the group has no stop or start of an earlier
    epoch, and the channel no other at all. None of an earlier epoch is applied once a later coordinator has sent its
    own, or has made the group Stable a second before, without a fault since. Manually created commands are not judged.
    """

    def __init__(self, world: Replay, report: Callable[..., None]) -> None:
        self._world = world
        self._report = report
        self._turns: dict[str, tuple[int, float, Event]] = {}

    def on_commit(self, commit: Commit) -> None:
        """Commands were sent, or a state was written; before `on_applied` of later commits."""
        if commit.by_hand or not self._world.process(commit.who).is_node:
            return
        for view, command in commit.made:
            data = command.data
            if data is None or not _moves(data) or view.by_hand:
                continue
            self._judge_sent(view, command, data, commit)
            self._note(view.group, data.epoch, AT_ONCE, commit.event)
        for group, _, after in commit.states:
            if after is not None and after.data is not None and after.data.state == STABLE:
                self._note(group, after.data.epoch, commit.at, commit.event)

    def _note(self, group: GroupView, epoch: int, since: float, event: Event) -> None:
        known = self._turns.get(group.name)
        if known is None or known[0] < epoch or (known[0] == epoch and since < known[1]):
            self._turns[group.name] = (epoch, since, event)

    def _judge_sent(self, view: ChannelView, sent: CommandView, data: CommandData, commit: Commit) -> None:
        for other, command in _standing(view.group):
            if command is sent or command.data is None:
                continue
            is_old = command.data.epoch < data.epoch
            if other is view or is_old:
                why = f"of epoch {command.data.epoch} " if is_old else ""
                self._report(
                    f"{sent.name} of epoch {data.epoch} was sent to {view.consumer} of group {view.group.name} at "
                    f"{moment(commit.at)}, and {command.name} {why}is pending in the channel of {other.consumer}",
                    command.made,
                    commit.event,
                )
                return

    def on_applied(self, view: ChannelView, command: CommandView, commit: Commit) -> None:
        """A consumer has removed a command that its channel names."""
        data, group = command.data, view.group
        known = self._turns.get(group.name)
        if data is None or known is None or not _moves(data) or data.epoch >= known[0]:
            return
        epoch, since, event = known
        undisturbed = self._world.conditions.undisturbed_since(commit.at)
        if since > AT_ONCE and (commit.at - since <= SOON_S or undisturbed > since):
            return
        self._report(
            f"{command.name} of epoch {data.epoch} was applied by {view.consumer} of group {group.name} at "
            f"{moment(commit.at)}, and the coordinator of epoch {epoch} has taken its turn",
            command.made,
            event,
            commit.event,
        )


def _moves(data: CommandData) -> bool:
    return data.is_start or data.is_stop


def _standing(group: GroupView) -> Iterator[tuple[ChannelView, CommandView]]:
    for view in group.channels.values():
        for command in view.commands.values():
            if not view.by_hand and not command.by_hand and command.data is not None and _moves(command.data):
                yield view, command
