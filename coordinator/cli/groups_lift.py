"""`zk-coordinator groups lift-mark`: end the wait for an evicted member's lease."""

from __future__ import annotations

import click

from coordinator.admin.lift_mark import Lift, marks_of
from coordinator.admin.lift_mark import lift as lift_it
from coordinator.zk.errors import UsageError
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.partitions import PartitionSet, range_texts

from .common import opened, operator, output_option, print_rows, reason_option, zk_option

COLUMNS = ("GROUP", "CONSUMER", "INCARNATION", "LEASE-MS", "PARTITIONS", "LIFTED")
RISK = (
    "a process of this incarnation may still fetch these partitions until its lease is over: their next owner may "
    "process the same records at the same time. Lift the mark only when that process has ended."
)
DRY_RUN = "WARN: No mark is lifted as the --execute option is missing. Give --dry-run to suppress this warning."


@click.command("lift-mark")
@click.argument("group")
@click.argument("consumer")
@click.option("--incarnation", default="", help="Only the mark of this incarnation.")
@click.option("--dry-run", is_flag=True, help="Only show the marks (the default).")
@click.option("--execute", is_flag=True, help="Lift them.")
@reason_option
@zk_option
@output_option
def lift_mark(
    group: str, consumer: str, incarnation: str, dry_run: bool, execute: bool, reason: str | None, zk: str, output: str
) -> None:
    """Show, or with --execute lift, the marks of CONSUMER in GROUP, whose partitions wait for its lease.

    The partitions are then reassigned at once. A process of CONSUMER that still runs may fetch them until its lease is
    over, so stop it first. What it has fetched can neither be committed nor sealed.
    """
    if dry_run and execute:
        raise UsageError("give --dry-run or --execute, not both")
    asked = Lift(group, consumer, incarnation, operator(), reason)
    with opened(zk) as store:
        marks = lift_it(store, ThreadRuntime(), asked) if execute else marks_of(store, asked)
    if not dry_run and not execute:
        click.echo(DRY_RUN, err=True)
    click.echo(f"Warn: {RISK}", err=True)
    rows = [(group, mark.consumer, mark.incarnation, mark.lease_ms, _shown(mark.partitions), execute) for mark in marks]
    print_rows(COLUMNS, rows, output)


def _shown(partitions: PartitionSet) -> str:
    return " ".join(f"{topic}:{ranges}" for topic, ranges in range_texts(partitions).items())
