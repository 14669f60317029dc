"""Groups that assign something without owners (a protocol type other than `consumer`): what stops, starts and waits.

ZooKeeper refuses nobody a named job, so the channels alone keep it from running twice: a new answer stops every member
that was told anything of an earlier one, and nobody starts before all of them have stopped or their lease is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ..membership import Membership
from ..moves import Moves, is_addressed
from ..snapshot import Snapshot
from ..target import Wanted
from ..zk.commands import START_FETCHER, STOP_FETCHER, Command
from ..zk.state import Mark, Target
from .leases import UNKNOWN_LEASE_MS, is_exclusive, lease_ms

UNKNOWN = "unknown"


def mark_the_replaced(snapshot: Snapshot, who: Membership, want: Wanted) -> None:
    """Mark whoever was sent a start under a name that another process has taken: it may not have heard of it yet.

    Where `state` has lost who that was, one mark covers everybody.
    """
    if not is_exclusive(snapshot):
        return
    if snapshot.state.client is None and _anything_runs(snapshot) and not any(m.consumer == UNKNOWN for m in who.marks):
        who.marks.append(Mark(UNKNOWN, f"epoch-{snapshot.epoch}", frozenset(), UNKNOWN_LEASE_MS, "the state was lost"))
        who.timers.append(UNKNOWN_LEASE_MS / 1000)
    known = {(mark.consumer, mark.incarnation) for mark in who.marks}
    for name, before in sorted(snapshot.state.target.items()):
        if before.is_sent and _is_taken_over(snapshot, name, before) and (name, before.incarnation) not in known:
            lease = lease_ms(snapshot, name)
            who.marks.append(Mark(name, before.incarnation, frozenset(), lease, "another process has taken its name"))
            who.timers.append(lease / 1000)


def _anything_runs(snapshot: Snapshot) -> bool:
    return any(view.channel is not None and view.channel.ask for view in snapshot.channels.values())


def with_sent(
    snapshot: Snapshot, target: Mapping[str, Target], starts: Iterable[tuple[str, Command]]
) -> Mapping[str, Target]:
    """The target with a note of who is sent a start in this turn; it goes with who has ended, or is marked."""
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


def exclusive_moves(snapshot: Snapshot, who: Membership, want: Wanted, generation: int) -> Moves:
    """The stops and starts that are due now."""
    found = Moves(snapshot, who, want, generation, is_eager=True)
    addressed = [name for name in sorted(who.live) if is_addressed(who, want, name)]
    to_stop = {name for name in addressed if want.ask and _runs(found, name) not in ("", want.ask)}
    to_start = {name for name in addressed if want.ask and not _runs(found, name)}
    _sort(found, to_stop, to_start)
    for name in sorted(to_stop - found.kept.keys()):
        found.stops.append((name, _command(found, name, STOP_FETCHER)))
    found.members_stopping = frozenset(to_stop)
    if to_start - found.kept.keys():
        found.blocked_by = _blocked_by(found, to_stop)
        if not found.blocked_by:
            starts = sorted(to_start - found.kept.keys())
            found.starts += [(name, _command(found, name, START_FETCHER)) for name in starts]
    return found


def _runs(found: Moves, name: str) -> str:
    channel = found.snapshot.channels[name].channel
    return channel.ask if channel is not None else ""


def _sort(found: Moves, to_stop: set[str], to_start: set[str]) -> None:
    """Keep the one command of a member that still says what it must, withdraw the others."""
    for name, view in sorted(found.snapshot.channels.items()):
        for sent in view.commands:
            if (name, sent.name) in found.want.kept:
                continue
            wanted = STOP_FETCHER if name in to_stop else START_FETCHER if name in to_start else ""
            if wanted and name not in found.kept and sent.command == _command(found, name, wanted):
                found.kept[name] = sent
            else:
                found.withdrawn.append((name, sent))


def _command(found: Moves, name: str, option: str) -> Command:
    ask = found.want.ask if option == START_FETCHER else ""
    incarnation = found.want.target[name].incarnation
    return Command(option, found.snapshot.epoch, found.generation, incarnation, ask=ask)


def _blocked_by(found: Moves, to_stop: set[str]) -> str:
    """What keeps every start back; empty when nothing does."""
    if to_stop:
        return f"{min(to_stop)} has not stopped yet"
    if found.who.marks:
        return f"the lease of {found.who.marks[0].consumer} may still run"
    if any(end.view.channel is not None and end.view.channel.ask for end in found.who.ends):
        return "an incarnation is being ended"
    pending = [name for name, sent in found.withdrawn if sent.command and sent.command.option == START_FETCHER]
    if pending:
        return f"a start of {pending[0]} is being withdrawn"
    ended = {end.view.consumer for end in found.who.ends}
    for name, view in sorted(found.snapshot.channels.items()):
        if view.channel is None:
            return f"the channel of {name} cannot be read"
        if name not in ended and view.channel.is_live and view.channel.ask not in ("", found.want.ask):
            return f"{name} runs what an earlier assignment gave it"
    return ""
