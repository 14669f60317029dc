"""S6, second part: commands of earlier coordinators and of earlier turns are withdrawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from coordinator.zk.znodes.group_state import STABLE

from ..replay.commits import Commit
from ..replay.reading import CommandData
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, CommandView, GroupView

AT_ONCE = float("-inf")
SOON_S = 1.0
"""A turn of several multis takes less, while nothing disturbs it."""


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
