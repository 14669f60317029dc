"""`zk-coordinator regions`: consistent regions, their checkpoints and resets."""

from __future__ import annotations

import click

from coordinator.regions.admin import (
    ShownRegion,
    checked_target,
    read_contributions,
    read_region,
    region_names,
    request,
)
from coordinator.zk.regions import CHECKPOINT, COMPLETED, RESET, RegionRequest

from .common import opened, operator, output_option, print_rows, reason_option, zk_option
from .queries import report_note, shown_time

LIST = ("REGION", "STATE", "CHECKPOINT", "RESET", "GROUPS", "MEMBERS", "SINCE", "REASON")
HISTORY = ("REGION", "CHECKPOINT", "STATE", "TRIGGER", "BEGAN", "MS", "CONTRIBUTIONS", "PARTICIPANTS", "REASON")
MEMBERS = ("REGION", "CHECKPOINT", "CONTRIBUTION", "INCARNATION", "PARTITIONS", "STATES", "FILE", "DRAIN-MS")
REQUESTED = ("REGION", "REQUESTED", "CHECKPOINT", "GROUPS", "MEMBERS", "EXECUTED")


@click.group()
def regions() -> None:
    """Consistent regions: groups that go back to a checkpoint together."""


@regions.command("list")
@zk_option
@output_option
def list_(zk: str, output: str) -> None:
    """List the regions. CHECKPOINT is the one that a region stands on, 0 for its initial state."""
    with opened(zk) as store:
        found = [read_region(store, name) for name in region_names(store)]
    print_rows(LIST, [_row(each) for each in found], output)


@regions.command()
@click.argument("region")
@zk_option
@output_option
def describe(region: str, zk: str, output: str) -> None:
    """Show who has contributed what to the checkpoint that REGION stands on."""
    with opened(zk) as store:
        found = read_region(store, region)
        sequence = found.region.sequence if found.region is not None else 0
        given = read_contributions(store, region, sequence) if sequence else {}
    rows = [
        (
            region,
            sequence,
            name,
            one.incarnation[:8] if one is not None else None,
            len(one.offsets) if one is not None else None,
            len(one.states) if one is not None and one.file is None else None,
            one.file.name if one is not None and one.file is not None else None,
            one.drain_ms if one is not None else None,
        )
        for name, one in given.items()
    ]
    print_rows(MEMBERS, rows, output)
    reason = found.region.reason if found.region is not None else None
    report_note(f"region {region} is {found.state}" + (f": {reason}" if reason else ""))


@regions.command()
@click.argument("region")
@zk_option
@output_option
def history(region: str, zk: str, output: str) -> None:
    """Show the checkpoints of REGION that are kept, the oldest first."""
    with opened(zk) as store:
        found = read_region(store, region)
    rows = [
        (
            region,
            each.sequence,
            each.state,
            each.checkpoint.trigger if each.checkpoint is not None else None,
            shown_time(each.checkpoint.since_ms) if each.checkpoint is not None else None,
            each.end.duration_ms if each.end is not None and each.state == COMPLETED else None,
            len(each.contributions),
            sum(map(len, each.checkpoint.participants.values())) if each.checkpoint is not None else None,
            each.end.reason or None if each.end is not None else None,
        )
        for each in found.checkpoints
    ]
    print_rows(HISTORY, rows, output)


@regions.command()
@click.argument("region")
@zk_option
@output_option
def checkpoint(region: str, zk: str, output: str) -> None:
    """Ask for a checkpoint of REGION now. It begins when every member has its state back."""
    with opened(zk) as store:
        found = read_region(store, region)
        request(store, region, RegionRequest(CHECKPOINT, operator()))
    print_rows(REQUESTED, [_requested(found, "checkpoint", None, executed=True)], output)


@regions.command()
@click.argument("region")
@click.option("--to", "sequence", type=click.IntRange(min=1), help="The checkpoint to go back to; the last by default.")
@click.option("--to-initial", is_flag=True, help="Go back to the initial state: nothing taken in.")
@reason_option
@click.option("--execute", is_flag=True, help="Do it; without this, only say what would come of it.")
@zk_option
@output_option
def reset(
    region: str, sequence: int | None, to_initial: bool, reason: str | None, execute: bool, zk: str, output: str
) -> None:
    """Take REGION back to a checkpoint, all its groups together. A dry run without --execute.

    Later checkpoints are abandoned: nobody goes forward to them again.
    """
    if to_initial and sequence is not None:
        raise click.UsageError("give --to or --to-initial, not both")
    with opened(zk) as store:
        found = read_region(store, region)
        to = checked_target(found, 0 if to_initial else sequence)
        if execute:
            request(store, region, RegionRequest(RESET, operator(), reason or "", to))
    print_rows(REQUESTED, [_requested(found, "reset", to, executed=execute)], output)
    later = [each.sequence for each in found.checkpoints if each.state == COMPLETED and each.sequence > to]
    if later:
        will = "are" if execute else "would be"
        report_note(f"checkpoints after {to} {will} abandoned: {', '.join(map(str, later))}")
    if not execute:
        report_note("nothing was reset: this was a dry run, reset with --execute")


def _row(found: ShownRegion) -> tuple[object, ...]:
    region = found.region
    if region is None:
        return (found.name, found.state, *[None] * 6)
    groups, members = ",".join(region.groups), sum(found.members.values())
    since = shown_time(region.since_ms) if region.since_ms else None
    return found.name, region.state, region.sequence, region.reset, groups, members, since, region.reason


def _requested(found: ShownRegion, what: str, to: int | None, executed: bool) -> tuple[object, ...]:
    groups = ",".join(found.region.groups) if found.region is not None else ""
    return found.name, what, to, groups, sum(found.members.values()), executed
