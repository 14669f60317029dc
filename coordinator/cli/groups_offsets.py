"""`zk-coordinator groups reset-offsets` and `delete-offsets`: set or remove a group's offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from coordinator.admin.groups import Reading, chosen_groups
from coordinator.admin.offsets import GROUP_SUBSCRIBED_TO_TOPIC, Deletion, OffsetReset
from coordinator.admin.offsets import delete_offsets as delete_them
from coordinator.admin.reset_offsets import Plan, ResetRequest, parse_plans, parse_scope, to_csv
from coordinator.admin.topics import list_topics
from coordinator.zk.errors import CoordinatorError, SessionLost, UsageError
from coordinator.zk.process.cli import (
    JSON,
    brokers_option,
    opened,
    output_option,
    print_rows,
    printable,
    report,
    zk_option,
)
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Store
from coordinator.zk.znodes.names import checked_name
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic

from .source import LogOptions, bounds_in, source_options

P = ParamSpec("P")
T = TypeVar("T")

RESET = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
DELETED = ("TOPIC", "PARTITION", "STATUS")
FAILED = 1

DRY_RUN = (
    "WARN: No action will be performed as the --execute option is missing. Give --dry-run to suppress this warning."
)

topic_option = click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,P...]", help="A topic or single partitions; repeatable."
)


# ---- reset-offsets


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
@zk_option
@brokers_option
@output_option
def reset_offsets(
    names: tuple[str, ...],
    all_groups: bool,
    export: bool,
    source: LogOptions,
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
    bounds_of = bounds_in(source.opened(zk, brokers))
    with opened(zk) as store:
        groups = [checked_name("group", name) for name in chosen_groups(Reading(store), names, all_groups)]
        plans = _plans(request.from_file, groups)
        reset = OffsetReset(store, bounds_of, _topics(store, brokers), request, plans, _warn)
        done = {group: new for group in groups if (new := _tried(reset.plan, group)) is not None}
        if request.execute:  # after all plans: a file with an error changes no group
            done = {group: new for group, new in done.items() if _tried(reset.write, group, new) is not None}
    if not request.dry_run and not request.execute:
        click.echo(DRY_RUN, err=True)
    rows = [(group, each.known.partition, each.offset) for group, new in done.items() for each in new]
    if export:
        click.echo(to_csv(rows, with_group=all_groups or len(groups) > 1), nl=False)
    else:
        print_rows(RESET, [(group, *partition, offset) for group, partition, offset in rows], output)
    return FAILED if len(done) < len(groups) else 0


def _warn(text: str) -> None:
    click.echo(f"Warn: {text}", err=True)


def _tried(act: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
    """The result of `act`; None after a failure for its group, which is reported, and the other groups continue.

    :raises UsageError: when it concerns all groups.
    """
    try:
        return act(*args, **kwargs)
    except (UsageError, SessionLost):
        raise
    except CoordinatorError as error:
        report(error)
        return None


def _plans(file: Path | None, groups: Sequence[str]) -> dict[str, Plan] | None:
    if file is None:
        return None
    try:
        return parse_plans(file.read_text(encoding="utf-8-sig"), groups)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def _topics(store: Store, brokers: Brokers) -> dict[str, Topic]:
    return {each.name: each.topic for each in list_topics(store, brokers) if each.topic is not None}


# ---- delete-offsets


@click.command("delete-offsets")
@click.argument("group")
@topic_option
@zk_option
@brokers_option
@output_option
def delete_offsets(group: str, topics: tuple[str, ...], zk: str, brokers: Brokers, output: str) -> int:
    """Delete the offsets of GROUP for topics that none of its members subscribes to.

    A consumer that subscribes to one later starts at its start_position, by default at the earliest record.
    """
    if not topics:
        raise UsageError("name the topics: --topic TOPIC, or TOPIC:0,1,2 for single partitions")
    scopes = [parse_scope(text) for text in topics]
    with opened(zk) as store:
        done = delete_them(store, _topics(store, brokers), group, scopes)
    failed = [each for each in done if each.error is not None]
    if failed:
        report("Encounter some partition level error, see the follow-up details:")
    elif output != JSON:
        click.echo(f"Request succeed for deleting offsets with topic {', '.join(topics)} group {group}")
    print_rows(DELETED, [_deleted_row(each, output) for each in done], output)
    if any(each.error == GROUP_SUBSCRIBED_TO_TOPIC for each in failed):
        click.echo(printable(f"stop the consumers of group {group} that subscribe to it first"), err=True)
    return FAILED if failed else 0


def _deleted_row(each: Deletion, output: str) -> tuple[object, ...]:
    status = f"Error: {each.error}" if each.error is not None else "Successful"
    unknown = None if output == JSON else "Not Provided"
    return each.topic, unknown if each.partition is None else each.partition, status
