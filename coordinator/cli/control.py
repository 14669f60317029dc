"""`zk-coordinator pause`, `resume`, `resign` and `rebalance`: an operator's requests to the coordinator."""

from __future__ import annotations

from dataclasses import asdict

import click

from coordinator.admin import control
from coordinator.admin.groups import Reading
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.process.cli import printable
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.records import PausedRecord

from .watching import Shot, echo_paused, operator, printed, reason_option, timeout_option

STANDING = ("", "STATE", "GENERATION", "REASON")


@click.command()
@click.argument("group", required=False)
@reason_option
@printed()
def pause(reading: Reading, group: str | None, reason: str | None) -> Shot:
    """Suspend the turns of GROUP, or of all groups, until `resume`; prints the pauses.

    Meanwhile no command is sent or withdrawn, no incarnation ended and no state written. Consumers continue with their
    partitions: they acknowledge, fetch, seal and commit. A turn in progress is finished.
    """
    return _paused(control.pause(reading.store, group, operator(), ThreadRuntime().wall_ms(), reason))


@click.command()
@click.argument("group", required=False)
@printed()
def resume(reading: Reading, group: str | None) -> Shot:
    """Remove the pause of GROUP, or all pauses; prints the remaining ones.

    Every group that was paused gets a turn, which applies all changes made meanwhile.
    """
    before, paused = control.resume(reading.store, group)
    if not before:
        click.echo("no group was paused", err=True)
    elif group is None:
        click.echo("all pauses are removed", err=True)
    elif group not in before.groups:
        click.echo(f"group '{group}' was not paused", err=True)
    return _paused(paused)


@click.command()
@click.option("--node", help="Only if this node is elected.")
@timeout_option("next coordinator")
@printed()
def resign(reading: Reading, node: str | None, timeout_s: float) -> Shot:
    """Depose the elected node, so that it resigns, and show the next one.

    Its term is over when its znode is removed, whether or not its process lives. One that lives resigns, and stands for
    election again after the others: with one node, the same is elected again.
    """
    runtime = ThreadRuntime()
    before, epoch = control.resign(reading.store, node)
    started = runtime.monotonic()
    after = control.await_election(reading.store, runtime, epoch, timeout_s)
    took_ms = round(1000 * (runtime.monotonic() - started))
    if after is None:
        raise CoordinatorError(
            f"node {before.node} is deposed (epoch {before.epoch}), but no node was elected within {timeout_s:g} s: "
            "neither it nor another node runs, or none reaches ZooKeeper (start one: `zk-coordinator run`)"
        )
    lines = (
        f"DEPOSED  {before.node} ({before.host}), epoch {before.epoch}",
        f"ELECTED  {after.node} ({after.host}), epoch {after.epoch}, after {took_ms} ms",
    )
    document = {"deposed": asdict(before), "elected": asdict(after), "took_ms": took_ms}
    return Shot(document=document, text=lambda: click.echo("\n".join(map(printable, lines))))


@click.command()
@click.argument("group")
@reason_option
@timeout_option("turn")
@printed()
def rebalance(reading: Reading, group: str, reason: str | None, timeout_s: float) -> Shot:
    """Request a turn of GROUP, and wait until it has been taken.

    The turn reads everything again and makes the changes that are needed, if any. A retry that waits after a failure is
    taken at once. The request survives a failover of the coordinator.
    """
    store, runtime = reading.store, ThreadRuntime()
    before = control.standing(store, group)
    is_new, by = control.request_turn(store, group, operator(), runtime.wall_ms(), reason)
    if not is_new:
        click.echo(printable(f"a turn was already requested by {by}: waiting for that one"), err=True)
    if not control.await_turn(store, runtime, group, timeout_s):
        now, pause = control.standing(store, group), control.read_paused(store).of(group)
        why = f" ({now.reason})" if now.reason else ""
        paused = f", and paused by {pause.by or 'an operator'} meanwhile" if pause else ""
        raise CoordinatorError(
            f"no turn of group '{group}' has succeeded within {timeout_s:g} s: it is {now.state}{why}{paused}; "
            "the request is kept for the next successful turn (see `status --check`)"
        )
    after = control.standing(store, group)
    has_changed = (before.state, before.generation) != (after.state, after.generation)
    rows = [(when, each.state, each.generation, each.reason) for when, each in (("before", before), ("after", after))]
    standings = {when: {"state": state, "generation": n, "reason": reason} for when, state, n, reason in rows}
    document = {"group": group, **standings, "changed": has_changed}
    text = None if has_changed else lambda: click.echo("a turn was taken: no changes were needed")
    return Shot(STANDING, rows, document=document, text=text)


def _paused(paused: PausedRecord) -> Shot:
    def text() -> None:
        echo_paused(paused, "PAUSED  ")
        if not paused:
            click.echo("no group is paused")

    return Shot(document=paused.to_json(), text=text)
