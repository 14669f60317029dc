"""Whether a member did what the command that is gone from its channel said. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ..zk.znodes.commands import START_FETCHER, STOP_FETCHER, Command
from ..zk.znodes.partitions import NONE, PartitionSet, TopicPartition
from .snapshot import ChannelView

STRIKES = 3
"""A member that disobeys so many commands in a row is evicted."""
PAUSE_S = 1.0
"""Before the next command to a member that has disobeyed twice. The first is sent again at once: another client may
have removed it."""
REFUSALS = 1
"""So many starts in a row whose free partitions a member refuses are sent again at once. The eviction clock goes on."""
FIRST_REFUSED_PAUSE_S, LONGEST_REFUSED_PAUSE_S = 1.0, 10.0
LOSSES, LOSSES_WITHIN_S = 2, 60.0
"""So many generations in a row that a member's lost owner znodes begin come at once."""
LONGEST_LOSS_PAUSE_S = 30.0
SHOWN = 3


def is_move(command: Command) -> bool:
    """Whether it changes what a member runs."""
    return command.option in (START_FETCHER, STOP_FETCHER)


def disobeyed(
    command: Command, before: PartitionSet, view: ChannelView, owners: PartitionSet, has_owners: bool = True
) -> str:
    """What a member did instead of a stop or start; empty when it obeyed.

    Partitions that it refused, because an owner znode was in the way, are no disobedience: another may have made it.

    :param before: what it ran when the command was sent.
    :param owners: the partitions that have an owner znode now.
    :param has_owners: False for a protocol type without owners.
    """
    if why := unapplied(command, before, view, has_owners):
        return why
    unowned = (command.started - before) & view.claimed - owners
    return f"it runs {shown_partitions(unowned)} without an owner znode" if unowned else ""


def unapplied(command: Command, before: PartitionSet, view: ChannelView, has_owners: bool = True) -> str:
    """What a member's channel does not show of a stop or start; empty when it shows all. Parameters as of `disobeyed`.

    Owner znodes are not looked at: another may have removed them.
    """
    channel = view.channel
    if channel is None:
        return ""
    if command.option == STOP_FETCHER:
        kept = view.claimed & (command.partitions or before)
        if kept or (not has_owners and channel.ask):
            return f"it acknowledged a stop, and still runs {shown_partitions(kept) or channel.ask}"
        return ""
    claims = command.started - before
    if missing := claims - view.claimed - channel.refused:
        return f"it removed a start without running {shown_partitions(missing)}"
    ids = channel.topics, command.topics
    if others := {part for part in claims & view.claimed if ids[0].get(part.topic) != ids[1].get(part.topic)}:
        return f"it runs {shown_partitions(others)} under another topic id than that of its start"
    if channel.generation != command.generation or (command.ask and channel.ask != command.ask):
        return "it removed a start that its channel does not name"
    if command.region is not None and not _is_restored(command, view):
        return "it removed a start before its state was restored"
    return ""


def is_left(command: Command, before: PartitionSet, view: ChannelView) -> bool:
    """Whether a member runs what a start has named, and has left the start in its channel."""
    channel = view.channel
    is_run = channel is not None and command.started <= view.claimed and channel.generation == command.generation
    return bool(command.started - before) and is_run and (command.region is None or _is_restored(command, view))


def _is_restored(command: Command, view: ChannelView) -> bool:
    progress = view.channel.region if view.channel is not None else None
    reset = command.region.reset if command.region is not None else 0
    return progress is not None and (progress.reset, progress.ready) == (reset, reset)


def refused_free(command: Command, view: ChannelView, owners: PartitionSet) -> PartitionSet:
    """The partitions of a start that it refused, and that no owner znode keeps from it any more."""
    channel = view.channel
    return NONE if channel is None else (command.started & channel.refused) - owners - view.claimed


def pause_after_s(strikes: int, refusals: int) -> float:
    """Seconds until a member gets its next command."""
    pause_s = PAUSE_S if strikes > 1 else 0.0
    if refusals > REFUSALS:
        growing_s = FIRST_REFUSED_PAUSE_S * 2.0 ** min(refusals - REFUSALS - 1, 10)
        pause_s = max(pause_s, min(LONGEST_REFUSED_PAUSE_S, growing_s))
    return pause_s


def pause_after_losses_s(losses: int) -> float:
    """Seconds until owner znodes that a member has lost again begin a generation."""
    return min(LONGEST_LOSS_PAUSE_S, 2.0 ** min(losses - LOSSES, 10)) if losses > LOSSES else 0.0


def shown_partitions(partitions: Iterable[TopicPartition]) -> str:
    """The first of them, in words."""
    known = sorted(partitions)
    more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
    return ", ".join(map(str, known[:SHOWN])) + more
