"""Groups without owners (a protocol type other than `consumer`): stops, starts and waits.

Their resources have no owner znodes, so only the channels prevent double execution: a new answer stops every member
that was sent anything of an earlier one, and none starts before all have stopped or their lease has expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..zk.znodes.group_state import Mark, Target
from ..zk.znodes.partitions import NONE
from ..zk.znodes.records import START_FETCHER, STOP_FETCHER, Command
from .membership import Membership, is_exclusive, lease_ms
from .reconciliation import (
    Moves,
    Revoking,
    Round,
    Settled,
    Starting,
    Step,
    Unrevoked,
    Waiting,
    Withdrawn,
    addressed,
    sort_commands,
)
from .snapshot import SentCommand, Snapshot
from .target import Wanted

UNKNOWN = "unknown"


def mark_replaced(snapshot: Snapshot, membership: Membership, assignment: Wanted) -> None:
    """Mark the members that were sent a start and whose name another process has taken: they may not know it yet.

    Where `state` was lost, one mark covers all members.
    """
    if not is_exclusive(snapshot):
        return
    if (
        snapshot.state.client is None
        and _anything_runs(snapshot)
        and not any(m.consumer == UNKNOWN for m in membership.marks)
    ):
        membership.marks.append(
            Mark(UNKNOWN, f"epoch-{snapshot.epoch}", frozenset(), snapshot.longest_lease_ms, "the state was lost")
        )
        membership.timers.append(snapshot.longest_lease_ms / 1000)
    known = {(mark.consumer, mark.incarnation) for mark in membership.marks}
    for name, before in sorted(snapshot.state.target.items()):
        if before.is_sent and _is_taken_over(snapshot, name, before) and (name, before.incarnation) not in known:
            lease = lease_ms(snapshot, name)
            membership.marks.append(
                Mark(name, before.incarnation, frozenset(), lease, "another process has taken its name")
            )
            membership.timers.append(lease / 1000)


def _anything_runs(snapshot: Snapshot) -> bool:
    return any(view.channel is not None and view.channel.ask for view in snapshot.channels.values())


def with_sent(
    snapshot: Snapshot, target: Mapping[str, Target], starts: Iterable[tuple[str, Command]]
) -> Mapping[str, Target]:
    """The target with the members that are sent a start in this turn; ended and marked members lose theirs."""
    sent = {name for name, _ in starts}
    return {
        name: replace(one, is_sent=name in sent or (one.is_sent and not _is_over(snapshot, name, one)))
        for name, one in target.items()
    }


def _is_over(snapshot: Snapshot, name: str, one: Target) -> bool:
    view = snapshot.channels.get(name)
    has_ended = view is not None and view.channel is not None and view.channel.ended is not None
    return has_ended or _is_taken_over(snapshot, name, one)


def _is_taken_over(snapshot: Snapshot, name: str, before: Target) -> bool:
    view = snapshot.channels.get(name)
    return view is None or view.channel is None or view.channel.incarnation != before.incarnation


def exclusive_moves(now: Round) -> Moves:
    """The step of each member that is due now: all stop before any starts."""
    wanted = {name: _wanted(now, name) for name in addressed(now)}
    kept, withdrawn = sort_commands(
        now, lambda view, sent: sent.command is not None and sent.command == wanted.get(view.consumer)
    )
    to_stop = [name for name, command in wanted.items() if command is not None and command.option == STOP_FETCHER]
    is_due = any(command is not None for name, command in wanted.items() if name not in {*to_stop, *kept})
    blocked_by = _blocked_by(now, to_stop, withdrawn) if is_due else ""
    steps = {name: _step(command, kept.get(name), bool(blocked_by)) for name, command in wanted.items()}
    return Moves(steps, withdrawn, blocked_by)


def _step(command: Command | None, sent: SentCommand | None, is_blocked: bool) -> Step:
    """
    :param command: that the member is to have.  :param sent: the same, where it is sent.
    """
    if command is None:
        return Settled()
    if command.option == STOP_FETCHER:
        return Unrevoked(NONE, command) if sent is None else Revoking(NONE, sent)
    if sent is not None:
        return Starting(sent=sent)
    return Waiting(NONE) if is_blocked else Starting(command)


def _wanted(now: Round, name: str) -> Command | None:
    """A stop where an earlier answer is run, a start where none is, None where it is this one."""
    runs = _runs(now, name)
    if not now.want.ask or runs == now.want.ask:
        return None
    option, ask = (STOP_FETCHER, "") if runs else (START_FETCHER, now.want.ask)
    incarnation = now.want.target[name].incarnation
    return Command(option, now.snapshot.epoch, now.generation, incarnation, ask=ask)


def _runs(now: Round, name: str) -> str:
    channel = now.snapshot.channels[name].channel
    return channel.ask if channel is not None else ""


def _blocked_by(now: Round, to_stop: Sequence[str], withdrawn: Withdrawn) -> str:
    """What keeps every start back; empty when nothing does."""
    if to_stop:
        return f"{min(to_stop)} has not stopped yet"
    if now.membership.marks:
        return f"the lease of {now.membership.marks[0].consumer} may still run"
    if any(end.view.channel is not None and end.view.channel.ask for end in now.membership.ends):
        return "an incarnation is being ended"
    pending = [name for name, sent in withdrawn if sent.command and sent.command.option == START_FETCHER]
    if pending:
        return f"a start of {pending[0]} is being withdrawn"
    ended = {end.view.consumer for end in now.membership.ends}
    for name, view in sorted(now.snapshot.channels.items()):
        if view.channel is None:
            return f"the channel of {name} cannot be read"
        if name not in ended and view.channel.is_live and view.channel.ask not in ("", now.want.ask):
            return f"{name} runs what an earlier assignment gave it"
    return ""
