"""`scripts/ensemble`: start, watch and stop the embedded ZooKeeper ensemble, and talk to it with ZooKeeper's client."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from coordinator.zk.embedded.ensemble import (
    Ensemble,
    EnsembleConfig,
    EnsembleError,
    ServerStatus,
    has_ensemble,
    modes_are_healthy,
    zkcli_command,
)
from coordinator.zk.embedded.identities import IDENTITIES
from coordinator.zk.embedded.kafka import Broker, has_broker
from coordinator.zk.errors import CoordinatorError, UsageError, ZooKeeperUnreachable
from coordinator.zk.process.cli import Seconds
from coordinator.zk.security.access import environment_of

from .common import UNHEALTHY
from .ensemble_kafka import EXIT_CODES, KAFKA, dir_argument, directory_option, kafka

identity_option = click.option(
    "--as",
    "identity",
    type=click.Choice(IDENTITIES),
    default="operator",
    show_default=True,
    help="The identity, on an ensemble with --tls or --auth.",
)


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
def ensemble() -> None:
    """One or three real ZooKeeper servers on this machine, from PySpark's own jars. Needs Java 17."""


@ensemble.command(epilog=EXIT_CODES)
@directory_option
@click.option("--servers", type=click.Choice(["1", "3"]), help="Number of servers. [default: 3, or as in DIR]")
@click.option("--port", type=int, help="First client port; the others follow. [default: free ports, kept in DIR]")
@click.option("--tls/--no-tls", default=None, help="TLS on the client ports, with a CA of its own. [default: no]")
@click.option("--auth/--no-auth", default=None, help="Clients may authenticate by SASL. [default: no]")
@click.option(
    "--timeout", "timeout_s", type=Seconds(0), default=30.0, show_default=True, help="Seconds to become healthy."
)
def start(
    directory: Path, servers: str | None, port: int | None, tls: bool | None, auth: bool | None, timeout_s: float
) -> None:
    """Start the servers that are down, and wait until they are healthy.

    Data and ports of an earlier start in the same directory are kept, and so are the credentials of --tls and --auth
    (`env` shows how to use them).
    """
    made = _made(directory, servers, port, tls, auth)
    was_down = not any(server.is_running for server in made.servers)
    try:
        made.start()
        made.wait_healthy(timeout_s)
    except BaseException:
        if was_down:  # clean up after a failed start
            made.stop()
        raise
    click.echo(made.hosts)
    click.echo(f"stop it with: scripts/ensemble stop{dir_argument(directory)}", err=True)


@ensemble.command(epilog=EXIT_CODES)
@directory_option
def stop(directory: Path) -> None:
    """Stop the servers, and the Kafka broker beside them; their data stays."""
    made = Ensemble.load(directory)
    if has_broker(made.directory / KAFKA):
        Broker.load(made.directory / KAFKA).stop()  # before ZooKeeper: a controlled shutdown
    made.stop()


@ensemble.command(epilog=EXIT_CODES)
@directory_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(directory: Path, output: str) -> None:
    """Show which servers run and which one leads; exits 5 when the ensemble is unhealthy."""
    servers = Ensemble.load(directory).status() if has_ensemble(directory) else ()
    healthy = modes_are_healthy([server.mode for server in servers])
    if output == "json":
        click.echo(json.dumps({"healthy": healthy, "servers": [asdict(server) for server in servers]}))
    else:
        click.echo(_table(servers) if servers else f"there is no ensemble in {directory}")
    sys.exit(0 if healthy else UNHEALTHY)


@ensemble.command(
    epilog=EXIT_CODES, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
@directory_option
@identity_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def zkcli(directory: Path, identity: str, arguments: tuple[str, ...]) -> None:
    """ZooKeeper's own client against the ensemble: `zkcli ls /brokers/topics`; interactive without ARGUMENTS.

    Exits as zkCli does: 1 for a missing znode.
    """
    made = Ensemble.load(directory)
    if not any(server.is_running for server in made.servers):
        raise ZooKeeperUnreachable(
            f"no server of {made.directory} runs: scripts/ensemble start{dir_argument(directory)}"
        )
    command = zkcli_command(made.hosts, *arguments, flags=made.identities.zkcli_flags(identity))
    os.execv(command[0], command)


@ensemble.command(epilog=EXIT_CODES)
@directory_option
@identity_option
def env(directory: Path, identity: str) -> None:
    """Print the shell's commands that make this client's credentials those of every command:

    `eval "$(scripts/ensemble env --as operator)"`. Secrets stay in their files.
    """
    made = Ensemble.load(directory)
    for name, value in environment_of(made.identities.access(identity)).items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo(f"# in ACLs: {made.identities.zookeeper_id(identity)}")


def _made(directory: Path, servers: str | None, port: int | None, tls: bool | None, auth: bool | None) -> Ensemble:
    """The ensemble in `directory`, created if missing; the options must match an existing one."""
    config = None
    given = {"servers": int(servers) if servers else None, "tls": tls, "auth": auth}
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not has_ensemble(directory):
        config = EnsembleConfig(**values)
    elif values:
        config = replace(Ensemble.load(directory).config, **values)
    try:
        return Ensemble(directory, config, base_port=port)
    except EnsembleError as error:
        raise UsageError(str(error)) from error


def _table(servers: tuple[ServerStatus, ...]) -> str:
    rows = [("SERVER", "ADDRESS", "PID", "MODE")]
    for server in servers:
        mode = "down" if server.pid is None else server.mode or "not serving"
        rows.append((str(server.id), server.address, str(server.pid or "-"), mode))
    return "\n".join(f"{number:<8}{address:<18}{pid:<10}{mode}" for number, address, pid, mode in rows)


ensemble.add_command(kafka)


def main() -> None:
    """Run the command line; an error is one line on stderr and its exit code."""
    try:
        ensemble(prog_name="scripts/ensemble")
    except CoordinatorError as error:
        click.echo(f"ensemble: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
