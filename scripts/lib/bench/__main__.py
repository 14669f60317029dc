"""`scripts/bench`: run a benchmark and print its figures; with --json also as one object on the last line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import common

from zk_group.coordinator.zk.process.cli import Cli


@click.group(cls=Cli)
def main() -> None:
    """Benchmark the product on real components. All files are in a temporary folder, which is removed at the end."""


def listed(*known: str, least: int = 0) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """The parser of an option with a list of these names, and a minimum number."""

    def parse(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if len(names) < least or set(names) - set(known):
            raise click.BadParameter(f"choose from {', '.join(known)}")
        return names

    return parse


STRATEGIES = click.Choice(["range", "round-robin", "sticky", "cooperative-sticky"])
option = partial(click.option, show_default=True)
json_option = click.option("--json", "as_json", is_flag=True, help="The last line on stdout is one JSON object.")


@main.command()
@option("--members", type=click.IntRange(1, 1000), default=8, help="Members before the join.")
@option("--partitions", type=click.IntRange(1, 100_000), default=1024)
@option("--rounds", type=click.IntRange(1), default=5, help="Rounds after the warm-up.")
@option("--session-timeout-ms", type=click.IntRange(1000), default=6000)
@option("--strategy", type=STRATEGIES, default="range", help="Protocols that the members support.")
@option(
    "--assignment",
    "assignments",
    default="coordinator",
    metavar="SIDE,...",
    callback=listed("coordinator", "client", least=1),
    help="Assignment: coordinator, client, or both; `ratio` is of the first one's joins to the second one's.",
)
@click.option("--secure", is_flag=True, help="With TLS, SASL and ACLs beside without; `ratios` are of the two.")
@click.option("--processes", "as_processes", is_flag=True, help="Run each member in a process instead of a thread.")
@json_option
def rebalance(**options: Any) -> None:
    """Rebalances by a join and a leave; failovers after a resignation and a SIGKILL. One embedded server."""
    run("rebalance", **options)


source_option = option(
    "--source",
    type=click.Choice(["embedded", "kafka"]),
    default="embedded",
    help="The log: the embedded one, or a real Kafka broker in ZooKeeper mode on the embedded server.",
)


@main.command()
@source_option
@click.option(
    "--against",
    default="",
    metavar="NAME,...",
    callback=listed("confluent", "kafka-python", "aiokafka", "spark"),
    help="Peers that read a Kafka broker: poll loops of confluent, kafka-python, aiokafka (extra `bench`); spark, "
    "Spark's Kafka source, with jars that are fetched once, or of a folder named by ZK_GROUP_BENCH_SPARK_KAFKA_JARS.",
)
@option("--records", type=click.IntRange(1), default=3_000_000)
@option("--record-bytes", type=click.IntRange(1, 1 << 20), default=1000)
@option("--slots", type=click.IntRange(1, 100), default=4)
@option("--warm-ups", type=click.IntRange(1), default=3, help="Warm-up rounds, for the JVMs' compilation.")
@option("--rounds", type=click.IntRange(1), default=3, help="Rounds after the warm-up.")
@json_option
def stream(**options: Any) -> None:
    """Throughput from a log to a DataFrame (noop sink): slots on two executors of two cores, one embedded server."""
    run("stream", **options)


@main.command()
@source_option
@option("--rate", type=click.IntRange(1, 100_000), default=1000, help="Records a second.")
@option("--record-bytes", type=click.IntRange(20, 1 << 20), default=1000)
@option("--warm-up-s", type=click.FloatRange(0), default=40.0, help="Seconds before, for the JVMs' compilation.")
@option("--seconds", type=click.FloatRange(1), default=30.0)
@json_option
def latency(**options: Any) -> None:
    """Latency from a record's write to its row in the sink, at a constant rate, with defaults: two slots, one query."""
    run("latency", **options)


@main.command()
@option("--polls", type=click.IntRange(100), default=2000, help="Polls per case.")
@option("--partitions", type=click.IntRange(1, 10_000), default=1000, help="For the memory.")
@click.option("--kafka", is_flag=True, help="Also measure the memory of a consumer of a real broker.")
@json_option
def poll(**options: Any) -> None:
    """`poll` of 500 small records: time per call; and the memory of a consumer without polls."""
    run("poll", **options)


@main.command()
@option("--consumers", type=click.IntRange(1, 100), default=4)
@option("--partitions", type=click.IntRange(1, 1000), default=32)
@option("--records", type=click.IntRange(1), default=20_000, help="In partition 0; 1/n in the nth.")
@option("--before", default="cooperative-sticky", help="The protocol that `lag` replaces.")
@json_option
def lag(**options: Any) -> None:
    """Distribution of a skewed backlog over consumers, under a protocol that counts partitions and under `lag`."""
    run("lag", **options)


@main.command()
@option("--members", type=click.IntRange(1, 100), default=8)
@option("--partitions", type=click.IntRange(1, 10_000), default=1024)
@option("--rounds", type=click.IntRange(1), default=10, help="Rounds after the warm-up.")
@option("--session-timeout-ms", type=click.IntRange(1000), default=6000)
@json_option
def region(**options: Any) -> None:
    """Checkpoints and resets of a consistent region, and a rebalance of the same group without one. One embedded
    server."""
    run("region", **options)


@main.command()
@option("--consumers", type=click.IntRange(1, 10_000), default=100, help="Consumers before the join.")
@option("--partitions", type=click.IntRange(1, 1_000_000), default=10_000)
@option("--rounds", type=click.IntRange(1), default=5, help="Rounds after the warm-up.")
@option(
    "--peer-limit-s",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    help="Time limit of a peer's assignment; beyond it the peer is reported as `more than` and skipped.",
)
@json_option
def assignors(**options: Any) -> None:
    """The sticky strategy beside those of kafka-python and aiokafka (extra `bench`): fresh, join, leave."""
    from .assignors import measure

    as_json = options.pop("as_json")
    show(measure(tell=tell, **options), as_json)


def run(name: str, as_json: bool, **options: Any) -> None:
    """Run a benchmark, a module of this package, in a temporary folder."""
    measure = import_module(f".{name}", __package__).measure
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        show(measure(Path(folder), tell=tell, **options), as_json)


def tell(what: str) -> None:
    """Print progress to stderr."""
    click.echo(what, err=True)


def show(found: dict[str, Any], as_json: bool) -> None:
    """Print one line for each figure, and the JSON line."""
    for name, value in _lines(found):
        click.echo(f"{name:<30} {value}")
    if as_json:
        click.echo(json.dumps(found, separators=(",", ":")))


def _lines(found: dict[str, Any], of: str = "") -> Iterator[tuple[str, object]]:
    """The name and the text of each line; of an object of objects a line for each inner object."""
    for name, value in found.items():
        if not isinstance(value, dict):
            yield f"{of}{name}", value
        elif any(isinstance(one, dict) for one in value.values()):
            yield from _lines(value, f"{of}{name} ")
        else:
            yield f"{of}{name}", "  ".join(f"{key} {_shown(one)}" for key, one in value.items())


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    common.run(main, "scripts/bench")
