"""`zk-coordinator segments`: the sealed segments of a group, and whether they are whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click

from coordinator.groups import Reading, existing_group
from coordinator.segments import (
    DAMAGED,
    LEFT_OVER,
    Finding,
    ListedSegment,
    positions,
    read_segments,
    znode_findings,
)
from coordinator.zk.paths import GroupPaths
from coordinator.zk.sealed import Segment

from .common import opened, output_option, print_rows, report, zk_option
from .groups import tell_problems
from .queries import shown_time

LIST = ("SEGMENT", "CZXID", "SEALED-AT", "CONSUMER", "INCARNATION", "ROWS", "BYTES", "RANGES", "FILE", "ERROR")
FINDINGS = ("SEVERITY", "KIND", "SEGMENT", "FILE", "PROBLEM")
UNHEALTHY = 5
MOST_RANGES = 8


@click.group()
def segments() -> None:
    """The sealed segments that wait for a group's queries."""


@segments.command("list")
@click.argument("group")
@zk_option
@output_option
def list_(group: str, zk: str, output: str) -> None:
    """List the segments of GROUP in the order in which they were sealed, with the offsets in each."""
    with opened(zk) as store:
        reading = Reading(store)
        existing_group(reading, group)
        listed = read_segments(reading, GroupPaths(group))
    print_rows(LIST, [_row(item) for item in listed], output)


@segments.command()
@click.argument("group")
@click.option(
    "--segments-dir",
    default="",
    envvar="ZK_GROUP_SEGMENTS_DIR",
    show_envvar=True,
    help="Where this machine sees the segments folder, if not where the fetchers do.",
)
@zk_option
@output_option
def verify(group: str, segments_dir: str, zk: str, output: str) -> None:
    """Check every segment of GROUP: its znode, its file, its offsets, and that the ranges of a partition join.

    Reads all files. Lists what is damaged, and files that nothing names (left over: they only take room; a fetcher
    pool removes them by and by). Exits 5 when something is damaged, else 0. A flipped bit inside a value is not
    noticed: segments have no checksum.
    """
    with opened(zk) as store:
        reading = Reading(store)
        # Where the group stands is read before the segments: what is sealed meanwhile is then in them.
        stands = positions(existing_group(reading, group))
        listed = read_segments(reading, GroupPaths(group))
        findings = [*znode_findings(listed, stands), *_file_findings(reading, group, listed, segments_dir)]
    print_rows(FINDINGS, [tuple(value or None for value in finding) for finding in findings], output)
    tell_problems(reading.problems)
    damaged = sum(finding.severity == DAMAGED for finding in findings)
    click.echo(f"{len(listed)} segments, {damaged} problems, {len(findings) - damaged} files left over", err=True)
    if damaged:
        sys.exit(UNHEALTHY)


def _file_findings(
    reading: Reading, group: str, listed: Sequence[ListedSegment], segments_dir: str
) -> Iterator[Finding]:
    """What is wrong with files, but for segments that were collected while it was looked."""
    from consumer.segment_check import SegmentCheck  # loads pyarrow, which nothing else here needs

    check = SegmentCheck(segments_dir)
    found = []
    for item in listed:
        problem = check.problem(item.segment) if item.segment else None
        if problem and item.segment:
            found.append(Finding(DAMAGED, problem.kind, item.name, item.segment.file, problem.text))
    if found:
        left = {item.name for item in read_segments(reading, GroupPaths(group), listed)}
        yield from (finding for finding in found if finding.segment in left)
    known = [item.segment for item in listed if item.segment]
    if not known and not segments_dir:
        report("no segment tells where the files are: give --segments-dir to look for files that nothing names")
    try:
        files = sorted(check.files(group, known))
    except OSError as error:
        report(f"files that nothing names were not looked for: {error}")
        return
    yield from _left_over(reading, group, listed, files)


def _left_over(
    reading: Reading, group: str, listed: Sequence[ListedSegment], files: Sequence[str]
) -> Iterator[Finding]:
    from consumer.segment_check import may_seal

    may = may_seal(reading.store, group, files)
    now = read_segments(reading, GroupPaths(group), listed)
    if any(item.segment is None for item in now):
        report("files that nothing names were not looked for: a segment's znode cannot be read, and may name them")
        return
    named = {item.segment.file for item in (*listed, *now) if item.segment}
    for file in files:
        if file in named:
            continue
        if may[file]:
            yield Finding(
                LEFT_OVER, "not sealed yet", "", file, "no segment names it; its fetcher lives and may seal it"
            )
        else:
            yield Finding(LEFT_OVER, "orphan", "", file, "no segment names it, and none ever will")


def _row(item: ListedSegment) -> tuple[object, ...]:
    segment = item.segment
    return (
        item.name,
        item.czxid,
        shown_time(item.sealed_ms),
        segment.consumer if segment else None,
        segment.incarnation[:8] if segment else None,
        segment.rows if segment else None,
        segment.size if segment else None,
        _ranges(segment) if segment else None,
        segment.file if segment else None,
        item.problem or None,
    )


def _ranges(segment: Segment) -> str:
    found = [f"{part.topic}-{part.partition}:{part.first}-{part.next - 1}" for part in sorted(segment.ranges)]
    return " ".join(found[:MOST_RANGES]) + (f" and {len(found) - MOST_RANGES} more" if len(found) > MOST_RANGES else "")
