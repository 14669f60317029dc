"""The command line `zk-consumer`: one file for each group of commands.

Imports all of `consumer`, and `coordinator.zk`.
"""

from __future__ import annotations

import click

from zk_group import __version__
from zk_group.coordinator.zk.process.cli import Cli

from .produce import produce
from .rewind import rewind
from .run import run

EXIT_CODES = """\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 inconclusive, 4 ZooKeeper unreachable, 5 unhealthy,
69 a needed program is missing, 77 not authorized, 78 not authenticated."""


@click.group(cls=Cli, epilog=EXIT_CODES)
@click.version_option(__version__, prog_name="zk-consumer")
def main() -> None:
    """The consumer side: produce into the embedded log, consume from it, and rewind a query of sealed segments."""


for command in (run, produce, rewind):
    main.add_command(command)
