"""Events in the channels of a group, derived from what a watcher saw. Pure: no clock, no ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..zk.znodes.partitions import range_texts
from ..zk.znodes.paths import sequence
from ..zk.znodes.records import START_FETCHER, STOP_FETCHER, Channel, Command, Registration

COMMAND, ACKNOWLEDGED, WITHDRAWN, REMOVED = "command", "acknowledged", "withdrawn", "removed"
REGISTERED, ENDED, MISSED = "registered", "ended", "missed"

GONE_UNREAD = "it was gone before it could be read"


@dataclass(frozen=True, slots=True)
class ChannelEvent:
    """One event, as `channel watch` prints it; None for a field that does not apply or is unknown.

    :ivar event: `command` (sent), `acknowledged`, `withdrawn`, `removed` (unknown which of the two),
        `registered` and `ended` (a consumer's incarnation), `missed` (events may have been missed).
    :ivar at_ms: wall clock.
    :ivar partitions: topic -> ranges: those that a start names or a stop revokes; None for a stop of everything, and
        for a command of client-side assignment.
    :ivar took_ms: time since the command was seen.
    :ivar ask: the ask that the command names.
    :ivar reason: why the assignment failed (`assignment-failed`).
    """

    event: str
    at_ms: int
    consumer: str | None = None
    command: str | None = None
    option: str | None = None
    epoch: int | None = None
    generation: int | None = None
    incarnation: str | None = None
    partitions: Mapping[str, str] | None = None
    took_ms: float | None = None
    note: str | None = None
    ask: str | None = None
    reason: str | None = None

    def to_json(self, group: str) -> dict[str, Any]:
        """The object that `-o jsonl` prints."""
        return {"event": self.event, "at_ms": self.at_ms, "group": group} | asdict(self)


@dataclass(frozen=True, slots=True)
class SeenCommand:
    """A command that is or was in a channel.

    :ivar command: None when unreadable.  :ivar problem: why.
    :ivar since_s: monotonic time at which it was seen; None when it was in the channel before.
    """

    consumer: str
    name: str
    command: Command | None
    since_s: float | None
    problem: str | None = None


def sent(seen: SeenCommand, at_ms: int) -> ChannelEvent:
    """A command was created."""
    note = seen.problem or (None if seen.since_s is not None else "it was there already")
    return replace(_of(seen, COMMAND, at_ms), note=note)


def removed(
    seen: SeenCommand, channel: Channel | None, at_ms: int, now_s: float, with_channel: bool | None = None
) -> ChannelEvent:
    """A command is gone: acknowledged or withdrawn, according to the data of its channel.

    :param channel: read just after the removal; None when unreadable.
    :param with_channel: whether the channel was written in the same multi; None when unknown.
    """
    event, note = _how_it_ended(seen, channel, with_channel)
    result = replace(_of(seen, event, at_ms), note=note)
    if seen.since_s is not None and seen.problem != GONE_UNREAD:  # seen late: a time of zero would be wrong
        result = replace(result, took_ms=round((now_s - seen.since_s) * 1000, 1))
    if seen.command is None and event == ACKNOWLEDGED and channel is not None:
        known = f"{seen.problem}; partitions are what its consumer runs" if seen.problem else "it could not be read"
        running = range_texts(channel.running)
        result = replace(
            result, epoch=channel.epoch, generation=channel.generation, incarnation=channel.incarnation,
            partitions=running, note=known,
        )  # fmt: skip
    return result


def registered(consumer: str, registration: Registration | None, problem: str | None, at_ms: int) -> ChannelEvent:
    """A consumer's `ids` znode was created."""
    if registration is None:
        return ChannelEvent(REGISTERED, at_ms, consumer, note=problem)
    subscription = ", ".join(f"{topic}:{threads}" for topic, threads in sorted(registration.subscription.items()))
    note = f"host {registration.host}, {registration.pattern} {subscription}".rstrip()
    if registration.client is not None:
        note += f", client-side {', '.join(registration.client.protocols)}"
    return ChannelEvent(REGISTERED, at_ms, consumer, incarnation=registration.incarnation, note=note)


def ended(consumer: str, incarnation: str | None, channel: Channel | None, at_ms: int) -> ChannelEvent:
    """A consumer's `ids` znode is gone."""
    if channel is None:
        note = "its channel cannot be read"
    elif incarnation is not None and channel.incarnation != incarnation:
        note = "another process has registered under its name"
    else:
        note = channel.ended or "its session ended"
    found = incarnation or (channel.incarnation if channel is not None else None)
    return ChannelEvent(ENDED, at_ms, consumer, incarnation=found, note=note)


def missed(why: str, at_ms: int) -> ChannelEvent:
    """Events may have been missed."""
    return ChannelEvent(MISSED, at_ms, note=f"{why}: events may have been missed; everything was read again")


def _of(seen: SeenCommand, event: str, at_ms: int) -> ChannelEvent:
    command = seen.command
    if command is None:
        return ChannelEvent(event, at_ms, seen.consumer, seen.name)
    named = range_texts(command.started if command.option == START_FETCHER else command.partitions)
    is_named = command.option == START_FETCHER or (command.option == STOP_FETCHER and bool(named))
    sender = (command.option, command.epoch, command.generation, command.incarnation)
    partitions, ask, reason = named if is_named else None, command.ask or None, command.reason or None
    return ChannelEvent(event, at_ms, seen.consumer, seen.name, *sender, partitions, ask=ask, reason=reason)


def _how_it_ended(seen: SeenCommand, channel: Channel | None, with_channel: bool | None) -> tuple[str, str | None]:
    """The multi that acknowledges a command names it in the channel, which only its consumer writes."""
    command = seen.command
    if channel is None:
        return REMOVED, "the channel cannot be read, so its outcome is unknown"
    if command is not None and command.incarnation != channel.incarnation:
        return WITHDRAWN, "the channel is another incarnation's"
    if channel.command == seen.name:
        refused = ", ".join(f"{topic}({text})" for topic, text in range_texts(channel.refused).items())
        return ACKNOWLEDGED, f"refused, as an owner was in the way: {refused}" if refused else None
    is_later = (sequence(channel.command) or -1) > (sequence(seen.name) or 0)
    if is_later and with_channel:  # its incarnation continued: not its end
        return ACKNOWLEDGED, seen.problem
    if is_later and with_channel is None:
        return REMOVED, "a later command was applied before the channel could be read"
    if channel.ended is not None:
        return WITHDRAWN, channel.ended
    if command is not None and (command.epoch, command.generation) < (channel.epoch, channel.generation):
        return WITHDRAWN, "it was older than what its consumer had applied"
    return WITHDRAWN, seen.problem
