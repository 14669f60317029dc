"""`zk-coordinator queries`: the Spark queries that read a group's segments, and their backlog."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from coordinator.admin.groups import Reading, existing_group, group_names
from coordinator.admin.queries import ACTIVE, Removal, ShownQuery, read_queries, removal, remove_query
from coordinator.zk.process.cli import JSON, opened, output_option, print_rows, zk_option
from coordinator.zk.runtime import ThreadRuntime

from .groups import report_problems

LIST = ("GROUP", "QUERY", "STATE", "RUN", "FINISHED", "SEGMENTS", "BYTES", "LAG", "LAST-SEEN", "PAUSED")
REMOVE = ("GROUP", "QUERY", "STATE", "SEGMENTS-FREED", "BYTES-FREED", "REMOVED")


@click.group()
def queries() -> None:
    """The Spark queries that read the groups' sealed segments."""


@queries.command("list")
@click.argument("group", required=False)
@zk_option
@output_option
def list_(group: str | None, zk: str, output: str) -> None:
    """List the queries of all groups, or of GROUP, with the segments that each holds back as unfinished.

    SEGMENTS, BYTES and LAG (records) count what is sealed and not finished by the query. STATE is active, silent (no
    update for three minutes), expired (it holds nothing back any more) or unreadable. A group with segments but without
    a query has a row without a query. PAUSED, below the table, is the reason why a group's fetchers are paused.
    """
    with opened(zk) as store:
        reading = Reading(store)
        if group is not None:
            existing_group(reading, group)
        names = group_names(reading) if group is None else [group]
        now_ms = ThreadRuntime().wall_ms()
        found = [shown for name in names for shown in read_queries(reading, name, now_ms)]
    _print(found, output)
    report_problems(reading.problems)


@queries.command()
@click.argument("group")
@click.argument("query")
@click.option("--execute", is_flag=True, help="Remove it; without it, only show the effect.")
@zk_option
@output_option
def remove(group: str, query: str, execute: bool, zk: str, output: str) -> None:
    """Remove QUERY of GROUP, so that it holds back no segments. A dry run without --execute.

    Stop the query first: a running one fails with its next batch. Restarted from its checkpoint, it continues if its
    segments still exist, and fails if they were collected.
    """
    with opened(zk) as store:
        found = removal(Reading(store), group, query, ThreadRuntime().wall_ms())
        if execute:
            remove_query(store, group, query)
    shown = found.shown
    print_rows(REMOVE, [(group, query, shown.state, found.segments, found.size, execute)], output)
    _report_effect(found, execute)


def _print(found: Sequence[ShownQuery], output: str) -> None:
    """In JSON the reason of a pause is in each row of its group; in a table, where it is long, below the rows."""
    rows = [_row(shown) for shown in found]
    if output == JSON:
        print_rows(LIST, rows, output)
        return
    print_rows(LIST[:-1], [row[:-1] for row in rows], output)
    paused = {shown.group: shown.paused for shown in found if shown.paused}
    if paused:
        click.echo("\nFetchers are paused:")
        print_rows(("GROUP", "REASON"), sorted(paused.items()), output)


def _report_effect(found: Removal, execute: bool) -> None:
    will = "fails" if execute else "would fail"
    if found.shown.state == ACTIVE:
        report_note(f"query {found.shown.query} is active: if it runs, it {will} with its next batch")
    if found.is_last:
        report_note(f"no other query reads group {found.shown.group}: no segments are collected until one does")
    if not execute:
        report_note("nothing was removed: this was a dry run, remove with --execute")


def report_note(text: str) -> None:
    """Print a note on stderr."""
    click.echo(text, err=True)


def _row(shown: ShownQuery) -> tuple[object, ...]:
    return (
        shown.group,
        shown.query,
        shown.state,
        shown.run[:8] if shown.run else None,
        shown.finished,
        shown.segments,
        shown.size,
        shown.rows,
        shown_time(shown.seen_ms),
        shown.paused,
    )


def shown_time(time_ms: int | None) -> str | None:
    """A time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat() if time_ms is not None else None
    except (ValueError, OverflowError, OSError):
        return None
