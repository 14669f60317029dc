"""`zk-consumer rewind`: sets a stopped query back to a checkpoint of its group's consistent region."""

from __future__ import annotations

import click

from zk_group.consumer.streaming.source.rewind import Rewinder
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.process.cli import opened, output_option, print_rows, zk_option
from zk_group.coordinator.zk.runtime import ThreadRuntime

COLUMNS = ("GROUP", "QUERY", "CHECKPOINT", "BATCH", "NEWEST", "FILES", "REWOUND")


@click.command()
@click.argument("group")
@click.argument("query")
@click.option("--checkpoint-location", required=True, metavar="DIR", help="The query's checkpointLocation in Spark.")
@click.option(
    "--to", "checkpoint", type=click.IntRange(1), required=True, help="The region's checkpoint to go back to."
)
@click.option("--stopped", is_flag=True, help="Its driver has ended, in spite of a recent heartbeat.")
@click.option("--execute", is_flag=True, help="Apply the rewind; without it a dry run.")
@zk_option
@output_option
def rewind(
    group: str,
    query: str,
    checkpoint_location: str,
    checkpoint: int,
    stopped: bool,
    execute: bool,
    zk: str,
    output: str,
) -> None:
    """Set the Spark checkpoint of QUERY, which reads GROUP, back to a checkpoint. A dry run without --execute.

    The query has run with alignCheckpoints=true, and is stopped. After a restart it repeats the batches after BATCH,
    with the same numbers and possibly other ends: remove their output from its sink first.
    """
    with opened(zk) as store:
        try:
            rewinder = Rewinder(store, ThreadRuntime(), group, query, checkpoint_location, stopped)
            result = rewinder.to(checkpoint, execute)
        except OSError as error:
            raise CoordinatorError(f"{checkpoint_location}: {error}; repeat it") from error
    print_rows(COLUMNS, [(group, query, checkpoint, result.batch, result.newest, result.files, execute)], output)
    if not execute:
        click.echo("nothing was rewound: this was a dry run, rewind with --execute", err=True)
