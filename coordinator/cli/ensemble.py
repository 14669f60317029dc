"""`scripts/ensemble`: the embedded ZooKeeper ensemble, ZooKeeper's client on it, and a real Kafka broker beside it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from zk_group.coordinator.zk.embedded import ensemble as embedded
from zk_group.coordinator.zk.embedded.directory import IDENTITIES
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig, EnsembleError, has_ensemble
from zk_group.coordinator.zk.embedded.kafka import Broker, KafkaConfig, has_broker
from zk_group.coordinator.zk.errors import CoordinatorError, UsageError, ZooKeeperUnreachable
from zk_group.coordinator.zk.process.cli import Seconds
from zk_group.coordinator.zk.security.access import environment_of
from zk_group.coordinator.zk.znodes.paths import checked_name, shown

from .watching import UNHEALTHY

if TYPE_CHECKING:
    from zk_group.coordinator.zk.embedded.kafka_client import TrialKafka

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


def command_in(group: click.Group, name: str | None = None, **settings: Any) -> Callable[[Callable[..., Any]], Any]:
    """A command of a group, on the ensemble in `--dir`."""
    return lambda run: group.command(name, epilog=EXIT_CODES, **settings)(directory_option(run))


output_option = click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
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


@command_in(ensemble)
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
    given = {"servers": int(servers) if servers else None, "tls": tls, "auth": auth}
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    config = None
    if not has_ensemble(directory):
        config = EnsembleConfig(**values)
    elif values:
        config = replace(Ensemble.load(directory).config, **values)
    try:
        made = Ensemble(directory, config, base_port=port)  # refused when an existing one is of another configuration
    except EnsembleError as error:
        raise UsageError(str(error)) from error
    embedded.started(made, lambda: made.wait_healthy(timeout_s), any(server.is_running for server in made.servers))
    click.echo(made.hosts)
    click.echo(f"stop it with: scripts/ensemble stop{dir_argument(directory)}", err=True)


@command_in(ensemble)
def stop(directory: Path) -> None:
    """Stop the servers, and the Kafka broker beside them; their data stays."""
    made = Ensemble.load(directory)
    if has_broker(made.directory / KAFKA):
        Broker.load(made.directory / KAFKA).stop()  # before ZooKeeper: a controlled shutdown
    made.stop()


@command_in(ensemble)
@output_option
def status(directory: Path, output: str) -> None:
    """Show which servers run and which one leads; exits 5 when the ensemble is unhealthy."""
    servers = Ensemble.load(directory).status() if has_ensemble(directory) else ()
    healthy = embedded.modes_are_healthy([server.mode for server in servers])
    if output == "json":
        click.echo(json.dumps({"healthy": healthy, "servers": [asdict(server) for server in servers]}))
    elif not servers:
        click.echo(f"there is no ensemble in {directory}")
    else:
        modes = ["down" if each.pid is None else each.mode or "not serving" for each in servers]
        rows = [(str(one.id), one.address, str(one.pid or "-"), mode) for one, mode in zip(servers, modes, strict=True)]
        for number, address, pid, mode in [("SERVER", "ADDRESS", "PID", "MODE"), *rows]:
            click.echo(f"{number:<8}{address:<18}{pid:<10}{mode}")
    sys.exit(0 if healthy else UNHEALTHY)


@command_in(ensemble, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
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
    command = embedded.zkcli_command(made.hosts, *arguments, flags=made.identities.zkcli_flags(identity))
    os.execv(command[0], command)


@command_in(ensemble)
@identity_option
def env(directory: Path, identity: str) -> None:
    """Print the shell's commands that make this client's credentials those of every command:

    `eval "$(scripts/ensemble env --as operator)"`. Secrets stay in their files.
    """
    made = Ensemble.load(directory)
    for name, value in environment_of(made.identities.access(identity)).items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo(f"# in ACLs: {made.identities.zookeeper_id(identity)}")


# ---- the Kafka broker


@ensemble.group(epilog=EXIT_CODES)
def kafka() -> None:
    """One real Kafka 3.9 broker beside the servers. Its jars (46 MB) are fetched once, by PySpark's Ivy."""


