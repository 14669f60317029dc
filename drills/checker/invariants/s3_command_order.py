"""S3: order of applied commands."""

from __future__ import annotations

from ..replay.channel_data import ChannelData
from ..replay.commits import LIFE, NAMED, Commit
from ..replay.reading import CommandData
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
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
    wants = LIFE | NAMED

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._named: dict[tuple[str, str], Event] = {}

    def on_commit(self, commit: Commit) -> None:
        for change in commit.channels:
            before, after, view = change.before, change.after, change.view
            if after is None or commit.by_hand:
                continue
            is_same = before is not None and before.incarnation == after.incarnation
            if is_same and before is not None and not view.by_hand:
                self._judge_order(view, before, after, commit)
            known = before.command if is_same and before is not None else ""
            if after.command and after.command != known:
                self._judge_command(view, before if is_same else None, after, commit)
            self._named[view.group.name, view.consumer] = commit.event

    def _judge_order(self, view: ChannelView, before: ChannelData, after: ChannelData, commit: Commit) -> None:
        if (after.epoch, after.generation) >= (before.epoch, before.generation):
            return
        self.broken(
            f"the channel of {view.consumer} in group {view.group.name} (incarnation {after.incarnation}) went "
            f"back from epoch {before.epoch}, generation {before.generation} to {after.epoch}, {after.generation} at "
            f"{moment(commit.at)}",
            self._named.get((view.group.name, view.consumer)),
            commit.event,
        )

    def _judge_command(self, view: ChannelView, before: ChannelData | None, after: ChannelData, commit: Commit) -> None:
        name = after.command
        command = view.commands.get(name) or removed(commit, view, name)
        if view.by_hand or (command is not None and command.by_hand):
            return
        self.judged += 1
        consumer = f"{view.consumer} of group {view.group.name} at {moment(commit.at)}"
        data = command.data if command is not None else None
        if name in view.applied:
            self.broken(f"{name} was applied twice by {consumer}", view.applied[name], commit.event)
        elif command is None and name not in view.withdrawn:
            self.broken(f"{name} was applied by {consumer}, and never stood in its channel", commit.event)
        elif command is not None and data is None:
            self.broken(f"{name} was applied by {consumer}, and cannot be read", command.made, commit.event)
        elif command is not None and data is not None and data.incarnation != after.incarnation:
            self.broken(
                f"{name} is for incarnation {data.incarnation} and was applied for {after.incarnation} by {consumer}",
                command.made,
                commit.event,
            )
        elif command is not None and data is not None and before is not None and _is_older(data, before):
            self.broken(
                f"{name} is of epoch {data.epoch}, generation {data.generation} and was applied after epoch "
                f"{before.epoch}, generation {before.generation} by {consumer}",
                command.made,
                self._named.get((view.group.name, view.consumer)),
                commit.event,
            )
        view.applied[name] = commit.event


def _is_older(command: CommandData, channel: ChannelData) -> bool:
    return (command.epoch, command.generation) < (channel.epoch, channel.generation)


def removed(commit: Commit, view: ChannelView, name: str) -> CommandView | None:
    """A command that this commit has removed."""
    return next((command for of, command in commit.gone if of is view and command.name == name), None)
