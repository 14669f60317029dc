"""`zk-coordinator groups remove-members`: remove the seats of static members."""

from __future__ import annotations

import click

from coordinator.admin.remove_members import SeatRemoval
from coordinator.admin.remove_members import remove_members as remove_them
from coordinator.zk.errors import UsageError
from coordinator.zk.runtime import ThreadRuntime

from .common import Seconds, opened, operator, output_option, print_rows, reason_option, zk_option

COLUMNS = ("GROUP", "GROUP-INSTANCE-ID", "STATUS")


@click.command("remove-members")
@click.argument("group")
@click.argument("instances", metavar="INSTANCE-ID...", nargs=-1)
@click.option("--all-members", is_flag=True, help="All static members of GROUP.")
@reason_option
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(0.1, 3600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the coordinator's turn.",
)
@zk_option
@output_option
def remove_members(
    group: str,
    instances: tuple[str, ...],
    all_members: bool,
    reason: str | None,
    timeout_s: float,
    zk: str,
    output: str,
) -> None:
    """Remove the seats of static members of GROUP, by their group_instance_id.

    Their partitions are reassigned: at once when the member is away, else when its lease has expired. A consumer that
    still runs registers again by itself, so stop it first. Members without an instance id have no seat: they are
    removed when they stop.
    """
    if bool(instances) == all_members:
        raise UsageError("name the members by their group_instance_id, or give --all-members")
    asked = SeatRemoval(group, instances, operator(), reason, timeout_s)
    with opened(zk) as store:
        chosen = remove_them(store, ThreadRuntime(), asked)
    print_rows(COLUMNS, [(group, instance, "Removed") for instance in chosen], output)
