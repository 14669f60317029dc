"""The command line `zk-coordinator`: one file for each group of commands.

Imports `service`, `admin`, `term`, `zk`, the logs of `consumer` and its check of segments; `drills` is loaded by name.
"""

from __future__ import annotations

import click

from zk_group import __version__
from zk_group.coordinator.zk.process.cli import Cli

EXIT_CODES = """\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 inconclusive, 4 ZooKeeper unreachable, 5 unhealthy,
69 a needed program is missing, 77 not authorized, 78 not authenticated."""

COMMANDS = ("acl", "channel", "groups", "history", "queries", "regions", "run", "segments", "status", "topics")
PLACES = {command: f"{__name__}.{command}" for command in COMMANDS} | {
    "conformance": "zk_group.drills.conformance.cli",
    "drill": "zk_group.drills.cli",
    "history": f"{__name__}.groups",
    "queries": f"{__name__}.segments",
    **dict.fromkeys(("pause", "rebalance", "resign", "resume", "status"), f"{__name__}.control"),
}


@click.group(cls=Cli, epilog=EXIT_CODES, places=PLACES)
@click.version_option(__version__, prog_name="zk-coordinator")
def main() -> None:
    """Consumer groups that are coordinated through ZooKeeper."""
