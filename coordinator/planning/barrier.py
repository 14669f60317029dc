"""The protocol of groups without owner znodes (a protocol type other than `consumer`): a barrier between answers. Pure.

Only the channels prevent double execution: a new assignment stops every member that runs an earlier one, and none
starts before all have stopped or their lease has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..zk.znodes.group_state import Target
from ..zk.znodes.partitions import NONE
from ..zk.znodes.records import START_FETCHER, STOP_FETCHER, Command
from .reconciliation import Commands, Desired, MemberProtocol, Obstacles, Retained, Round, Step, Withdrawn


class BarrierProtocol(MemberProtocol):
    """All members stop before any starts."""

    def desired(self, now: Round, name: str) -> Command | None:
        """A stop of an earlier assignment, then a start of the current one; None where the member runs it."""
        runs = now.members.channels[name].ask
        if not now.assignment.ask or runs == now.assignment.ask:
            return None
        return now.command(name, STOP_FETCHER) if runs else now.command(name, START_FETCHER, ask=now.assignment.ask)

    def obstacles(self, now: Round, desired: Desired, retained: Retained, withdrawn: Withdrawn) -> Obstacles:
        to_stop = [name for name, command in desired.items() if command is not None and command.option == STOP_FETCHER]
        is_due = any(command is not None for name, command in desired.items() if name not in {*to_stop, *retained})
        return Obstacles(reason=_blocked_by(now, to_stop, withdrawn) if is_due else "")

    def start(self, now: Round, name: str, command: Command, obstacles: Obstacles) -> Step:
        return Step(blocked=NONE) if obstacles.reason else Step(command)

    def recorded(self, now: Round, starts: Commands) -> Mapping[str, Target]:
        """The target with the started members: each may run until its lease has expired."""
        sent, target = {name for name, _ in starts}, now.assignment.target
        is_sent = {name: name in sent or (one.is_sent and not _is_over(now, name, one)) for name, one in target.items()}
        return {name: replace(one, is_sent=is_sent[name]) for name, one in target.items()}


def _blocked_by(now: Round, to_stop: Sequence[str], withdrawn: Withdrawn) -> str:
    """Why no member may start; empty when all may."""
    if to_stop:
        return f"{min(to_stop)} has not stopped yet"
    if now.membership.holds:
        return f"the lease of {now.membership.holds[0].consumer} may still run"
    if any(end.view.ask for end in now.membership.terminations):
        return "an incarnation is being ended"
    pending = [name for name, sent in withdrawn if sent.option == START_FETCHER]
    if pending:
        return f"a start of {pending[0]} is being withdrawn"
    ended = {end.view.consumer for end in now.membership.terminations}
    for name, view in sorted(now.members.channels.items()):
        if view.channel is None:
            return f"the channel of {name} cannot be read"
        if name not in ended and view.channel.is_live and view.ask not in ("", now.assignment.ask):
            return f"{name} runs what an earlier assignment gave it"
    return ""


def _is_over(now: Round, name: str, target: Target) -> bool:
    channel = now.members.channel_of(name)
    return channel is None or channel.ended is not None or channel.incarnation != target.incarnation
