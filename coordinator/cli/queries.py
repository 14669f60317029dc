"""`zk-coordinator queries`: the Spark queries that read a group's segments, and their backlog."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import click

from coordinator.admin.groups import Reading, existing_group
from coordinator.admin.queries import ACTIVE, ShownQuery, read_queries, removal, remove_query
from coordinator.zk.process.cli import row_objects
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.paths import GROUPS

from .groups import notes_of
from .watching import Shot, print_below, printed

LIST = ("GROUP", "QUERY", "STATE", "RUN", "FINISHED", "SEGMENTS", "BYTES", "LAG", "LAST-SEEN", "PAUSED")
REMOVE = ("GROUP", "QUERY", "STATE", "SEGMENTS-FREED", "BYTES-FREED", "REMOVED")


@click.group()
def queries() -> None:
    """The Spark queries that read the groups' sealed segments."""


@queries.command("list")
@click.argument("group", required=False)
@printed()
def list_(reading: Reading, group: str | None) -> Shot:
    """List the queries of all groups, or of GROUP, with the segments that each holds back as unfinished.

    SEGMENTS, BYTES and LAG (records) count what is sealed and not finished by the query. STATE is active, silent (no
    update for three minutes), expired (it holds nothing back any more) or unreadable. A group with segments but without
    a query has a row without a query. PAUSED, below the table, is the reason why a group's fetchers are paused.
    """
    if group is not None:
        existing_group(reading, group)
    names = reading.names(GROUPS) if group is None else [group]
    now_ms = ThreadRuntime().wall_ms()
    found = [shown for name in names for shown in read_queries(reading, name, now_ms)]
    # The reason of a pause is long: in a table it is below the rows.
    rows = [_row(shown) for shown in found]
    paused = {shown.group: shown.paused for shown in found if shown.paused}
    below = partial(print_below, "Fetchers are paused", ("GROUP", "REASON"), sorted(paused.items()))
    return Shot(LIST[:-1], [row[:-1] for row in rows], notes_of(reading), row_objects(LIST, rows), below)


@queries.command()
@click.argument("group")
@click.argument("query")
@click.option("--execute", is_flag=True, help="Remove it; without it, only show the effect.")
@printed()
def remove(reading: Reading, group: str, query: str, execute: bool) -> Shot:
    """Remove QUERY of GROUP, so that it holds back no segments. A dry run without --execute.

    Stop the query first: a running one fails with its next batch. Restarted from its checkpoint, it continues if its
    segments still exist, and fails if they were collected.
    """
    found = removal(reading, group, query, ThreadRuntime().wall_ms())
    if execute:
        remove_query(reading.store, group, query)
    notes = []
    if found.shown.state == ACTIVE:
        will = "fails" if execute else "would fail"
        notes.append(f"query {query} is active: if it runs, it {will} with its next batch")
    if found.is_last:
        notes.append(f"no other query reads group {group}: no segments are collected until one does")
    if not execute:
        notes.append("nothing was removed: this was a dry run, remove with --execute")
    return Shot(REMOVE, [(group, query, found.shown.state, found.segments, found.size, execute)], notes)


def _row(shown: ShownQuery) -> tuple[object, ...]:
    run = shown.run[:8] if shown.run else None
    sums = (shown.segments, shown.size, shown.rows)
    return (shown.group, shown.query, shown.state, run, shown.finished, *sums, shown_time(shown.seen_ms), shown.paused)


def shown_time(time_ms: int | None) -> str | None:
    """A time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat() if time_ms is not None else None
    except (ValueError, OverflowError, OSError):
        return None
