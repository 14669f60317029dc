"""`zk-coordinator resign`: the elected node hands the coordinator's role over."""

from __future__ import annotations

import click

from coordinator import operate
from coordinator.zk.errors import CoordinatorError
from coordinator.zk.runtime import ThreadRuntime

from .common import JSON, opened, output_option, print_json, printable, zk_option


@click.command()
@click.option("--node", help="Only when this node is elected.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=30.0,
    show_default=True,
    help="How many seconds to wait for the next coordinator.",
)
@zk_option
@output_option
def resign(node: str | None, timeout_s: float, zk: str, output: str) -> None:
    """Let the elected node resign, and say who is elected next.

    It stands again after the others have had their chance: with one node, the same is elected again.
    """
    runtime = ThreadRuntime()
    with opened(zk) as store:
        before, epoch = operate.resign(store, node)
        started = runtime.monotonic()
        after = operate.await_election(store, runtime, epoch, timeout_s)
        took_ms = round(1000 * (runtime.monotonic() - started))
    if after is None:
        raise CoordinatorError(
            f"node {before.node} has resigned (epoch {before.epoch}), but nobody was elected within {timeout_s:g} s: "
            "check that nodes run (`zk-coordinator run`)"
        )
    if output == JSON:
        records = (("resigned", before), ("elected", after))
        found = {what: {"node": r.node, "host": r.host, "epoch": r.epoch} for what, r in records}
        print_json({**found, "took_ms": took_ms})
        return
    click.echo(printable(f"RESIGNED  {before.node} ({before.host}), epoch {before.epoch}"))
    click.echo(printable(f"ELECTED   {after.node} ({after.host}), epoch {after.epoch}, after {took_ms} ms"))
