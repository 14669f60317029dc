"""`zk-coordinator pause` and `resume`: suspend the turns of groups, to inspect their commands and state."""

from __future__ import annotations

import click

from coordinator.admin import control
from coordinator.zk.runtime import ThreadRuntime

from .common import opened, operator, output_option, print_paused, reason_option, zk_option


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
