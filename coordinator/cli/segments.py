"""`zk-coordinator segments` and `queries`: the sealed segments of a group, and the Spark queries that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import click

from zk_group.coordinator.admin import segments as admin
from zk_group.coordinator.admin.groups import Reading, existing_group
from zk_group.coordinator.zk.process.cli import env_option, row_objects
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.values import first_names, shown
from zk_group.coordinator.zk.znodes.paths import GROUPS, GroupPaths
from zk_group.coordinator.zk.znodes.segments import Segment

from .groups import notes_of
from .watching import UNHEALTHY, Shot, error_note, print_below, printed

LIST = ("SEGMENT", "CZXID", "SEALED-AT", "CONSUMER", "INCARNATION", "ROWS", "BYTES", "RANGES", "FILE", "ERROR")
QUERIES = ("GROUP", "QUERY", "STATE", "RUN", "FINISHED", "SEGMENTS", "BYTES", "LAG", "LAST-SEEN", "PAUSED")
REMOVED = ("GROUP", "QUERY", "STATE", "SEGMENTS-FREED", "BYTES-FREED", "REMOVED")
FINDINGS = ("SEVERITY", "KIND", "SEGMENT", "FILE", "PROBLEM")
MOST_RANGES = 8
UNCHECKED = 1
"""Exit code of an incomplete check."""


@click.group()
def segments() -> None:
    """The sealed segments of a group's backlog."""


@segments.command("list")
@click.argument("group")
@printed()
def list_(reading: Reading, group: str) -> Shot:
    """List the segments of GROUP in the order in which they were sealed, with the offsets in each."""
    existing_group(reading, group)
    return Shot(LIST, [_row(item) for item in admin.read_segments(reading, GroupPaths(group))])


@segments.command()
@click.argument("group")
@env_option(
    "--segments-dir",
    default="",
    help="The segments folder on this host, if not as on the fetchers' hosts, or its URL (s3://...).",
)
@printed()
def verify(reading: Reading, group: str, segments_dir: str) -> Shot:
    """Check every segment of GROUP: its znode, its file, its offsets, and that the ranges of a partition join.

    Reads all files, and checks their checksums; says how many files have none, as those of an earlier release. Lists
    damaged segments, and files without a segment (left over: they only take space; a fetcher pool removes them
    eventually). Exits 5 when a segment is damaged, 1 when some segments, or files without one, were not checked, else
    0.
    """
    # The group's offsets are read before the segments, which then contain concurrent seals.
    offsets = admin.positions(existing_group(reading, group))
    listed = admin.read_segments(reading, GroupPaths(group))
    unchecked: list[str] = []
    files = _file_findings(reading, group, listed, segments_dir, unchecked)
    findings = [*admin.znode_findings(listed, offsets), *files]
    damaged = sum(finding.severity == admin.DAMAGED for finding in findings)
    summary = f"{len(listed)} segments, {damaged} problems, {len(findings) - damaged} files left over"
    notes = [*notes_of(reading), summary, *map(error_note, unchecked)]
    rows = [tuple(value or None for value in finding) for finding in findings]
    return Shot(FINDINGS, rows, notes, code=UNHEALTHY if damaged else UNCHECKED if unchecked else 0)


