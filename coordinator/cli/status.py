"""`zk-coordinator status`: who is elected, and how every group is."""

from __future__ import annotations

import click

from coordinator.groups import Status
from coordinator.groups import status as read_status
from coordinator.zk.paths import Brokers

from .common import JSON, brokers_option, opened, output_option, print_json, print_rows, printable, zk_option
from .groups import LIST, list_row


@click.command()
@zk_option
@brokers_option
@output_option
def status(zk: str, brokers: Brokers, output: str) -> None:
    """Show the elected coordinator, every group, and whatever in ZooKeeper cannot be read."""
    with opened(zk) as store:
        found = read_status(store, brokers)
    if output == JSON:
        print_json(_document(found))
        return
    elected = found.coordinator
    who = printable(f"{elected.node} ({elected.host})") if elected else "- (nobody is elected)"
    click.echo(f"COORDINATOR  {who}")
    click.echo(f"EPOCH        {found.epoch if found.epoch is not None else '-'}")
    click.echo(f"TOPICS       {found.topics}")
    click.echo()
    print_rows(LIST, [list_row(group) for group in found.groups], output)
    rows = [(group.group, what, why) for group in found.groups for what, why in sorted(group.state.left_out.items())]
    if rows:
        click.echo("\nLeft out:")
        print_rows(("GROUP", "WHAT", "WHY"), rows, output)
    if found.problems:
        click.echo("\nCannot be read:")
        print_rows(("PATH", "PROBLEM"), sorted(found.problems.items()), output)


def _document(found: Status) -> dict[str, object]:
    elected = found.coordinator
    keys = [column.lower() for column in LIST]
    return {
        "coordinator": {"node": elected.node, "host": elected.host, "epoch": elected.epoch} if elected else None,
        "epoch": found.epoch,
        "topics": found.topics,
        "groups": [
            {**dict(zip(keys, list_row(group), strict=True)), "left_out": dict(group.state.left_out)}
            for group in found.groups
        ],
        "problems": found.problems,
    }
