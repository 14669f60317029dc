"""`zk-coordinator channel`: the coordinator's commands to consumers, current and live."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import click

from zk_group.coordinator.admin.channel_watch import ACKNOWLEDGED, WITHDRAWN, ChannelEvent, ChannelWatch
from zk_group.coordinator.admin.groups import Reading, ShownCommand, checked_group, existing_group
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.process import cli
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.znodes.partitions import range_texts
from zk_group.coordinator.zk.znodes.paths import is_name
from zk_group.coordinator.zk.znodes.records import START_FETCHER, STOP_FETCHER

from .groups import notes_of
from .watching import Shot, printed

CHANNEL = (
    "CONSUMER-ID", "COMMAND", "OPTION", "EPOCH", "GENERATION", "INCARNATION", "PARTITIONS", "ASK", "REASON",
)  # fmt: skip
JSONL = "jsonl"
WIDTHS = (12, 12, 16, 18, 13, 6, 10, 11, 9)
HEADER = (
    "TIME", "EVENT", "CONSUMER-ID", "COMMAND", "OPTION", "EPOCH", "GENERATION", "INCARNATION", "MS", "PARTITIONS, NOTE",
)  # fmt: skip
UNNAMED = {START_FETCHER: "none", STOP_FETCHER: "all"}
"""Meaning of a command without partitions."""


@click.group()
def channel() -> None:
    """The channels through which the coordinator commands the consumers."""


@channel.command()
@click.argument("group")
@click.argument("consumer", required=False)
@printed()
def show(reading: Reading, group: str, consumer: str | None) -> Shot:
    """Show the unacknowledged commands of GROUP, or of one CONSUMER."""
    shown_group = existing_group(reading, group)
    if consumer is not None and consumer not in {member.consumer for member in shown_group.members}:
        raise UsageError(f"Consumer '{consumer}' has no channel in group '{group}'.")
    chosen = [member for member in shown_group.members if consumer in (None, member.consumer)]
    return Shot(CHANNEL, [_row(sent) for member in chosen for sent in member.commands], notes_of(reading))


@channel.command()
@click.argument("group")
@click.argument("consumer", required=False)
@click.option("--for", "for_s", type=cli.Seconds(0), help="Stop after this many seconds.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many events.")
@click.option(
    "-o",
    "--output",
    type=click.Choice([cli.TABLE, JSONL, "json"]),
    default=cli.TABLE,
    show_default=True,
    help="A table, or one JSON object per line (json means jsonl here).",
)
@cli.zk_option
def watch(group: str, consumer: str | None, for_s: float | None, count: int | None, output: str, zk: str) -> None:
    """Stream each command of GROUP, or of one CONSUMER, and its outcome, until Ctrl-C.

    \b
    Events, the `event` of -o jsonl:
      command       sent; or already there when the watch began
      acknowledged  its consumer has applied it
      withdrawn     withdrawn by the coordinator, or removed unapplied
      removed       gone; unknown which of the two
      registered    an incarnation of a consumer has registered
      ended         an incarnation of a consumer has ended
      missed        the connection was lost: events may have been missed

    \b
    Keys of -o jsonl, null where not applicable:
      event, at_ms (wall clock), group, consumer, command, option, epoch,
      generation, incarnation, partitions (topic -> ranges; null for a stop of
      everything), took_ms (from the command to its outcome, as seen here), note,
      ask (of client-side assignment), reason (of assignment-failed)
    """
    with cli.opened(zk) as store:
        checked_group(store, group)
        if consumer is not None and not is_name(consumer):
            raise UsageError(f"{consumer!a} is no name of a consumer")
    access = cli.command_access()
    following = ChannelWatch(
        lambda: open_kazoo(zk, cli.SESSION_TIMEOUT_MS, cli.CONNECT_TIMEOUT_S, make_chroot=False, access=access),
        ThreadRuntime(),
        group,
        consumer,
    )
    with suppress(BrokenPipeError):  # the reader of the pipe has gone: `checked_streams` drops further output
        if output == cli.TABLE:
            print(_columns(HEADER), flush=True)
        for number, event in enumerate(following.events(for_s), 1):
            print(_columns(_cells(event)) if output == cli.TABLE else json.dumps(event.to_json(group)), flush=True)
            if number == count:
                return


def _columns(cells: tuple[str, ...]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False)]
    return "  ".join([*padded, *cells[len(WIDTHS) :]]).rstrip()


def _cells(event: ChannelEvent) -> tuple[str, ...]:
    named = " ".join(f"{topic}({text})" for topic, text in (event.partitions or {}).items())
    if event.option in (START_FETCHER, STOP_FETCHER) and not named:
        named = "all" if event.partitions is None else "none"
    if event.event in (ACKNOWLEDGED, WITHDRAWN) and event.option is not None:
        event, named = replace(event, reason=None), ""  # printed when it was sent
    time = datetime.fromtimestamp(event.at_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    sender = (event.epoch, event.generation, event.incarnation[:8] if event.incarnation else None)
    cells = (time, event.event, event.consumer, event.command, event.option, *sender, event.took_ms)
    note = "; ".join(text for text in (named, event.ask, event.reason, event.note) if text)
    return (*("-" if cell is None else cli.printable(cell) for cell in cells), cli.printable(note))


def _row(sent: ShownCommand) -> tuple[object, ...]:
    command = sent.command
    if command is None:
        return (sent.consumer, sent.name, *[None] * (len(CHANNEL) - 2))
    named = range_texts(command.started or command.partitions)
    partitions = " ".join(f"{topic}({text})" for topic, text in named.items()) or UNNAMED.get(command.option)
    sender = (command.option, command.epoch, command.generation, command.incarnation[:8])
    return (sent.consumer, sent.name, *sender, partitions, command.ask or None, command.reason or None)
