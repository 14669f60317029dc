"""`zk-coordinator groups create`, `remove-members` and `lift-mark`: who may be a member, seats, and eviction marks."""

from __future__ import annotations

import click

from coordinator.admin.acl_policy import create_group
from coordinator.admin.groups import Reading
from coordinator.admin.members import Lift, SeatRemoval, marks_of
from coordinator.admin.members import lift as lift_it
from coordinator.admin.members import remove_members as remove_them
from coordinator.zk.errors import UsageError
from coordinator.zk.process.cli import opened, zk_option
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.security.policy import checked_identities
from coordinator.zk.znodes.partitions import PartitionSet, range_texts

from .acl import checked_regions, members_option, regions_option
from .common import operator, reason_option, timeout_option
from .watching import Shot, printed

SEATS = ("GROUP", "GROUP-INSTANCE-ID", "STATUS")
MARKS = ("GROUP", "CONSUMER", "INCARNATION", "LEASE-MS", "PARTITIONS", "LIFTED")
RISK = (
    "a process of this incarnation may still fetch these partitions until its lease is over: their next owner may "
    "process the same records at the same time. Lift the mark only when that process has ended."
)
LIFTS_NOTHING = "WARN: No mark is lifted as the --execute option is missing. Give --dry-run to suppress this warning."


@click.command()
@click.argument("group")
@members_option
@regions_option
@zk_option
def create(group: str, members: tuple[str, ...], regions: tuple[str, ...], zk: str) -> None:
    """Create GROUP without members. In a secured chroot a group begins so; in an open one its first member makes it."""
    with opened(zk, make_chroot=True) as store:
        create_group(store, group, checked_identities("--members", members), checked_regions(regions))
    click.echo(f"Created group {group}.")


@click.command("remove-members")
@click.argument("group")
@click.argument("instances", metavar="INSTANCE-ID...", nargs=-1)
@click.option("--all-members", is_flag=True, help="All static members of GROUP.")
@reason_option
@timeout_option("coordinator's turn")
@printed()
def remove_members(
    reading: Reading, group: str, instances: tuple[str, ...], all_members: bool, reason: str | None, timeout_s: float
) -> Shot:
    """Remove the seats of static members of GROUP, by their group_instance_id.

    Their partitions are reassigned: at once when the member is away, else when its lease has expired. A consumer that
    still runs registers again by itself, so stop it first. Members without an instance id have no seat: they are
    removed when they stop.
    """
    if bool(instances) == all_members:
        raise UsageError("name the members by their group_instance_id, or give --all-members")
    asked = SeatRemoval(group, instances, operator(), reason, timeout_s)
    chosen = remove_them(reading.store, ThreadRuntime(), asked)
    return Shot(SEATS, [(group, instance, "Removed") for instance in chosen])


@click.command("lift-mark")
@click.argument("group")
@click.argument("consumer")
@click.option("--incarnation", default="", help="Only the mark of this incarnation.")
@click.option("--dry-run", is_flag=True, help="Only show the marks (the default).")
@click.option("--execute", is_flag=True, help="Lift them.")
@reason_option
@printed()
def lift_mark(
    reading: Reading, group: str, consumer: str, incarnation: str, dry_run: bool, execute: bool, reason: str | None
) -> Shot:
    """Show, or with --execute lift, the marks of CONSUMER in GROUP, whose partitions wait for its lease.

    The partitions are then reassigned at once. A process of CONSUMER that still runs may fetch them until its lease is
    over, so stop it first. What it has fetched can neither be committed nor sealed.
    """
    if dry_run and execute:
        raise UsageError("give --dry-run or --execute, not both")
    asked = Lift(group, consumer, incarnation, operator(), reason)
    marks = lift_it(reading.store, ThreadRuntime(), asked) if execute else marks_of(reading.store, asked)
    if not dry_run and not execute:
        click.echo(LIFTS_NOTHING, err=True)
    click.echo(f"Warn: {RISK}", err=True)
    rows = [(group, mark.consumer, mark.incarnation, mark.lease_ms, _shown(mark.partitions), execute) for mark in marks]
    return Shot(MARKS, rows)


def _shown(partitions: PartitionSet) -> str:
    return " ".join(f"{topic}:{ranges}" for topic, ranges in range_texts(partitions).items())
