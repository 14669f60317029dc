"""`scripts/bench`: measure, show, and with --json end with one object a line."""

from __future__ import annotations

import json
import logging
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from coordinator.zk.cli import Cli


@click.group(cls=Cli)
def main() -> None:
    """Measure the product on real parts. What it makes is in a temporary folder, and goes with it."""
    logging.getLogger("coordinator.zk.kazoo").setLevel(logging.CRITICAL)
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: what was started is stopped
        signal.signal(number, signal.default_int_handler)


json_option = click.option("--json", "as_json", is_flag=True, help="The last line on stdout is one JSON object.")


@main.command()
@click.option("--members", type=click.IntRange(1, 1000), default=8, show_default=True, help="Before one more joins.")
@click.option("--partitions", type=click.IntRange(1, 100_000), default=1024, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="That count; one more warms up.")
@click.option("--session-timeout-ms", type=click.IntRange(1000), default=6000, show_default=True)
@click.option("--processes", is_flag=True, help="Each member a process of its own instead of a thread.")
@json_option
def rebalance(**options: Any) -> None:
    """A member joins and leaves; a coordinator resigns and is killed. Eager range, one embedded server."""
    from .rebalance import measure

    as_json = options.pop("as_json")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = measure(Path(folder), as_processes=options.pop("processes"), tell=tell, **options)
    show(found, as_json)


@main.command()
@click.option("--records", type=click.IntRange(1), default=3_000_000, show_default=True)
@click.option("--record-bytes", type=click.IntRange(1, 1 << 20), default=1000, show_default=True)
@click.option("--slots", type=click.IntRange(1, 100), default=2, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="That count; one more warms up.")
@json_option
def stream(**options: Any) -> None:
    """Embedded log to DataFrame (noop sink): slots on two executor processes, one embedded server."""
    from .stream import measure

    as_json = options.pop("as_json")
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        found = measure(Path(folder), tell=tell, **options)
    show(found, as_json)


def tell(what: str) -> None:
    """Progress, on stderr."""
    click.echo(what, err=True)


def show(found: dict[str, Any], as_json: bool) -> None:
    """One line for each figure, and the JSON line."""
    for name, value in found.items():
        shown = "  ".join(f"{key} {number:g}" for key, number in value.items()) if isinstance(value, dict) else value
        click.echo(f"{name:<22} {shown}")
    if as_json:
        click.echo(json.dumps(found, separators=(",", ":")))


if __name__ == "__main__":
    sys.exit(main())
