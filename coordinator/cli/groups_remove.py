"""`zk-coordinator groups remove-members`: take the seats of static members away."""

from __future__ import annotations

import click

from coordinator import operate
from coordinator.groups import Reading, checked_group
from coordinator.seats import remove_seats, seats_of
from coordinator.zk.errors import CoordinatorError, UsageError
from coordinator.zk.runtime import ThreadRuntime

from .common import opened, operator, output_option, print_rows, reason_option, zk_option

COLUMNS = ("GROUP", "GROUP-INSTANCE-ID", "STATUS")


@click.command("remove-members")
@click.argument("group")
@click.argument("instances", metavar="INSTANCE-ID...", nargs=-1)
@click.option("--all-members", is_flag=True, help="Every static member of GROUP.")
@reason_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=30.0,
    show_default=True,
    help="How many seconds to wait for the coordinator's turn.",
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
    """Take the seats of static members of GROUP away, by their group_instance_id.

    Their partitions go to the others: at once where nobody is on the seat, else when the lease of who is has run out.
    A consumer that still runs registers again by itself, so stop it first. Members without an instance id have no
    seat: they are gone when they stop.
    """
    if bool(instances) == all_members:
        raise UsageError("name the members by their group_instance_id, or give --all-members")
    runtime = ThreadRuntime()
    with opened(zk) as store:
        checked_group(Reading(store), group)
        operate.checked_request(store, group, reason)  # before anything is marked
        chosen = tuple(dict.fromkeys(instances)) or tuple(seats_of(store, group))
        remove_seats(store, group, chosen, reason or f"by {operator()}")
        operate.request_turn(store, group, operator(), runtime.wall_ms(), reason)
        if not operate.await_turn(store, runtime, group, timeout_s):
            raise CoordinatorError(
                f"no turn of group '{group}' has succeeded within {timeout_s:g} s: the seats are marked as removed, "
                "and the first turn that does carries it out (see `status --check`)"
            )
    print_rows(COLUMNS, [(group, instance, "Removed") for instance in chosen], output)
