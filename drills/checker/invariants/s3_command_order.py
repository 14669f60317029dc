"""S3: order of applied commands."""

from __future__ import annotations

from coordinator.zk.znodes.records import Channel, Command

from ..replay.commits import Changed, Commit
from ..replay.replay import Replay
from ..replay.verdict import Event
from ..replay.znode_views import ChannelView
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
                self.broken_by(
                    commit,
                    f"the channel of {view.consumer} in {view.group} (incarnation {after.incarnation}) went back from "
                    f"epoch {before.epoch}, generation {before.generation} to {after.epoch}, {after.generation} at "
                    f"{commit.moment}",
                    self._named.get((view.group.name, view.consumer)),
                )
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
            self.broken_by(
                commit,
                f"{name} is of epoch {command.data.epoch}, generation {command.data.generation} and was applied after "
                f"epoch {before.epoch}, generation {before.generation} by {consumer}",
                command.made,
                self._named.get((view.group.name, view.consumer)),
            )
        view.applied[name] = commit.event


def _order(data: Command | Channel) -> tuple[int, int]:
    return data.epoch, data.generation
