"""`zk-coordinator rebalance`: request a turn of a group."""

from __future__ import annotations

import click

from coordinator.admin import control
from coordinator.admin.control import GroupStanding
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.operator_requests import Pause

from .common import (
    JSON,
    Seconds,
    opened,
    operator,
    output_option,
    print_json,
    print_rows,
    printable,
    reason_option,
    zk_option,
)

COLUMNS = ("", "STATE", "GENERATION", "REASON")


@click.command()
@click.argument("group")
@reason_option
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(0.1, 3600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the turn.",
)
@zk_option
@output_option
def rebalance(group: str, reason: str | None, timeout_s: float, zk: str, output: str) -> None:
    """Request a turn of GROUP, and wait until it has been taken.

    The turn reads everything again and makes the changes that are needed, if any. A retry that waits after a failure is
    taken at once. The request survives a failover of the coordinator.
    """
    runtime = ThreadRuntime()
    with opened(zk) as store:
        before = control.standing(store, group)
        is_new, by = control.request_turn(store, group, operator(), runtime.wall_ms(), reason)
        if not is_new:
            click.echo(printable(f"a turn was already requested by {by}: waiting for that one"), err=True)
        if not control.await_turn(store, runtime, group, timeout_s):
            raise CoordinatorError(
                _untaken(control.standing(store, group), control.read_paused(store).of(group), group, timeout_s)
            )
        after = control.standing(store, group)
    _print(group, before, after, output)


def _untaken(now: GroupStanding, pause: Pause | None, group: str, timeout_s: float) -> str:
    why = f" ({now.reason})" if now.reason else ""
    paused = f", and paused by {pause.by or 'an operator'} meanwhile" if pause else ""
    return (
        f"no turn of group '{group}' has succeeded within {timeout_s:g} s: it is {now.state}{why}{paused}; "
        "the request is kept for the next successful turn (see `status --check`)"
    )


def _print(group: str, before: GroupStanding, after: GroupStanding, output: str) -> None:
    has_changed = (before.state, before.generation) != (after.state, after.generation)
    if output == JSON:
        rows = (("before", before), ("after", after))
        found = {when: {"state": s.state, "generation": s.generation, "reason": s.reason} for when, s in rows}
        print_json({"group": group, **found, "changed": has_changed})
        return
    print_rows(
        COLUMNS, [(w, s.state, s.generation, s.reason) for w, s in (("before", before), ("after", after))], output
    )
    if not has_changed:
        click.echo("a turn was taken: no changes were needed")
