"""`zk-coordinator resign`: make the elected node resign."""

from __future__ import annotations

import click

from coordinator.admin import control
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import ThreadRuntime

from .common import JSON, opened, output_option, print_json, printable, zk_option


@click.command()
@click.option("--node", help="Only if this node is elected.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the next coordinator.",
)
@zk_option
@output_option
def resign(node: str | None, timeout_s: float, zk: str, output: str) -> None:
    """Make the elected node resign, and show the next one.

    It stands for election again after the others: with one node, the same is elected again.
    """
    runtime = ThreadRuntime()
    with opened(zk) as store:
        before, epoch = control.resign(store, node)
        started = runtime.monotonic()
        after = control.await_election(store, runtime, epoch, timeout_s)
        took_ms = round(1000 * (runtime.monotonic() - started))
    if after is None:
        raise CoordinatorError(
            f"node {before.node} has resigned (epoch {before.epoch}), but no node was elected within {timeout_s:g} s: "
            "check that nodes run (`zk-coordinator run`)"
        )
    if output == JSON:
        records = (("resigned", before), ("elected", after))
        found = {what: {"node": r.node, "host": r.host, "epoch": r.epoch} for what, r in records}
        print_json({**found, "took_ms": took_ms})
        return
    click.echo(printable(f"RESIGNED  {before.node} ({before.host}), epoch {before.epoch}"))
    click.echo(printable(f"ELECTED   {after.node} ({after.host}), epoch {after.epoch}, after {took_ms} ms"))
