"""Shared by the scripts: coordinator nodes in processes of their own, a secured chroot, and the frame of a command."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from zk_group.coordinator.admin.acl import apply, create_group
from zk_group.coordinator.zk.embedded.directory import Identities
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig
from zk_group.coordinator.zk.process.cli import exit_code_of
from zk_group.coordinator.zk.security.access import clear_environment
from zk_group.coordinator.zk.security.policy import AclPolicy
from zk_group.coordinator.zk.store import AclStore
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.drills.base.processes import Process, end_all, finished, module_command, own_environment


def start_node(folder: Path, name: str, zk: str, *options: str, variables: Mapping[str, str] = {}) -> Process:
    """Start a coordinator node. `end_all` stops it in order.

    :param variables: of its environment, as those of its credentials.
    """
    command = module_command("zk_group.coordinator.cli", ["run", "--zk", zk, "--node", name, *options])
    return Process(folder, name, command, variables)


@contextmanager
def coordinated(
    folder: Path, names: str, *options: str, chroot: str = "", servers: int = 3
) -> Iterator[tuple[str, list[Process], list[Process]]]:
    """ZooKeeper, a coordinator node for each letter of `names`, and a list for workers; all are stopped at the end."""
    workers: list[Process] = []
    nodes: list[Process] = []
    with Ensemble(folder / "zookeeper", EnsembleConfig(servers)) as ensemble:
        zk = ensemble.hosts + chroot
        try:
            nodes.extend(start_node(folder, name, zk, *options) for name in names)
            yield zk, workers, nodes
        finally:
            end_all([*workers, *nodes])


def secure(store: AclStore, identities: Identities, groups: dict[str, str]) -> None:
    """Secure the chroot, closed for reading; create the groups.

    :param store: of the identity `operator`.
    :param groups: group -> the identity of its members.
    """
    coordinators, operators, readers = (
        (identities.zookeeper_id(name),) for name in ("coordinator", "operator", "reader")
    )
    apply(store, AclPolicy(True, False, coordinators, operators, readers), Brokers())
    for group, member in groups.items():
        create_group(store, group, (identities.zookeeper_id(member),), ())


def measured_by(module: str, arguments: Sequence[str], timeout_s: float) -> dict[str, float]:
    """The figures in the last line printed by a module in its own process.

    :raises RuntimeError: when it fails.
    """
    command = module_command(module, arguments)
    done = finished(*command, timeout_s=timeout_s, environment=own_environment())
    if done.returncode:
        raise RuntimeError(f"{module} {arguments[0]} failed: {done.stderr[-1000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(main: click.Command, name: str) -> NoReturn:
    """Run a script's command. SIGTERM and SIGHUP stop all started processes, as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    clear_environment()  # the servers are its own
    sys.exit(exit_code_of(partial(main.main, sys.argv[1:], prog_name=name, standalone_mode=False)))


Story = Callable[[Path, Callable[[str], None]], dict[str, Any]]


def example(line: Callable[[dict[str, Any]], str]) -> Callable[[Story], click.Command]:
    """The command of an example that runs in a temporary folder, and returns its verdict.

    The verdict as JSON, or in a `line`, is the last line on stdout. The function's docstring is the command's help.
    """

    def command_of(story: Story) -> click.Command:
        @click.command(help=story.__doc__, context_settings={"help_option_names": ["-h", "--help"]})
        @click.option("--json", "as_json", is_flag=True, help="The last line on stdout is one JSON object.")
        def main(as_json: bool) -> NoReturn:
            with tempfile.TemporaryDirectory(prefix="zk-group-example-") as folder:
                verdict = story(Path(folder), lambda what: click.echo(what, err=True))
            click.echo(json.dumps(verdict) if as_json else f"{verdict['verdict']}: {line(verdict)}")
            sys.exit(0 if verdict["verdict"] == "PASS" else 1)

        return main

    return command_of
