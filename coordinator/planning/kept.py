"""What holds while a leader is asked, and which asks nobody needs. Pure."""

from __future__ import annotations

from dataclasses import replace

from ..membership import Membership
from ..snapshot import Snapshot
from ..target import Wanted
from ..zk.commands import ASSIGNMENT_FAILED, Command
from ..zk.paths import ask_number
from ..zk.state import Target
from ..zk.sync import CONSUMER
from .group import Asking, Group


def kept_as_it_is(group: Group, commands: set[tuple[str, str]] | None = None) -> Wanted:
    """The target as it is; a static member's is meant for the life that it is in."""
    state = group.snapshot.state
    target = {name: _in_its_life(group, name, one) for name, one in (state.target or still_told(group)).items()}
    left_out = {name: why for name, why in state.left_out.items() if name in state.topics}
    client = group.before
    kept = frozenset(commands or ()) | standing_notices(group)
    is_exclusive = client.protocol_type != CONSUMER
    return Wanted(target, state.topics, left_out, client.ask, is_exclusive, kept)


def _in_its_life(group: Group, name: str, one: Target) -> Target:
    """What a member has in the target, meant for the life that it is in, where it has come back to its seat."""
    now = group.who.everybody.get(name)
    if now is None or now.instance_id != name or name not in group.snapshot.seats or now.incarnation == one.incarnation:
        return one
    return replace(one, incarnation=now.incarnation, is_sent=False)


def unreadable(snapshot: Snapshot, membership: Membership) -> dict[str, Target]:
    """Of a group without owners, members that were sent a start and whose registration cannot be read.

    They stay in the target: who takes over the name of one that is not in it waits for no lease.
    """
    client = snapshot.state.client
    if client is None or client.protocol_type == CONSUMER:
        return {}
    found = {}
    for name, one in snapshot.state.target.items():
        view = snapshot.channels.get(name)
        channel = view.channel if view is not None else None
        is_unread = name in snapshot.members and name not in membership.everybody
        is_its_life = channel is not None and channel.is_live and channel.incarnation == one.incarnation
        if one.is_sent and is_unread and is_its_life:
            found[name] = one
    return found


def still_told(group: Group) -> dict[str, Target]:
    """Who was told to run something without owners, by channels, where the target that said so is lost."""
    if group.before.protocol_type == CONSUMER:
        return {}
    channels = {name: group.snapshot.channels[name].channel for name in group.who.live}
    return {name: Target(one.incarnation, {}, is_sent=True) for name, one in channels.items() if one and one.ask}


def standing_notices(group: Group) -> frozenset[tuple[str, str]]:
    """`assignment-failed` that nobody has read yet: it is told whatever has come since."""
    return frozenset(
        (name, sent.name)
        for name, view in group.snapshot.channels.items()
        for sent in view.commands
        if sent.command is not None
        and sent.command.option == ASSIGNMENT_FAILED
        and name in group.who.live
        and sent.command.incarnation == group.who.live[name].incarnation
        and sent.command.epoch == group.snapshot.epoch
    )


def tidied(group: Group, found: Asking) -> Asking:
    """Which asks nobody needs: not the adopted one, the one that is out, the last one that failed, and, until every
    member has been told of the new target, those whose entries a start may name."""
    client = found.client
    names = {client.ask, client.failed_ask} if client is not None else set()
    if found.made is None and not found.is_adopted and group.out is not None and found.waits:
        names.add(group.out.name)
    old = [view for view in group.snapshot.asks if view.name not in names]
    adopted = ask_number(client.ask) if client is not None else 0
    told = _told_of(group)
    was_adopted = [v for v in old if v.answer is not None and ask_number(v.name) < adopted and v.name in told]
    unneeded = tuple(view for view in old if view not in was_adopted)
    answered = found.answered if client is not None else group.snapshot.sync_request
    return replace(
        found,
        unneeded=unneeded,
        superseded=tuple(was_adopted),
        answered=answered,
        notices=(*_told_again(group), *found.notices),
    )


def _told_of(group: Group) -> set[str]:
    """Asks whose entries somebody may still read; a group that is never Stable keeps no others."""
    views = group.snapshot.channels.values()
    sent = {each.command.ask for view in views for each in view.commands if each.command is not None}
    return sent | {view.channel.ask for view in views if view.channel is not None}


def _told_again(group: Group) -> tuple[tuple[str, Command], ...]:
    """`assignment-failed` of an earlier epoch that nobody has read: it is withdrawn with the others, and sent anew."""
    return tuple(
        (name, replace(sent.command, epoch=group.snapshot.epoch, generation=group.snapshot.state.generation))
        for name, view in sorted(group.snapshot.channels.items())
        for sent in view.commands
        if sent.command is not None
        and sent.command.option == ASSIGNMENT_FAILED
        and sent.command.epoch != group.snapshot.epoch
        and name in group.who.live
        and sent.command.incarnation == group.who.live[name].incarnation
    )
