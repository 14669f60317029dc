"""`zk-coordinator regions`: consistent regions, their checkpoints and resets."""

from __future__ import annotations

import click

from zk_group.coordinator.admin import regions as admin
from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.zk.znodes.paths import REGIONS
from zk_group.coordinator.zk.znodes.regions import ABORTED, CHECKPOINT, COMPLETED, RESET, Contribution, RegionRequest

from .groups import notes_of
from .segments import shown_time
from .watching import Shot, operator, printed, reason_option, watch_options

LIST = ("REGION", "STATE", "CHECKPOINT", "COMPLETED", "OPEN", "RESET", "GROUPS", "MEMBERS", "SINCE", "REASON")
HISTORY = ("REGION", "CHECKPOINT", "STATE", "TRIGGER", "BEGAN", "MS", "CONTRIBUTIONS", "PARTICIPANTS", "REASON")
MEMBERS = ("REGION", "CHECKPOINT", "CONTRIBUTION", "INCARNATION", "PARTITIONS", "STATES", "FILE", "DRAIN-MS")
REMOVED = ("REGION", "REMOVED", "GROUPS")
REQUESTED = ("REGION", "REQUESTED", "CHECKPOINT", "GROUPS", "MEMBERS", "EXECUTED")


@click.group()
def regions() -> None:
    """Consistent regions: groups that are reset to a checkpoint together."""


@regions.command("list")
@watch_options
@printed()
def list_(reading: Reading) -> Shot:
    """List the regions.

    CHECKPOINT is a region's current one, 0 for its initial state; OPEN the one in progress.
    """
    shown = [admin.read_region(reading, name, newest=0) for name in reading.names(REGIONS)]
    return Shot(LIST, [list_row(each) for each in shown], notes_of(reading))


@regions.command()
@click.argument("region")
@watch_options
@printed()
def describe(reading: Reading, region: str) -> Shot:
    """Show the contributions to the current checkpoint of REGION."""
    shown = admin.existing_region(reading, region)
    sequence = shown.region.sequence if shown.region is not None else 0
    given = admin.read_contributions(reading, region, sequence) if sequence else {}
    rows = [(region, sequence, name, *_given(one)) for name, one in given.items()]
    reason = shown.region.reason if shown.region is not None else None
    state = f"region {region} is {shown.state}" + (f": {reason}" if reason else "")
    return Shot(MEMBERS, rows, [state, *notes_of(reading)])


@regions.command()
@click.argument("region")
@watch_options
@printed()
def history(reading: Reading, region: str) -> Shot:
    """Show the kept checkpoints of REGION, oldest first. MS is from begin to end."""
    shown = admin.existing_region(reading, region)
    return Shot(HISTORY, [_history_row(region, each) for each in shown.checkpoints], notes_of(reading))


def _given(one: Contribution | None) -> tuple[object, ...]:
    if one is None:
        return (None,) * 5
    states, file = (len(one.states), None) if one.file is None else (None, one.file.name)
    return one.incarnation[:8], len(one.offsets), states, file, one.drain_ms


def _history_row(region: str, shown: admin.ShownCheckpoint) -> tuple[object, ...]:
    begun, end = shown.checkpoint, shown.end
    took_ms = end.duration_ms if end is not None and shown.state in (COMPLETED, ABORTED) else None
    trigger, began = (begun.trigger, shown_time(begun.since_ms)) if begun is not None else (None, None)
    participants = sum(map(len, begun.participants.values())) if begun is not None else None
    reason = (end.reason or None) if end is not None else None
    contributions = len(shown.contributions)
    return (region, shown.sequence, shown.state, trigger, began, took_ms, contributions, participants, reason)


@regions.command()
@click.argument("region")
@printed()
def checkpoint(reading: Reading, region: str) -> Shot:
    """Request a checkpoint of REGION now. It begins when every member has restored its state."""
    shown = admin.existing_region(reading, region)
    admin.request(reading.store, region, RegionRequest(CHECKPOINT, operator()))
    return Shot(REQUESTED, [_requested(shown, "checkpoint", None, executed=True)])


def _names_one_target(sequence: int | None, to_initial: bool, **others: object) -> None:
    if to_initial and sequence is not None:
        raise click.UsageError("give --to or --to-initial, not both")


@regions.command()
@click.argument("region")
@click.option("--to", "sequence", type=click.IntRange(min=1), help="The checkpoint to reset to; the last by default.")
@click.option("--to-initial", is_flag=True, help="Reset to the initial state, before the first record.")
@reason_option
@click.option("--execute", is_flag=True, help="Reset it; without it, only show the effect.")
@printed(check=_names_one_target)
def reset(
    reading: Reading, region: str, sequence: int | None, to_initial: bool, reason: str | None, execute: bool
) -> Shot:
    """Reset REGION to a checkpoint, all its groups together. A dry run without --execute.

    Later checkpoints are abandoned: no reset returns to them.
    """
    shown = admin.existing_region(reading, region)
    named = 0 if to_initial else sequence
    to = admin.checked_target(shown, named)
    if execute:
        # Unnamed, not the one just read: a checkpoint that completes meanwhile would be abandoned.
        admin.request(reading.store, region, RegionRequest(RESET, operator(), reason or "", named))
    notes = []
    later = [each.sequence for each in shown.checkpoints if each.state == COMPLETED and each.sequence > to]
    if named is not None and later:
        will = "are" if execute else "would be"
        notes.append(f"checkpoints after {to} {will} abandoned: {', '.join(map(str, later))}")
    if not execute:
        notes.append("nothing was reset: this was a dry run, reset with --execute")
    return Shot(REQUESTED, [_requested(shown, "reset", to, executed=execute)], notes)


@regions.command("remove-group")
@click.argument("region")
@click.argument("group")
@printed()
def remove_group_(reading: Reading, region: str, group: str) -> Shot:
    """Remove GROUP, which must have no members, from REGION.

    The group continues at the offsets of the region's current checkpoint, without the states of its members: in no
    region, or in the one that its next member names. A region without groups is removed, with its checkpoints.
    """
    admin.existing_region(reading, region)
    left = admin.remove_group(reading.store, region, group)
    notes = () if left else (f"region {region} has no group any more: the coordinator removes it",)
    return Shot(REMOVED, [(region, group, ",".join(left) or None)], notes)


def list_row(found: admin.ShownRegion) -> tuple[object, ...]:
    """A region's row in `regions list` and `status`."""
    region = found.region
    if region is None:
        return (found.name, found.state, *[None] * (len(LIST) - 2))
    cut_at, since = shown_time(found.cut_ms), shown_time(region.since_ms) if region.since_ms else None
    return (
        *(found.name, region.state, region.sequence, cut_at, region.open or None, region.reset),
        *(",".join(region.groups), sum(found.members.values()), since, region.reason),
    )


def _requested(found: admin.ShownRegion, what: str, to: int | None, executed: bool) -> tuple[object, ...]:
    groups = ",".join(found.region.groups) if found.region is not None else ""
    return found.name, what, to, groups, sum(found.members.values()), executed
