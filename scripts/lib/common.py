"""What the scripts share: coordinator nodes in processes of their own, and the frame of a command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.process.cli import exit_code_of
from coordinator.zk.security.access import clear_environment
from drills.base.processes import Process, end_all, module_command


def start_node(folder: Path, name: str, zk: str, *options: str, variables: Mapping[str, str] = {}) -> Process:
    """Start a coordinator node. `end_all` stops it in order.

    :param variables: of its environment, as those of its credentials.
    """
    command = module_command("coordinator.cli", ["run", "--zk", zk, "--node", name, *options])
    return Process(folder, name, command, variables)


@contextmanager
def example(
    folder: Path, chroot: str, names: str, session_timeout_ms: int
) -> Iterator[tuple[str, list[Process], list[Process]]]:
    """ZooKeeper, a coordinator node for each letter of `names`, and a list for workers; all are stopped at the end."""
    workers: list[Process] = []
    nodes: list[Process] = []
    options = "--session-timeout-ms", str(session_timeout_ms)
    with Ensemble(folder / "zookeeper") as ensemble:
        zk = f"{ensemble.hosts}/{chroot}"
        try:
            nodes.extend(start_node(folder, name, zk, *options) for name in names)
            yield zk, workers, nodes
        finally:
            end_all([*workers, *nodes])


def run(main: click.Command, name: str) -> NoReturn:
    """Run a script's command. SIGTERM and SIGHUP stop all started processes, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    clear_environment()  # the servers are its own
    sys.exit(exit_code_of(partial(main.main, sys.argv[1:], prog_name=name, standalone_mode=False)))
