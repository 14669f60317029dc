"""The command line `zk-consumer`: one file for each group of commands."""

from __future__ import annotations

import click

from coordinator.zk.cli import Cli

from .produce import produce
from .run import run

EXIT_CODES = """\b
Exit codes: 0 ok, 1 failed, 2 usage, 3 inconclusive, 4 ZooKeeper unreachable, 5 unhealthy,
69 a needed program is missing."""


@click.group(cls=Cli, epilog=EXIT_CODES)
@click.version_option(package_name="zk-group-coordinator", prog_name="zk-consumer")
def main() -> None:
    """The consumer side: produce into the embedded log, and consume from it."""


for command in (run, produce):
    main.add_command(command)
