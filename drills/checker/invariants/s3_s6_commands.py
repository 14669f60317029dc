"""S3 and S6: the order of applied commands, and the meaning of a command's removal."""

from __future__ import annotations

from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import ASSIGN, DRAIN, Channel, Command

from ..replay.commits import SERVER, Changed, ChannelChange, Commit
from ..replay.replay import Replay
from ..replay.verdict import Event
from ..replay.znode_views import ChannelView, CommandView
from .base import Invariant


class Ordered(Invariant):
    """(epoch, generation) never goes back within an incarnation; no command is applied twice.

    A command is applied when the channel's `command` becomes its name. None is applied by another incarnation than its
    own, none of an epoch or generation before the channel's, and none that was not in the channel. Manually created
    commands are not judged, nor is a manually edited channel.
    """

    name = "S3"
    sentence = "(epoch, generation) never goes back within an incarnation; no command is applied twice."
    wants = Changed.LIFE | Changed.NAMED

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._named: dict[tuple[str, str], Event] = {}

    def on_commit(self, commit: Commit) -> None:
        for change in commit.channels:
            before, after, view = change.same, change.after, change.view
            if after is None or commit.by_hand:
                continue
            if before is not None and not view.by_hand and _order(after) < _order(before):
                what = f"the channel of {view.consumer} in {view.group} (incarnation {after.incarnation})"
                was = f"epoch {before.epoch}, generation {before.generation}"
                why = f"{what} went back from {was} to {after.epoch}, {after.generation} at {commit.moment}"
                self.broken_by(commit, why, self._named.get((view.group.name, view.consumer)))
            if after.command and (before is None or after.command != before.command):
                self._judge_command(view, before, after, commit)
            self._named[view.group.name, view.consumer] = commit.event

    def _judge_command(self, view: ChannelView, before: Channel | None, after: Channel, commit: Commit) -> None:
        name = after.command
        command = view.commands.get(name) or commit.removed_command(view, name)
        if view.by_hand or (command is not None and command.by_hand):
            return
        self.judged += 1
        consumer = f"{view} at {commit.moment}"
        if name in view.applied:
            self.broken_by(commit, f"{name} was applied twice by {consumer}", view.applied[name])
        elif command is None:
            if name not in view.withdrawn:
                self.broken(f"{name} was applied by {consumer}, and never stood in its channel", commit.event)
        elif command.data is None:
            self.broken_by(commit, f"{name} was applied by {consumer}, and cannot be read", command.made)
        elif command.data.incarnation != after.incarnation:
            why = f"{name} is for incarnation {command.data.incarnation} and was applied for {after.incarnation}"
            self.broken_by(commit, f"{why} by {consumer}", command.made)
        elif before is not None and _order(command.data) < _order(before):
            why = f"{name} is of epoch {command.data.epoch}, generation {command.data.generation} and was applied after"
            why = f"{why} epoch {before.epoch}, generation {before.generation} by {consumer}"
            self.broken_by(commit, why, command.made, self._named.get((view.group.name, view.consumer)))
        view.applied[name] = commit.event


