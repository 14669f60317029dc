"""`zk-coordinator groups` and `channel`: who consumes what, how far, and which commands are out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coordinator.groups import Reading, ShownGroup, ShownMember, ShownPartition, existing_group, group_names, read_group
from coordinator.zk.errors import CoordinatorError

from .common import opened, output_option, print_rows, report, zk_option

if TYPE_CHECKING:
    from consumer.logs import Log

LIST = ("GROUP", "STATE", "GENERATION", "STRATEGY", "MEMBERS", "PARTITIONS", "REASON")
OFFSETS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "OWNER",
    "CONSUMER-ID",
    "HOST",
)
MEMBERS = ("GROUP", "CONSUMER-ID", "HOST", "SUBSCRIPTION", "INCARNATION", "#PARTITIONS", "COMMANDS", "ENDED")


@click.group()
def groups() -> None:
    """The consumer groups."""


@groups.command("list")
@zk_option
@output_option
def list_(zk: str, output: str) -> None:
    """List all groups with their state."""
    with opened(zk) as store:
        reading = Reading(store)
        found = [read_group(reading, name) for name in group_names(reading)]
    print_rows(LIST, [list_row(group) for group in found], output)
    tell_problems(reading.problems)


@groups.command()
@click.argument("group")
@click.option("--members", is_flag=True, help="The consumers instead of the partitions.")
@click.option(
    "--log-dir", envvar="ZK_GROUP_LOG_DIR", show_envvar=True, help="The log, for the log end offset and the lag."
)
@zk_option
@output_option
def describe(group: str, members: bool, log_dir: str | None, zk: str, output: str) -> None:
    """Show each partition of GROUP with its owner thread, current offset, log end and lag."""
    with opened(zk) as store:
        reading = Reading(store)
        found = existing_group(reading, group)
    if members:
        print_rows(MEMBERS, [_member_row(group, member) for member in found.members], output)
    else:
        print_rows(OFFSETS, _offset_rows(found, log_dir), output)
    tell_problems(reading.problems)


def list_row(group: ShownGroup) -> tuple[object, ...]:
    """A group as `groups list` and `status` show it."""
    state = group.state
    partitions = sum(len(target.partitions) for target in state.target.values())
    live = sum(1 for member in group.members if member.registration is not None)
    return (group.group, state.state, state.generation, state.strategy or None, live, partitions, state.reason)


def tell_problems(problems: dict[str, str]) -> None:
    """Say on stderr what could not be read."""
    for path, problem in sorted(problems.items()):
        report(problem if path in problem else f"{path}: {problem}")


def _member_row(group: str, member: ShownMember) -> tuple[object, ...]:
    registration, channel = member.registration, member.channel
    subscription = ",".join(f"{t}:{n}" for t, n in sorted(registration.subscription.items())) if registration else None
    return (
        group,
        member.consumer,
        registration.host if registration else None,
        subscription,
        channel.incarnation[:8] if channel and channel.incarnation else None,
        len(channel.running) if channel else None,
        len(member.commands),
        channel.ended if channel else None,
    )


def _offset_rows(group: ShownGroup, log_dir: str | None) -> list[tuple[object, ...]]:
    source = _log(log_dir)
    hosts = {member.consumer: member.registration.host for member in group.members if member.registration}
    rows: list[tuple[object, ...]] = []
    for shown in group.partitions:
        end = _log_end(source, shown)
        lag = end - shown.offset if end is not None and shown.offset is not None else None
        host = hosts.get(shown.consumer or "")
        topic, number = shown.partition
        rows.append((group.group, topic, number, shown.offset, end, lag, shown.thread, shown.consumer, host))
    return rows


def _log(log_dir: str | None) -> Log | None:
    if not log_dir:
        return None
    from consumer.logs import open_log  # loads pyarrow, which nothing else here needs

    return open_log(log_dir)


def _log_end(source: Log | None, shown: ShownPartition) -> int | None:
    if source is None or shown.topic_id is None:
        return None
    from consumer.logs import UnknownTopic

    topic, number = shown.partition
    try:
        return source.latest(topic, shown.topic_id, number)
    except UnknownTopic:
        return 0
    except CoordinatorError as error:
        report(error)
        return None
