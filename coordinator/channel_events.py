"""What happens in the channels of a group, told from what a watcher saw. Pure: no clock, no ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .zk.commands import START_FETCHER, STOP_FETCHER, Command
from .zk.partitions import range_texts
from .zk.paths import sequence
from .zk.records import Channel, Registration

COMMAND, ACKNOWLEDGED, WITHDRAWN, REMOVED = "command", "acknowledged", "withdrawn", "removed"
REGISTERED, ENDED, MISSED = "registered", "ended", "missed"

GONE_UNREAD = "it was gone before it could be read"


@dataclass(frozen=True, slots=True)
class Told:
    """One event, as `channel watch` prints it; None for what does not apply, or what nobody knows.

    :ivar event: `command` (sent), `acknowledged`, `withdrawn`, `removed` (nobody can tell which of the two),
        `registered` and `ended` (a consumer's incarnation), `missed` (events may have been).
    :ivar at_ms: wall clock.
    :ivar partitions: topic -> ranges: what a start names, or what a stop gives up; None for a stop of everything, and
        for a command of client-side assignment.
    :ivar took_ms: since the command was seen.
    :ivar ask: the ask that the command names.
    :ivar reason: of `assignment-failed`, why the assignment failed.
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
        return {
            "event": self.event,
            "at_ms": self.at_ms,
            "group": group,
            "consumer": self.consumer,
            "command": self.command,
            "option": self.option,
            "epoch": self.epoch,
            "generation": self.generation,
            "incarnation": self.incarnation,
            "partitions": dict(self.partitions) if self.partitions is not None else None,
            "took_ms": self.took_ms,
            "note": self.note,
            "ask": self.ask,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Seen:
    """A command that stands in a channel, or did.

    :ivar command: None when it could not be read.  :ivar problem: why.
    :ivar since_s: on the monotonic clock, when it was seen; None when it stood there before.
    """

    consumer: str
    name: str
    command: Command | None
    since_s: float | None
    problem: str | None = None


def sent(seen: Seen, at_ms: int) -> Told:
    """A command was created."""
    note = seen.problem or (None if seen.since_s is not None else "it stood there already")
    return replace(_of(seen, COMMAND, at_ms), note=note)


def removed(seen: Seen, channel: Channel | None, at_ms: int, now_s: float, with_channel: bool | None = None) -> Told:
    """A command is gone: acknowledged or withdrawn, as the data of its channel tells.

    :param channel: as it was read just after; None when it could not be.
    :param with_channel: whether the channel was written in the same multi; None when nobody saw.
    """
    event, note = _how_it_ended(seen, channel, with_channel)
    told = replace(_of(seen, event, at_ms), note=note)
    if seen.since_s is not None and seen.problem != GONE_UNREAD:  # seen late: as if it had taken no time
        told = replace(told, took_ms=round((now_s - seen.since_s) * 1000, 1))
    if seen.command is None and event == ACKNOWLEDGED and channel is not None:
        known = f"{seen.problem}; partitions are what its consumer runs" if seen.problem else "it could not be read"
        running = range_texts(channel.running)
        told = replace(
            told, epoch=channel.epoch, generation=channel.generation, incarnation=channel.incarnation,
            partitions=running, note=known,
        )  # fmt: skip
    return told


def registered(consumer: str, registration: Registration | None, problem: str | None, at_ms: int) -> Told:
    """A consumer's `ids` znode came."""
    if registration is None:
        return Told(REGISTERED, at_ms, consumer, note=problem)
    wants = ", ".join(f"{topic}:{threads}" for topic, threads in sorted(registration.subscription.items()))
    note = f"host {registration.host}, {registration.pattern} {wants}".rstrip()
    if registration.client is not None:
        note += f", client-side {', '.join(registration.client.protocols)}"
    return Told(REGISTERED, at_ms, consumer, incarnation=registration.incarnation, note=note)


def ended(consumer: str, incarnation: str | None, channel: Channel | None, at_ms: int) -> Told:
    """A consumer's `ids` znode is gone."""
    if channel is None:
        note = "its channel cannot be read"
    elif incarnation is not None and channel.incarnation != incarnation:
        note = "another process has registered under its name"
    else:
        note = channel.ended or "its session ended"
    found = incarnation or (channel.incarnation if channel is not None else None)
    return Told(ENDED, at_ms, consumer, incarnation=found, note=note)


def missed(why: str, at_ms: int) -> Told:
    """Events may have been missed."""
    return Told(MISSED, at_ms, note=f"{why}: events may have been missed; everything was read again")


def _of(seen: Seen, event: str, at_ms: int) -> Told:
    command = seen.command
    if command is None:
        return Told(event, at_ms, seen.consumer, seen.name)
    named = range_texts(command.started if command.option == START_FETCHER else command.partitions)
    is_named = command.option == START_FETCHER or (command.option == STOP_FETCHER and bool(named))
    return Told(
        event,
        at_ms,
        seen.consumer,
        seen.name,
        command.option,
        command.epoch,
        command.generation,
        command.incarnation,
        named if is_named else None,
        ask=command.ask or None,
        reason=command.reason or None,
    )


def _how_it_ended(seen: Seen, channel: Channel | None, with_channel: bool | None) -> tuple[str, str | None]:
    """The multi by which a consumer acknowledges a command names it in the channel; nobody else writes that."""
    command = seen.command
    if channel is None:
        return REMOVED, "the channel cannot be read, so nobody can tell how it ended"
    if command is not None and command.incarnation != channel.incarnation:
        return WITHDRAWN, "another incarnation lives there now"
    if channel.command == seen.name:
        refused = ", ".join(f"{topic}({text})" for topic, text in range_texts(channel.refused).items())
        return ACKNOWLEDGED, f"refused, as an owner was in the way: {refused}" if refused else None
    is_later = (sequence(channel.command) or -1) > (sequence(seen.name) or 0)
    if is_later and with_channel:  # its incarnation went on, so this was no end of it
        return ACKNOWLEDGED, seen.problem
    if is_later and with_channel is None:
        return REMOVED, "a later command was applied before the channel could be read"
    if channel.ended is not None:
        return WITHDRAWN, channel.ended
    if command is not None and (command.epoch, command.generation) < (channel.epoch, channel.generation):
        return WITHDRAWN, "it was older than what its consumer had applied"
    return WITHDRAWN, seen.problem
