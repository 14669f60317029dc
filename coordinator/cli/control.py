"""`zk-coordinator pause`, `resume`, `resign` and `rebalance`: an operator's requests to the coordinator."""

from __future__ import annotations

import click

from coordinator.admin import control
from coordinator.admin.control import GroupStanding
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.process.cli import JSON, opened, output_option, print_json, print_rows, printable, zk_option
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.operator_requests import Pause

from .common import operator, print_paused, reason_option, timeout_option

STANDING = ("", "STATE", "GENERATION", "REASON")


@click.command()
@click.argument("group", required=False)
@reason_option
@zk_option
@output_option
def pause(group: str | None, reason: str | None, zk: str, output: str) -> None:
    """Suspend the turns of GROUP, or of all groups, until `resume`; prints the pauses.

    Meanwhile no command is sent or withdrawn, no incarnation ended and no state written. Consumers continue with their
    partitions: they acknowledge, fetch, seal and commit. A turn in progress is finished.
    """
    with opened(zk) as store:
        paused = control.pause(store, group, operator(), ThreadRuntime().wall_ms(), reason)
    print_paused(paused, output)


@click.command()
@click.argument("group", required=False)
@zk_option
@output_option
def resume(group: str | None, zk: str, output: str) -> None:
    """Remove the pause of GROUP, or all pauses; prints the remaining ones.

    Every group that was paused gets a turn, which applies all changes made meanwhile.
    """
    with opened(zk) as store:
        before, paused = control.resume(store, group)
    if not before:
        click.echo("no group was paused", err=True)
    elif group is None:
        click.echo("all pauses are removed", err=True)
    elif group not in before.groups:
        click.echo(f"group '{group}' was not paused", err=True)
    print_paused(paused, output)


@click.command()
@click.option("--node", help="Only if this node is elected.")
@timeout_option("next coordinator")
@zk_option
@output_option
def resign(node: str | None, timeout_s: float, zk: str, output: str) -> None:
    """Depose the elected node, so that it resigns, and show the next one.

    Its term is over when its znode is removed, whether or not its process lives. One that lives resigns, and stands for
    election again after the others: with one node, the same is elected again.
    """
    runtime = ThreadRuntime()
    with opened(zk) as store:
        before, epoch = control.resign(store, node)
        started = runtime.monotonic()
        after = control.await_election(store, runtime, epoch, timeout_s)
        took_ms = round(1000 * (runtime.monotonic() - started))
    if after is None:
        raise CoordinatorError(
            f"node {before.node} is deposed (epoch {before.epoch}), but no node was elected within {timeout_s:g} s: "
            "neither it nor another node runs, or none reaches ZooKeeper (start one: `zk-coordinator run`)"
        )
    if output == JSON:
        records = (("deposed", before), ("elected", after))
        found = {what: {"node": r.node, "host": r.host, "epoch": r.epoch} for what, r in records}
        print_json({**found, "took_ms": took_ms})
        return
    click.echo(printable(f"DEPOSED  {before.node} ({before.host}), epoch {before.epoch}"))
    click.echo(printable(f"ELECTED  {after.node} ({after.host}), epoch {after.epoch}, after {took_ms} ms"))


@click.command()
@click.argument("group")
@reason_option
@timeout_option("turn")
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
        STANDING, [(w, s.state, s.generation, s.reason) for w, s in (("before", before), ("after", after))], output
    )
    if not has_changed:
        click.echo("a turn was taken: no changes were needed")
