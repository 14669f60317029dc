"""The leftovers of dead incarnations in a group. Pure.

S7 is decided at the end of a history, and only for leftovers older than the collection period: a drill that ended
sooner would never decide it.
"""

from __future__ import annotations

from coordinator.admin.groups import ShownGroup, ShownMember


def remnants(group: ShownGroup) -> list[str]:
    """Commands, partitions and owners of ended incarnations, which a turn should have removed."""
    result = [each for member in group.members for each in _of_channel(member)]
    live = {
        (member.consumer, part)
        for member in group.members
        if member.channel is not None and member.channel.is_live
        for part in member.channel.running
    }
    result += [
        f"owner {each.partition} of {each.consumer}"
        for each in group.partitions
        if each.consumer is not None and (each.consumer, each.partition) not in live
    ]
    return result


def _of_channel(member: ShownMember) -> list[str]:
    channel = member.channel
    if channel is None:
        return []
    dead = [f"{part} in `running` of {member.consumer}" for part in channel.running if not channel.is_live]
    return dead + [
        f"{sent.name} for {member.consumer}"
        for sent in member.commands
        if not channel.is_live or (sent.command is not None and sent.command.incarnation != channel.incarnation)
    ]