@command_in(kafka, "start")
@click.option("--port", type=int, help="Port. [default: a free one, kept in DIR]")
@click.option("--timeout", "timeout_s", type=Seconds(0), default=60.0, show_default=True, help="Seconds to be ready.")
def kafka_start(directory: Path, port: int | None, timeout_s: float) -> None:
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
    embedded.started(broker, lambda: broker.wait_ready(timeout_s), broker.is_running)
    click.echo(broker.address)
    folder = dir_argument(directory)
    click.echo(f"make a topic with: scripts/ensemble kafka topic NAME --partitions 4{folder}", err=True)
    click.echo(f"a group reads it with: --zk {made.hosts} --log-dir kafka:", err=True)
    click.echo(f"stop it with: scripts/ensemble kafka stop{folder}", err=True)


@command_in(kafka, "stop")
def kafka_stop(directory: Path) -> None:
    """Stop the broker; its data stays."""
    Broker.load(Ensemble.load(directory).directory / KAFKA).stop()


@command_in(kafka, "status")
@output_option
def kafka_status(directory: Path, output: str) -> None:
    """Show whether the broker runs, and where; exits 5 when it does not."""
    broker = _broker(directory)
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


@command_in(kafka)
@click.argument("name")
@click.option("--partitions", type=click.IntRange(1, 1000), help="Total number of partitions. [default: 1]")
@click.option("--delete", is_flag=True, help="Delete the topic with its records instead.")
def topic(directory: Path, name: str, partitions: int | None, delete: bool) -> None:
    """Create topic NAME, or give it more partitions."""
    if delete and partitions is not None:
        raise UsageError("give either --partitions or --delete")
    client = _client(directory)
    if delete:
        client.delete_topic(checked_name("topic", name))
        click.echo(f"topic {name} deleted")
        return
    count = partitions or 1
    done = client.make_topic(checked_name("topic", name), count)
    click.echo(f"topic {name} {done}: {count} partition{'s' if count > 1 else ''}")


@command_in(kafka)
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--key-separator", metavar="TEXT", help="Each line is KEY, this, VALUE. [default: no keys]")
def produce(directory: Path, topic: str, file: BinaryIO, key_separator: str | None) -> None:
    """Write the lines of FILE (- or none is stdin) into TOPIC, spread over its partitions, or by their keys."""
    written = _client(directory).write(topic, (_record(line, key_separator) for line in file))
    click.echo(f"{written} records written to {topic}", err=True)


@command_in(kafka)
@click.argument("topic")
@click.option("--max-records", type=click.IntRange(1), help="End after so many records.")
@click.option("--timeout-ms", type=click.IntRange(1), help="End when no record has come for so long.")
def consume(directory: Path, topic: str, max_records: int | None, timeout_ms: int | None) -> None:
    """Print the values of all records of TOPIC from the beginning on, a line each, until Ctrl-C."""
    values = _client(directory).read(topic, timeout_ms / 1000 if timeout_ms is not None else None)
    try:
        for value in islice(values, max_records):
            sys.stdout.buffer.write((value or b"") + b"\n")
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The reader of the pipe has gone: the rest of the buffer is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _record(line: bytes, separator: str | None) -> tuple[bytes | None, bytes]:
    text = line.rstrip(b"\r\n")
    if separator is None:
        return None, text
    key, found, value = text.partition(separator.encode())
    if not found:
        raise UsageError(f"the line {shown(text.decode(errors='replace'))} has no {shown(separator)} after its key")
    return key, value


def _broker(directory: Path) -> Broker | None:
    folder = directory.expanduser().resolve() / KAFKA
    return Broker.load(folder) if has_broker(folder) else None


def _client(directory: Path) -> TrialKafka:
    """A client of the broker that runs in `directory`.

    :raises CoordinatorError: when none runs.
    """
    from zk_group.coordinator.zk.embedded.kafka_client import TrialKafka  # needs confluent-kafka

    broker = _broker(directory)
    if broker is None or not broker.is_ready:
        raise EnsembleError(f"no Kafka broker runs: scripts/ensemble kafka start{dir_argument(directory)}")
    return TrialKafka(broker.address)


def main() -> None:
    """Run the command line; an error is one line on stderr and its exit code."""
    try:
        ensemble(prog_name="scripts/ensemble")
    except CoordinatorError as error:
        click.echo(f"ensemble: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
