"""`zk-coordinator groups`: the commands that change a group: members, seats, eviction holds, offsets, deletion."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from zk_group.coordinator.admin import control, offsets
from zk_group.coordinator.admin.acl import create_group
from zk_group.coordinator.admin.delete_group import Removable, Removed, delete_group, removable
from zk_group.coordinator.admin.groups import Reading, chosen_groups
from zk_group.coordinator.admin.reset_offsets import ResetRequest, parse_plans, parse_scope, to_csv
from zk_group.coordinator.admin.topics import usable_topics
from zk_group.coordinator.zk.errors import CoordinatorError, SessionLost, UsageError
from zk_group.coordinator.zk.process import cli
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.policy import checked_identities
from zk_group.coordinator.zk.znodes.partitions import range_texts
from zk_group.coordinator.zk.znodes.paths import Brokers, checked_name

from .acl import checked_regions, members_option, regions_option
from .groups import OpenLog, bounds_in, source_options
from .watching import Shot, operator, printed, reason_option, timeout_option

P = ParamSpec("P")
T = TypeVar("T")

FAILED = 1
SEATS = ("GROUP", "GROUP-INSTANCE-ID", "STATUS")
MARKS = ("GROUP", "CONSUMER", "INCARNATION", "LEASE-MS", "PARTITIONS", "LIFTED")
REMOVABLE = ("GROUP", "ZNODES", "OFFSETS", "SEGMENTS", "BYTES", "ERROR")
RESET = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
DELETED = ("TOPIC", "PARTITION", "STATUS")
NOT_RESET = (
    "WARN: No action will be performed as the --execute option is missing. Give --dry-run to suppress this warning."
)
RISK = (
    "a process of this incarnation may still fetch these partitions until its lease is over: their next owner may "
    "process the same records at the same time. Lift the mark only when that process has ended."
)
LIFTS_NOTHING = "WARN: No mark is lifted as the --execute option is missing. Give --dry-run to suppress this warning."

topic_option = click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,P...]", help="A topic or single partitions; repeatable."
)


# ---- members, seats and eviction holds


@click.command()
@click.argument("group")
@members_option
@regions_option
@cli.zk_option
def create(group: str, members: tuple[str, ...], regions: tuple[str, ...], zk: str) -> None:
    """Create GROUP without members. A secured chroot needs this; in an open one its first member creates it."""
    with cli.opened(zk, make_chroot=True) as store:
        create_group(store, group, checked_identities("--members", members), checked_regions(regions))
    click.echo(f"Created group {group}.")


def _names_members(instances: tuple[str, ...], all_members: bool, **others: object) -> None:
    if bool(instances) == all_members:
        raise UsageError("name the members by their group_instance_id, or give --all-members")


@click.command("remove-members")
@click.argument("group")
@click.argument("instances", metavar="INSTANCE-ID...", nargs=-1)
@click.option("--all-members", is_flag=True, help="All static members of GROUP.")
@reason_option
@timeout_option("coordinator's turn")
@printed(check=_names_members)
def remove_members(
    reading: Reading, group: str, instances: tuple[str, ...], all_members: bool, reason: str | None, timeout_s: float
) -> Shot:
    """Remove the seats of static members of GROUP, by their group_instance_id.

    Their partitions are reassigned: at once when the member is away, else when its lease has expired. A consumer that
    still runs registers again by itself, so stop it first. Members without an instance id have no seat: they are
    removed when they stop.
    """
    chosen = control.remove_members(reading.store, ThreadRuntime(), group, instances, operator(), reason, timeout_s)
    return Shot(SEATS, [(group, instance, "Removed") for instance in chosen])


def _lifts_or_shows(dry_run: bool, execute: bool, **others: object) -> None:
    if dry_run and execute:
        raise UsageError("give --dry-run or --execute, not both")


@click.command("lift-mark")
@click.argument("group")
@click.argument("consumer")
@click.option("--incarnation", default="", help="Only the mark of this incarnation.")
@click.option("--dry-run", is_flag=True, help="Only show the marks (the default).")
@click.option("--execute", is_flag=True, help="Lift them.")
@reason_option
@printed(check=_lifts_or_shows)
def lift_mark(
    reading: Reading, group: str, consumer: str, incarnation: str, dry_run: bool, execute: bool, reason: str | None
) -> Shot:
    """Show, or with --execute lift, the eviction holds of CONSUMER in GROUP: their partitions wait for its lease.

    The partitions are then reassigned at once. A process of CONSUMER that still runs may fetch them until its lease is
    over, so stop it first. Records fetched by it can neither be committed nor sealed.
    """
    if execute:
        marks = control.lift(reading.store, ThreadRuntime(), group, consumer, incarnation, operator(), reason)
    else:
        marks = control.marks_of(reading.store, group, consumer, incarnation)
    if not dry_run and not execute:
        click.echo(LIFTS_NOTHING, err=True)
    _warn(RISK)
    held = [" ".join(f"{topic}:{ranges}" for topic, ranges in range_texts(mark.partitions).items()) for mark in marks]
    rows = [(group, m.consumer, m.incarnation, m.lease_ms, text, execute) for m, text in zip(marks, held, strict=True)]
    return Shot(MARKS, rows)


# ---- offsets


@click.command("reset-offsets")
@click.argument("names", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All groups.")
@topic_option
@click.option("--all-topics", is_flag=True, help="All partitions with an offset of the group.")
@click.option("--to-offset", type=int, metavar="N", help="To this offset.")
@click.option("--to-earliest", is_flag=True, help="To the oldest record.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-current", is_flag=True, help="To the current offset; to the end of the log without one.")
@click.option("--to-datetime", metavar="YYYY-MM-DDTHH:mm:SS.sss", help="To the first record of that time; UTC.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="To the first record of the last DURATION.")
@click.option("--shift-by", type=int, metavar="N", help="By N records, negative for backward.")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="To the offsets in a CSV file: topic,partition,offset, or group,topic,partition,offset.",
)
@click.option("--dry-run", is_flag=True, help="Only show the new offsets (the default).")
@click.option("--execute", is_flag=True, help="Set them.")
@click.option("--export", is_flag=True, help="Print CSV for --from-file instead of a table.")
@source_options(is_needed=True)
@cli.zk_option
@cli.brokers_option
@cli.output_option
def reset_offsets(
    names: tuple[str, ...],
    all_groups: bool,
    export: bool,
    source: OpenLog,
    zk: str,
    brokers: Brokers,
    output: str,
    **options: Any,
) -> int:
    """Show, or with --execute set, the offsets at which GROUP continues. The group must have no members.

    Give the partitions (--topic, --all-topics, or the file's) and exactly one --to-..., --by-duration, --shift-by or
    --from-file. Offsets outside of the log are set to its nearest end, with a warning.
    """
    request = ResetRequest(**options, now_ms=ThreadRuntime().wall_ms())
    bounds_of = bounds_in(source(zk, brokers))
    with cli.opened(zk) as store:
        groups = [checked_name("group", name) for name in chosen_groups(Reading(store), names, all_groups)]
        try:
            file = request.from_file
            plans = parse_plans(file.read_text(encoding="utf-8-sig"), groups) if file is not None else None
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file} cannot be read: {error}") from error
        topics = usable_topics(Reading(store), brokers)
        reset = offsets.OffsetReset(store, bounds_of, topics, request, plans, _warn)
        done = {group: new for group in groups if (new := _tried(reset.plan, group)) is not None}
        if request.execute:  # after all plans: a file with an error changes no group
            write = partial(offsets.write_offsets, store, topics=topics)
            done = {group: new for group, new in done.items() if _tried(write, group, new) is not None}
    if not request.dry_run and not request.execute:
        click.echo(NOT_RESET, err=True)
    rows = [(group, each.known.partition, each.offset) for group, new in done.items() for each in new]
    if export:
        click.echo(to_csv(rows, with_group=all_groups or len(groups) > 1), nl=False)
    else:
        cli.print_rows(RESET, [(group, *partition, offset) for group, partition, offset in rows], output)
    return FAILED if len(done) < len(groups) else 0


def _warn(text: str) -> None:
    click.echo(f"Warn: {text}", err=True)


def _tried(act: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The result of `act`; None after a failure of its group, which is reported: the other groups continue.

    :raises UsageError: when it concerns all groups.
    """
    try:
        return act(*args, **kwargs)
    except (UsageError, SessionLost):
        raise
    except CoordinatorError as error:
        cli.report(error)
        return None


@click.command("delete-offsets")
@click.argument("group")
@topic_option
@cli.zk_option
@cli.brokers_option
@cli.output_option
def delete_offsets(group: str, topics: tuple[str, ...], zk: str, brokers: Brokers, output: str) -> int:
    """Delete the offsets of GROUP for topics that none of its members subscribes to.

    A consumer that subscribes to one later starts at its start_position, by default at the earliest record.
    """
    if not topics:
        raise UsageError("name the topics: --topic TOPIC, or TOPIC:0,1,2 for single partitions")
    scopes = [parse_scope(text) for text in topics]
    with cli.opened(zk) as store:
        done = offsets.delete_offsets(store, usable_topics(Reading(store), brokers), group, scopes)
    errors = {error for error in done.values() if error is not None}
    if errors:
        cli.report("Encounter some partition level error, see the follow-up details:")
    elif output != cli.JSON:
        click.echo(f"Request succeed for deleting offsets with topic {', '.join(topics)} group {group}")
    unknown = None if output == cli.JSON else "Not Provided"
    rows = [
        (topic, unknown if number is None else number, "Successful" if error is None else f"Error: {error}")
        for (topic, number), error in done.items()
    ]
    cli.print_rows(DELETED, rows, output)
    if offsets.GROUP_SUBSCRIBED_TO_TOPIC in errors:
        click.echo(cli.printable(f"stop the consumers of group {group} that subscribe to it first"), err=True)
    return FAILED if errors else 0


# ---- deletion


@click.command()
@click.argument("names", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All unused groups.")
@click.option("--dry-run", is_flag=True, help="Delete nothing: show what would be, and what would be refused.")
@printed()
def delete(reading: Reading, names: tuple[str, ...], all_groups: bool, dry_run: bool) -> Shot:
    """Delete each GROUP: its offsets, its history, and its sealed segments with their files.

    A group is refused while consumers are registered, a static member's seat is kept, an evicted consumer's lease may
    run, a fetcher pool runs, or a query reads it.
    """
    done: dict[str, Removed] = {}
    would: dict[str, Removable] = {}
    failed: dict[str, str] = {}
    for group in chosen_groups(reading, names, all_groups):
        try:
            if dry_run:
                would[group] = removable(reading.store, group)
            else:
                done[group] = delete_group(reading.store, group)
        except SessionLost:
            raise
        except CoordinatorError as error:
            failed[group] = str(error)
    code = FAILED if failed else 0
    if dry_run:
        rows = [(group, *would.get(group, [None] * 4), failed.get(group)) for group in sorted({*would, *failed})]
        notes = ["nothing was deleted: this was a dry run, delete without --dry-run"]
        return Shot(REMOVABLE, rows, notes, code=code)
    znodes = {group: removed.znodes for group, removed in done.items()}
    document = [
        {"group": group, "deleted": group in done, "znodes": znodes.get(group, 0), "error": failed.get(group)}
        for group in sorted({*done, *failed})
    ]
    notes = [
        f"{removed.elsewhere} segment files of group {group} cannot be reached from this host: "
        "a fetcher pool of that group removes them, or an operator"
        for group, removed in done.items()
        if removed.elsewhere
    ]
    return Shot(notes=notes, document=document, text=partial(_print_deleted, done, failed), code=code)


def _print_deleted(done: dict[str, Removed], failed: dict[str, str]) -> None:
    named = ", ".join(f"'{group}'" for group in done)
    if not failed:
        click.echo(f"Deletion of requested consumer groups ({named}) was successful.")
        return
    click.echo("Error: Deletion of some consumer groups failed:")
    for group, error in failed.items():
        click.echo(cli.printable(f"* Group '{group}' could not be deleted due to: {error}"))
    if done:
        click.echo(f"\nThese consumer groups were deleted successfully: {named}")
