"""`zk-coordinator pause` and `resume`: let groups alone, so that their commands and state can be looked at."""

from __future__ import annotations

import click

from coordinator import operate
from coordinator.zk.runtime import ThreadRuntime

from .common import opened, operator, output_option, print_paused, reason_option, zk_option


@click.command()
@click.argument("group", required=False)
@reason_option
@zk_option
@output_option
def pause(group: str | None, reason: str | None, zk: str, output: str) -> None:
    """Take no turns of GROUP, or of any group, until `resume`; prints what is paused.

    No command is sent or withdrawn, nothing is ended and no state written meanwhile. Consumers go on with what they
    have: they acknowledge, fetch, seal and commit. A turn that is under way is finished.
    """
    with opened(zk) as store:
        paused = operate.pause(store, group, operator(), ThreadRuntime().wall_ms(), reason)
    print_paused(paused, output)


@click.command()
@click.argument("group", required=False)
@zk_option
@output_option
def resume(group: str | None, zk: str, output: str) -> None:
    """Lift the pause of GROUP, or every pause there is; prints what is still paused.

    Every group that was paused gets a turn, which sees all that has changed meanwhile.
    """
    with opened(zk) as store:
        before, paused = operate.resume(store, group)
    if not before:
        click.echo("nothing was paused", err=True)
    elif group is None:
        click.echo("every pause is lifted", err=True)
    elif group not in before.groups:
        click.echo(f"group '{group}' was not paused", err=True)
    print_paused(paused, output)