def _file_findings(
    reading: Reading, group: str, listed: Sequence[admin.ListedSegment], segments_dir: str, unchecked: list[str]
) -> Iterator[admin.SegmentFinding]:
    """The findings in files.

    :param unchecked: gets the reasons for which segments, or files without one, were not checked.
    """
    from zk_group.consumer.sealing.segment_check import SegmentCheck, may_seal  # loads pyarrow, needed only here

    check = SegmentCheck(segments_dir)
    readable = {item.name: item.segment for item in listed if item.segment}
    problems = {name: problem for name, segment in readable.items() if (problem := check.problem(segment))}
    if check.without_checksums:
        click.echo(f"{check.without_checksums} segments have no checksums: an earlier release sealed them", err=True)
    if check.unopened:
        count, first = check.unopened.total(), shown(min(check.unopened))
        unchecked.append(f"{count} segments were not checked: znodes alone name {first}: give --segments-dir")
    if problems:
        remaining = {item.name for item in admin.read_segments(reading, GroupPaths(group), listed)}
        yield from admin.file_findings(listed, problems, remaining)
    known = list(readable.values())
    if not known and not segments_dir:
        unchecked.append("no segment names the folder of the files: give --segments-dir to check it")
        return
    try:
        files = sorted(check.files(reading.store, group, known))
    except OSError as error:
        unchecked.append(f"files without a segment were not checked: {error}")
        return
    unchecked += [f"files without a segment were not checked: {reason}" for reason in check.foreign]
    may = may_seal(reading.store, group, files)
    unnamed = admin.unnamed_findings(files, listed, admin.read_segments(reading, GroupPaths(group), listed), may)
    if unnamed is None:
        unchecked.append("files without a segment were not checked: an unreadable segment znode may name them")
    yield from unnamed or ()


def _row(item: admin.ListedSegment) -> tuple[object, ...]:
    about: tuple[object, ...] = (None,) * 6
    if (segment := item.segment) is not None:
        life = segment.incarnation[:8]
        about = (segment.consumer, life, segment.rows, segment.size, _ranges(segment), segment.file)
    return (item.name, item.czxid, shown_time(item.sealed_ms), *about, item.problem or None)


def _ranges(segment: Segment) -> str:
    ranges = [f"{part.topic}-{part.partition}:{part.first}-{part.next - 1}" for part in sorted(segment.ranges)]
    return first_names(ranges, MOST_RANGES, " ")


# ---- queries


@click.group()
def queries() -> None:
    """The Spark queries that read the groups' sealed segments."""


@queries.command("list")
@click.argument("group", required=False)
@printed()
def list_queries(reading: Reading, group: str | None) -> Shot:
    """List the queries of all groups, or of GROUP, with the segments that each holds back as unfinished.

    SEGMENTS, BYTES and LAG (records) count what is sealed and not finished by the query. STATE is active, silent (no
    update for three minutes), expired (it holds nothing back any more) or unreadable. A group with segments but without
    a query has a row without a query. PAUSED, below the table, is the reason why a group's fetchers are paused.
    """
    if group is not None:
        existing_group(reading, group)
    names = reading.names(GROUPS) if group is None else [group]
    now_ms = ThreadRuntime().wall_ms()
    found = [shown for name in names for shown in admin.read_queries(reading, name, now_ms)]
    # The reason of a pause is long: in a table it is below the rows.
    rows = [_query_row(shown) for shown in found]
    paused = {shown.group: shown.paused for shown in found if shown.paused}
    below = partial(print_below, "Fetchers are paused", ("GROUP", "REASON"), sorted(paused.items()))
    return Shot(QUERIES[:-1], [row[:-1] for row in rows], notes_of(reading), row_objects(QUERIES, rows), below)


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
    found, count, size, is_last = admin.removal(reading, group, query, ThreadRuntime().wall_ms())
    if execute:
        admin.remove_query(reading.store, group, query)
    notes = []
    if found.state == admin.ACTIVE:
        will = "fails" if execute else "would fail"
        notes.append(f"query {query} is active: if it runs, it {will} with its next batch")
    if is_last:
        notes.append(f"no other query reads group {group}: no segments are collected until one does")
    if not execute:
        notes.append("nothing was removed: this was a dry run, remove with --execute")
    return Shot(REMOVED, [(group, query, found.state, count, size, execute)], notes)


def _query_row(shown: admin.ShownQuery) -> tuple[object, ...]:
    run = shown.run[:8] if shown.run else None
    sums = (shown.segments, shown.size, shown.rows)
    return (shown.group, shown.query, shown.state, run, shown.finished, *sums, shown_time(shown.seen_ms), shown.paused)


def shown_time(time_ms: int | None) -> str | None:
    """A time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(time_ms // 1000, UTC).isoformat() if time_ms is not None else None
    except (ValueError, OverflowError, OSError):
        return None
