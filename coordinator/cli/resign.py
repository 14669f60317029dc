"""`zk-coordinator resign`: depose the elected node."""

from __future__ import annotations

import click

from coordinator.admin import control
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import ThreadRuntime

from .common import JSON, Seconds, opened, output_option, print_json, printable, zk_option


@click.command()
@click.option("--node", help="Only if this node is elected.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(0.1, 3600),
    default=30.0,
    show_default=True,
    help="Seconds to wait for the next coordinator.",
)
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
