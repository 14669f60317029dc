"""What counts of a channel's `running`: the partitions that a command has named to its incarnation. Pure.

A channel is its member's to write, so an entry alone proves nothing: it would move the offset of a partition that
another member owns. `granted` in the state, which is written in the multi of each start, is the evidence.
A model of a member that lies (`tests/model/lying.py`) tests each rule by its absence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..zk.znodes.commands import START_FETCHER, Command
from ..zk.znodes.group_state import Grant, Target
from ..zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from .snapshot import ChannelView, Snapshot


def next_grants(
    snapshot: Snapshot, target: Mapping[str, Target], starts: tuple[tuple[str, Command], ...]
) -> dict[str, Grant]:
    """`granted` of the next state: what earlier commands have named and may still run, and what `starts` name.

    What equals the member's part of `target` is left out. An incarnation that this turn ends is kept: the turn may
    take several multis.
    """
    named = {name: command.started for name, command in starts}
    found = {}
    for name, view in snapshot.channels.items():
        grant = _next_grant(snapshot, view, named.get(name, NONE))
        if grant is not None and not _is_implied(grant, target.get(name)):
            found[name] = grant
    return found


def _next_grant(snapshot: Snapshot, view: ChannelView, named: PartitionSet) -> Grant | None:
    channel, state = view.channel, snapshot.state
    if channel is None:  # unreadable for now
        one = state.target.get(view.consumer)
        return (state.granted or {}).get(view.consumer) or (Grant(one.incarnation, one.partitions) if one else None)
    if not channel.incarnation:
        return None
    before = state.granted_to(view.consumer, channel.incarnation)
    held = view.running | _pending(view)
    return Grant(channel.incarnation, (held if before is None else held & before) | named)


def _pending(view: ChannelView) -> PartitionSet:
    """The partitions of its starts that are neither acknowledged nor withdrawn."""
    commands = [sent.command for sent in view.commands if sent.command is not None]
    return frozenset().union(*(command.started for command in commands if command.option == START_FETCHER))


def _is_implied(grant: Grant, one: Target | None) -> bool:
    """Whether a missing entry says the same."""
    if one is not None and one.incarnation == grant.incarnation:
        return grant.partitions == one.partitions
    return not grant.partitions


def uncounted(
    granted: PartitionSet | None,
    view: ChannelView,
    begun: frozenset[str],
    foreign: PartitionSet,
    is_known: Callable[[TopicPartition], bool],
) -> PartitionSet:
    """The entries of `running` that do not count.

    :param granted: what commands have named to the incarnation; None when that is unknown: then an entry
        counts unless its topic has had no start yet, its owner znode is another incarnation's, or the partition neither
        exists nor has an owner znode.
    :param begun: topics that have had a start.  :param foreign: partitions with another incarnation's owner znode.
    :param is_known: whether a partition exists, or has an owner znode.
    """
    if granted is not None:
        return view.claimed - granted
    pending = _pending(view)
    return frozenset(
        p for p in view.claimed if (p.topic not in begun or p in foreign or not is_known(p)) and p not in pending
    )
