"""The command line `zk-coordinator`: one file for each group of commands."""

from __future__ import annotations

import click

from coordinator import __version__

from .channel import channel
from .common import Cli
from .drill import drill
from .groups import groups
from .history import history
from .pause import pause, resume
from .queries import queries
from .rebalance import rebalance
from .resign import resign
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


COMMANDS = (
    run, status, topics, groups, channel, history, pause, resume, rebalance, resign, queries, segments, drill,
)  # fmt: skip
for command in COMMANDS:
    main.add_command(command)
