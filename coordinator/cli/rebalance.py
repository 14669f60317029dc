"""`zk-coordinator rebalance`: ask for a turn of a group."""

from __future__ import annotations

import click

from coordinator import operate
from coordinator.operate import Standing
from coordinator.zk.asked import Pause
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import ThreadRuntime

from .common import JSON, opened, operator, output_option, print_json, print_rows, printable, reason_option, zk_option

COLUMNS = ("", "STATE", "GENERATION", "REASON")


@click.command()
@click.argument("group")
@reason_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=30.0,
    show_default=True,
    help="How many seconds to wait for the turn.",
)
@zk_option
@output_option
def rebalance(group: str, reason: str | None, timeout_s: float, zk: str, output: str) -> None:
    """Ask for a turn of GROUP, and wait until it has been taken.

    The turn sees everything anew and does what it finds to do; where nothing has to change, nothing does. A retry that
    waits after a failure is taken at once. The request outlives a coordinator that dies half-way.
    """
    runtime = ThreadRuntime()
    with opened(zk) as store:
        before = operate.standing(store, group)
        is_new, by = operate.request_turn(store, group, operator(), runtime.wall_ms(), reason)
        if not is_new:
            click.echo(printable(f"a turn was already requested by {by}: waiting for that one"), err=True)
        if not operate.await_turn(store, runtime, group, timeout_s):
            raise CoordinatorError(
                _untaken(operate.standing(store, group), operate.read_paused(store).of(group), group, timeout_s)
            )
        after = operate.standing(store, group)
    _print(group, before, after, output)


def _untaken(now: Standing, pause: Pause | None, group: str, timeout_s: float) -> str:
    why = f" ({now.reason})" if now.reason else ""
    paused = f", and paused by {pause.by or 'somebody'} meanwhile" if pause else ""
    return (
        f"no turn of group '{group}' has succeeded within {timeout_s:g} s: it is {now.state}{why}{paused}; "
        "the request stands, and is answered by the first turn that does (see `status --check`)"
    )


def _print(group: str, before: Standing, after: Standing, output: str) -> None:
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
        click.echo("a turn was taken: nothing had to change")
