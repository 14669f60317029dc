"""`scripts/sizing`: adds the parts of a group one by one, and measures the server's figures after each."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
from common import run

from coordinator.admin.topics import create_topic
from coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig, Server
from coordinator.zk.znodes.paths import Brokers
from drills.base.processes import wait_for

from .group import TIMEOUT_S, Group
from .server import Figures, figures, watched

SETTLE_S = 2.0
FEW, MANY = 64, 1024
SLOTS = 8
TRIGGERS = 20


class Row(NamedTuple):
    """The costs of one unit. None without a measurement; `_s` is per second."""

    what: str
    znodes: float | None = None
    ephemerals: float | None = None
    watches: float | None = None
    data_bytes: float | None = None
    requests: float | None = None
    transactions: float | None = None
    requests_s: float | None = None
    transactions_s: float | None = None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.IntRange(2), default=20, show_default=True, help="Measurement time of each rate.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line for each row.")
def main(seconds: int, as_json: bool) -> None:
    """Measure the costs of a group's parts in ZooKeeper: znodes, bytes, watches, requests and transactions.

    One embedded server (tickTime 2000, every write synced), default timeouts, coordinator and fetchers in threads of
    this process, each with its own session. The figures are from the server's `mntr` and `srvr`.
    """
    logging.getLogger("coordinator").setLevel(logging.ERROR)
    logging.getLogger("consumer").setLevel(logging.ERROR)
    if not as_json:
        click.echo("".join(f"{name:>15}" if name != "what" else f"{name:<46}" for name in Row._fields))
    with tempfile.TemporaryDirectory() as name, Ensemble(Path(name) / "zk", EnsembleConfig(1, 2000)) as ensemble:
        ensemble.wait_healthy()
        for row in _rows(ensemble.servers[0], ensemble.hosts, Path(name) / "segments", float(seconds)):
            click.echo(json.dumps(row._asdict()) if as_json else _line(row))


def _rows(server: Server, hosts: str, segments: Path, seconds: float) -> Iterator[Row]:
    few, many = Group(f"{hosts}/few", segments / "few"), Group(f"{hosts}/many", segments / "many")
    try:
        yield from _nodes(server, few, seconds)
        yield from _idle(server, few, many, seconds)
        yield from _load(server, few, FEW, SLOTS, seconds)
        yield from _query(server, few, seconds)
    finally:
        few.close()
        many.close()


def _nodes(server: Server, few: Group, seconds: float) -> Iterator[Row]:
    before, quiet = _settled(server), watched(server, seconds)
    few.node()
    elected, with_elected = _settled(server), watched(server, seconds)
    yield _row("a node, elected, no group", elected.since(before), _less(with_elected, quiet))
    few.node()
    both, with_both = _settled(server), watched(server, seconds)
    yield _row("a node, standby", both.since(elected), _less(with_both, with_elected))


def _idle(server: Server, few: Group, many: Group, seconds: float) -> Iterator[Row]:
    topics, first, second = {}, {}, {}
    many.node()
    for group, partitions in ((few, FEW), (many, MANY)):
        before = _settled(server)
        create_topic(group.store, Brokers(), "t", partitions)
        topics[partitions] = _settled(server).since(before)
        group.driver()
        before = _settled(server)
        group.slots(1)
        one = _settled(server)
        group.slots(2)  # the first rebalance revokes every partition once
        first[partitions], second[partitions] = one.since(before), _settled(server).since(one)
    yield _row("a partition of a topic", _each(topics))
    yield _row("a partition that a fetcher runs", _each(first))
    yield _row("the offset of a partition that was given up", _each(second))
    two, with_two = figures(server), watched(server, seconds)
    few.slots(SLOTS)
    all_, with_all = _settled(server), watched(server, seconds)
    yield _row("a fetcher, idle", all_.since(two), _less(with_all, with_two), by=SLOTS - 2)
    many.slots(SLOTS)
    before, quiet = _settled(server), watched(server, SETTLE_S)
    many.slots(SLOTS + 1)
    joined = _settled(server).since(before)
    yield Row(
        f"a join: {SLOTS} to {SLOTS + 1} fetchers, {MANY} partitions",
        requests=joined.requests - quiet.requests * joined.at_s / quiet.at_s,
        transactions=joined.transactions,
    )


def _load(server: Server, group: Group, partitions: int, fetchers: int, seconds: float) -> Iterator[Row]:
    quiet = watched(server, seconds)
    group.log.flow(True)
    time.sleep(SETTLE_S)
    sealed, before = group.segments(), figures(server)
    time.sleep(seconds)
    busy, new = figures(server).since(before), group.segments() - sealed
    group.log.flow(False)
    each = f"{partitions // fetchers} partitions a fetcher"
    yield _row(
        f"a fetcher that seals {new / fetchers / busy.at_s:.1f} times a second", None, _less(busy, quiet), fetchers
    )
    yield Row(f"a segment, {each}", busy.znodes / new, data_bytes=busy.data_bytes / new)


def _query(server: Server, group: Group, seconds: float) -> Iterator[Row]:
    planner = group.planner()
    segments, before = group.segments(), _settled(server)
    start = planner.initial()
    end = planner.latest(start)
    planner.plan(start, end)
    began = figures(server).since(before)
    yield _row(f"a query that begins, {segments} segments", began)._replace(requests=began.requests)
    wait_for(lambda: planner.latest(end) == end and group.segments() == 0, TIMEOUT_S, "finished segments are collected")
    _settled(server)
    quiet, first = watched(server, seconds), figures(server)
    for _ in range(TRIGGERS):
        planner.latest(end)
        time.sleep(seconds / TRIGGERS)
    busy = figures(server).since(first)
    more = busy.requests - quiet.requests * busy.at_s / quiet.at_s
    yield Row("a trigger of a query, nothing new", requests=more / TRIGGERS)
    planner.close()


def _settled(server: Server) -> Figures:
    time.sleep(SETTLE_S)
    return figures(server)


def _less(busy: Figures, quiet: Figures) -> Figures:
    """The difference between `busy` and `quiet`, for the same duration."""
    return busy.since(quiet)._replace(at_s=busy.at_s)


def _each(found: Mapping[int, Figures]) -> Figures:
    """The cost per partition, of `MANY` - `FEW` partitions."""
    return Figures(*(value / (MANY - FEW) for value in found[MANY].since(found[FEW])))


def _row(what: str, came: Figures | None, rate: Figures | None = None, by: int = 1) -> Row:
    row = Row(what)
    if came is not None:
        row = row._replace(
            znodes=came.znodes / by,
            ephemerals=came.ephemerals / by,
            watches=came.watches / by,
            data_bytes=came.data_bytes / by,
        )
    if rate is not None:
        row = row._replace(
            requests_s=rate.requests / rate.at_s / by,
            transactions_s=rate.transactions / rate.at_s / by,
        )
    return row


def _line(row: Row) -> str:
    cells = [f"{'-' if value is None else f'{value:,.2f}':>15}" for value in row[1:]]
    return f"{row.what:<46}" + "".join(cells)


if __name__ == "__main__":
    run(main, "scripts/sizing")