class Acknowledged(Invariant):
    """Removed by the consumer means done; removed by the coordinator means withdrawn, and never applied afterwards.

    Done: the channel after the same commit names it; after a stop its partitions no longer run and are no longer
    fetched by that incarnation, after a start they run or are refused, and the channel names the start's assignment
    request; commands to a leader, and notices of a failure, change neither `running` nor the generation. A consumer
    removes an undone command only when it is stale: for another incarnation, older than the channel, unreadable, about
    a removed request, or a drain for an ended checkpoint. Manually created or removed commands are not judged.
    """

    name = "S6"
    sentence = "Removed by the consumer means done; removed by the coordinator means withdrawn, and never applied."
    wants = Changed.GONE | Changed.NAMED | Changed.LIFE

    def on_commit(self, commit: Commit) -> None:
        if commit.by_hand or commit.who == SERVER:
            return
        for change in commit.channels:
            self._judge_named(change, commit)
        for view, command in commit.gone:
            if command.by_hand:
                continue
            self.judged += 1
            if commit.who != view.owner and self.world.process(commit.who).is_node:
                view.withdrawn[command.name] = commit.event
            else:
                self._judge_removed(view, command, commit)

    def _judge_named(self, change: ChannelChange, commit: Commit) -> None:
        """A channel names a withdrawn command."""
        view, same, name = change.view, change.same, change.after.command if change.after is not None else ""
        is_news = not view.by_hand and (same is None or same.command != name)
        if is_news and name in view.withdrawn and commit.removed_command(view, name) is None:
            why = f"{name} of {view.consumer} in {view.group} was withdrawn and then applied at {commit.moment}"
            self.broken_by(commit, why, view.withdrawn[name])

    def _judge_removed(self, view: ChannelView, command: CommandView, commit: Commit) -> None:
        after = view.data
        before = next((change.before for change in commit.channels if change.view is view), after)
        if view.by_hand or after is None:
            return
        is_named = command.name == after.command or _stood_until_ready(view, command)
        if is_named and before is not None and before.incarnation == after.incarnation:
            self._judge_done(view, command, before, after, commit)
        elif not self._is_stale(view, command.data, before, after) and commit.who == view.owner:
            why = f"{command.name} was removed by {view} at {commit.moment}, neither applied nor stale"
            self.broken_by(commit, why, command.made)

    def _judge_done(
        self, view: ChannelView, command: CommandView, before: Channel, after: Channel, commit: Commit
    ) -> None:
        data = command.data
        if data is None:
            return
        running, left = after.running.keys(), set[TopicPartition]()
        done = f"was acknowledged by {view} at {commit.moment}, and"
        kept = (before.generation, before.ask, before.running.keys())
        if command.is_start:
            left = set(command.partitions - running - after.refused)
            if not left and after.ask != data.ask:
                what = f"{command.name}, a start of {data.ask or 'no ask'}, {done}"
                self.broken_by(commit, f"{what} its channel names {after.ask or 'none'}", command.made)
        elif command.is_stop:
            left = set((command.partitions or before.running.keys() | running) & running)
        elif kept != (after.generation, after.ask, running):  # commands to a leader, and notices of a failure
            what = "generation" if before.generation != after.generation else "what runs"
            why = f"{command.name}, an {data.option}, {done} changed {what} in its channel"
            self.broken_by(commit, why, command.made)
        if left:
            what = "a start" if command.is_start else "a stop"
            still = "neither runs nor is refused" if command.is_start else "still runs"
            self.broken_by(commit, f"{command.name}, {what}, {done} {min(left)} {still}", command.made)
        elif command.is_stop:
            self._judge_silence(view, command, before, commit)

    def _judge_silence(self, view: ChannelView, command: CommandView, before: Channel, commit: Commit) -> None:
        """Stopped partitions are not fetched any more."""
        holds = self.world.fetching.of(view.group.name, view.consumer, before.incarnation)
        for (_, topic, _, number), hold in holds.items():
            is_stopped = (topic, number) in command.partitions or not command.partitions
            if is_stopped and hold.lease.until > commit.at and not hold.is_suspended:
                done = f"{command.name}, a stop, was acknowledged by {view} at {commit.moment}"
                why = f"{done}, and {topic}-{number} is still fetched by {hold.who}"
                self.broken_by(commit, why, command.made, hold.begun, hold.lease.event)
                return

    def _is_stale(self, view: ChannelView, command: Command | None, before: Channel | None, after: Channel) -> bool:
        if command is not None and command.option == ASSIGN:
            ask = view.group.asks.get(command.ask)
            if ask is None or ask.ask is None or ask.by_hand:
                return True
        if command is not None and command.option == DRAIN:
            return self._is_over(view, command, after)
        return _is_old(command, before, after)

    def _is_over(self, view: ChannelView, command: Command, after: Channel) -> bool:
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
    return command.is_start and data is not None and data.region is not None and command.name in view.applied


def _is_old(command: Command | None, before: Channel | None, after: Channel) -> bool:
    if command is None or before is None or after.ended is not None:
        return True
    if command.incarnation != before.incarnation or before.incarnation != after.incarnation:
        return True
    return _order(command) < _order(before)


def _order(data: Command | Channel) -> tuple[int, int]:
    return data.epoch, data.generation
