"""The target in force while a leader is asked, and unneeded asks. Pure."""

from __future__ import annotations

from dataclasses import replace

from ..zk.znodes.group_state import CONSUMER, Target
from ..zk.znodes.paths import ask_number
from ..zk.znodes.records import ASSIGNMENT_FAILED, Command
from .group import Asking, Group
from .membership import Membership
from .snapshot import Snapshot
from .target import Wanted


def unchanged_target(group: Group, commands: set[tuple[str, str]] | None = None) -> Wanted:
    """The unchanged target; a static member's entry is for its current incarnation."""
    state = group.snapshot.state
    target = {name: _for_incarnation(group, name, one) for name, one in (state.target or sent_starts(group)).items()}
    left_out = {name: why for name, why in state.left_out.items() if name in state.topics}
    client = group.before
    kept = frozenset(commands or ()) | unread_notices(group)
    is_exclusive = client.protocol_type != CONSUMER
    return Wanted(target, state.topics, left_out, client.ask, is_exclusive, kept)


def _for_incarnation(group: Group, name: str, one: Target) -> Target:
    """A member's target, for its current incarnation where it has come back to its seat."""
    registration = group.membership.everybody.get(name)
    if (
        registration is None
        or registration.instance_id != name
        or name not in group.snapshot.seats
        or registration.incarnation == one.incarnation
    ):
        return one
    return replace(one, incarnation=registration.incarnation, is_sent=False)


def unreadable(snapshot: Snapshot, membership: Membership) -> dict[str, Target]:
    """Members of a group without owners that were sent a start and whose registration cannot be read.

    They stay in the target: a process that takes over a name outside of it would wait for no lease.
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


def sent_starts(group: Group) -> dict[str, Target]:
    """Members that were sent a start in a group without owners, by their channels, where the target was lost."""
    if group.before.protocol_type == CONSUMER:
        return {}
    channels = {name: group.snapshot.channels[name].channel for name in group.membership.live}
    return {name: Target(one.incarnation, {}, is_sent=True) for name, one in channels.items() if one and one.ask}


def unread_notices(group: Group) -> frozenset[tuple[str, str]]:
    """Unread `assignment-failed` commands: they stay, also when commands follow."""
    return frozenset(
        (name, sent.name)
        for name, view in group.snapshot.channels.items()
        for sent in view.commands
        if sent.command is not None
        and sent.command.option == ASSIGNMENT_FAILED
        and name in group.membership.live
        and sent.command.incarnation == group.membership.live[name].incarnation
        and sent.command.epoch == group.snapshot.epoch
    )


def with_unneeded_asks(group: Group, found: Asking) -> Asking:
    """Add unneeded asks: all but the adopted one, the pending one, the last failed one, and, until every member has the
    new target, those whose entries a start may name."""
    client = found.client
    names = {client.ask, client.failed_ask} if client is not None else set()
    if found.made is None and not found.is_adopted and group.out is not None and found.waits:
        names.add(group.out.name)
    old = [view for view in group.snapshot.asks if view.name not in names]
    adopted = ask_number(client.ask) if client is not None else 0
    readable = _readable_asks(group)
    was_adopted = [v for v in old if v.answer is not None and ask_number(v.name) < adopted and v.name in readable]
    unneeded = tuple(view for view in old if view not in was_adopted)
    answered = found.answered if client is not None else group.snapshot.sync_request
    return replace(
        found,
        unneeded=unneeded,
        superseded=tuple(was_adopted),
        answered=answered,
        notices=(*_resent_notices(group), *found.notices),
    )


def _readable_asks(group: Group) -> set[str]:
    """Asks whose entries a member may still read; a group that is never Stable keeps no others."""
    views = group.snapshot.channels.values()
    sent = {each.command.ask for view in views for each in view.commands if each.command is not None}
    return sent | {view.channel.ask for view in views if view.channel is not None}


def _resent_notices(group: Group) -> tuple[tuple[str, Command], ...]:
    """Unread `assignment-failed` commands of an earlier epoch: withdrawn with the others, and sent again."""
    return tuple(
        (name, replace(sent.command, epoch=group.snapshot.epoch, generation=group.snapshot.state.generation))
        for name, view in sorted(group.snapshot.channels.items())
        for sent in view.commands
        if sent.command is not None
        and sent.command.option == ASSIGNMENT_FAILED
        and sent.command.epoch != group.snapshot.epoch
        and name in group.membership.live
        and sent.command.incarnation == group.membership.live[name].incarnation
    )
