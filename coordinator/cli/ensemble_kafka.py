"""`scripts/ensemble kafka`: a real Kafka broker, in ZooKeeper mode, on the embedded ensemble."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import click

from coordinator.zk.embedded.directory import EnsembleError
from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.embedded.kafka import Broker, KafkaConfig, has_broker
from coordinator.zk.errors import UsageError, ZooKeeperUnreachable

UNHEALTHY = 5
KAFKA = "kafka"

EXIT_CODES = """\b
Exit codes: 0 ok, 1 failed, 2 usage, 4 no server runs (zkcli, kafka start), 5 unhealthy (status),
69 a needed program is missing."""


def default_directory() -> Path:
    """`$XDG_STATE_HOME/zk-group-coordinator/ensemble`, with `~/.local/state` by default."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "zk-group-coordinator" / "ensemble"


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_directory,
    show_default="${XDG_STATE_HOME:-~/.local/state}/zk-group-coordinator/ensemble",
    help="Where the ensemble keeps its configuration, data, logs and process ids.",
)


def dir_argument(directory: Path) -> str:
    """The option for `directory`, with a leading space; empty for the default."""
    return "" if directory == default_directory() else f" --dir {shlex.quote(str(directory))}"


@click.group(epilog=EXIT_CODES)
def kafka() -> None:
    """One real Kafka 3.9 broker beside the servers. Its jars (46 MB) are fetched once, by PySpark's Ivy."""


@kafka.command(epilog=EXIT_CODES)
@directory_option
@click.option("--port", type=int, help="Port. [default: a free one, kept in DIR]")
@click.option("--timeout", "timeout_s", type=float, default=60.0, show_default=True, help="Seconds to be ready.")
def start(directory: Path, port: int | None, timeout_s: float) -> None:
    """Start the broker, if it does not run, on the running ensemble in DIR. Prints its address."""
    made = Ensemble.load(directory)
    if not made.is_healthy():
        raise ZooKeeperUnreachable(
            f"the ensemble in {made.directory} does not run: scripts/ensemble start{dir_argument(directory)}"
        )
    try:
        broker = Broker(made.directory / KAFKA, KafkaConfig(zookeeper=made.hosts), port)
    except EnsembleError as error:
        raise UsageError(str(error)) from error
    was_down = not broker.is_running
    try:
        broker.start()
        broker.wait_ready(timeout_s)
    except BaseException:
        if was_down:  # clean up after a failed start
            broker.stop()
        raise
    click.echo(broker.address)
    click.echo(f"a group reads it with: --zk {made.hosts} --log-dir kafka:", err=True)
    click.echo(f"stop it with: scripts/ensemble kafka stop{dir_argument(directory)}", err=True)


@kafka.command(epilog=EXIT_CODES)
@directory_option
def stop(directory: Path) -> None:
    """Stop the broker; its data stays."""
    Broker.load(Ensemble.load(directory).directory / KAFKA).stop()


@kafka.command(epilog=EXIT_CODES)
@directory_option
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def status(directory: Path, output: str) -> None:
    """Show whether the broker runs, and where; exits 5 when it does not."""
    place = directory.expanduser().resolve() / KAFKA
    broker = Broker.load(place) if has_broker(place) else None
    is_ready = broker is not None and broker.is_ready
    if output == "json":
        document = {"address": broker.address, "pid": broker.pid} if broker else {"address": None, "pid": None}
        click.echo(json.dumps({"healthy": is_ready, **document}))
    elif broker is None:
        click.echo(f"there is no Kafka broker in {directory}")
    else:
        state = "ready" if is_ready else "down" if broker.pid is None else "not ready"
        click.echo(f"{broker.address:<18}{broker.pid or '-'!s:<10}{state}")
    sys.exit(0 if is_ready else UNHEALTHY)
