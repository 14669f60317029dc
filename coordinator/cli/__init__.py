"""The command line `zk-coordinator`: one file for each group of commands."""

from __future__ import annotations

import click

from coordinator import __version__

from .common import Cli
from .groups import channel, groups
from .queries import queries
from .run import run
from .segments import segments
from .status import status
from .topics import topics

EXIT_CODES = """\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 inconclusive, 4 ZooKeeper unreachable, 5 unhealthy,
69 a needed program is missing."""


@click.group(cls=Cli, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="zk-coordinator")
def main() -> None:
    """Consumer groups that are coordinated through ZooKeeper."""


for command in (run, status, topics, groups, channel, queries, segments):
    main.add_command(command)
