"""`scripts/sizing`: adds the parts of a group one by one, and measures the server's figures after each."""

from __future__ import annotations

import json
import logging
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import pyarrow as pa
from common import run

from zk_group.consumer.config import Subscription
from zk_group.consumer.logs.base import LOG_SCHEMA, Fetched, PullLog
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.fetchers.slot import PoolPost, Slot
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import Planner
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.zk.embedded.ensemble import Ensemble, EnsembleConfig, Server
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory, open_kazoo
from zk_group.coordinator.zk.znodes.group_state import STABLE, GroupState
from zk_group.coordinator.zk.znodes.paths import Brokers, GroupPaths
from zk_group.drills.base.processes import wait_for

PATHS = GroupPaths("g")
TIMEOUT_S = 120.0
RECORD_EVERY_S = 0.05
SETTLE_S = 2.0
FEW, MANY = 64, 1024
SLOTS = 8
TRIGGERS = 20


class Figures(NamedTuple):
    """One sample of a server's figures.

    :ivar data_bytes: paths and data of all znodes (`zk_approximate_data_size`).
    :ivar requests: packets from clients so far, pings included.
    :ivar transactions: writes so far; a multi counts as one, and so do the start and the end of a session.
    """

    at_s: float
    znodes: float
    ephemerals: float
    watches: float
    data_bytes: float
    requests: float
    transactions: float

    def since(self, before: Figures) -> Figures:
        """The difference since `before`."""
        return Figures(*(after - earlier for after, earlier in zip(self, before, strict=True)))


def figures(server: Server) -> Figures:
    """Take a sample."""
    monitored = dict(re.findall(r"^(zk_\w+)\t(\d+)", server.ask("mntr", 5.0), re.MULTILINE))
    zxid = re.search(r"^Zxid: 0x([0-9a-f]+)", server.ask("srvr", 5.0), re.MULTILINE)
    if zxid is None or "zk_znode_count" not in monitored:
        raise RuntimeError("the server gave no figures")
    return Figures(
        at_s=time.monotonic(),
        znodes=int(monitored["zk_znode_count"]),
        ephemerals=int(monitored["zk_ephemerals_count"]),
        watches=int(monitored["zk_watch_count"]),
        data_bytes=int(monitored["zk_approximate_data_size"]),
        requests=int(monitored["zk_packets_received"]),
        transactions=int(zxid[1], 16) & 0xFFFFFFFF,
    )


def watched(server: Server, seconds: float) -> Figures:
    """The difference over `seconds`."""
    before = figures(server)
    time.sleep(seconds)
    return figures(server).since(before)


class TrickleLog(PullLog):
    """A log with a new record in every partition each 50 ms from `began` until `ended`."""

    began = ended = float("inf")

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return 0

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        return int(max(0.0, min(time.monotonic(), self.ended) - self.began) / RECORD_EVERY_S)

    def fetch(self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int) -> Fetched:
        end = self.latest(topic, topic_id, partition)
        if end <= offset:
            return Fetched([], offset)
        record = {"value": b"x" * 100, "topic": topic, "partition": partition, "timestamp": 0, "timestampType": 0}
        rows = [{**record, "offset": each} for each in range(offset, end)]
        return Fetched([pa.RecordBatch.from_pylist(rows, schema=LOG_SCHEMA)], end)

    def close(self) -> None:
        pass


class Group:
    """The group `g` over topic `t`."""

    def __init__(self, zk: str, segments: Path) -> None:
        self.zk = zk
        self.log = TrickleLog()
        self.store = open_kazoo(zk, 10_000)
        self._segments = SegmentFolder(str(segments)).url
        self._nodes: list[CoordinatorService] = []
        self._slots: list[Slot] = []
        self._threads: list[threading.Thread] = []
        self._post = PoolPost(kazoo_factory(zk, 10_000), ThreadRuntime(), "g", "p", "run")

    def node(self) -> None:
        """Start another coordinator node; the first is elected."""
        config = CoordinatorConfig(zk=self.zk, node=f"node-{len(self._nodes)}", segment_retention_ms=0)
        service = CoordinatorService(config, kazoo_factory(self.zk, config.session_timeout_ms), ThreadRuntime())
        self._nodes.append(service)
        self._start(service.run)
        wait_for(lambda: self._nodes[0].term is not None, TIMEOUT_S, "a node is elected")

    def driver(self) -> None:
        """The znode of a pool, as its driver maintains it."""
        self._post.keep(1000)

    def slots(self, count: int) -> None:
        """Start slots up to this total; returns once the group is Stable."""
        for number in range(len(self._slots), count):
            config = SlotConfig(zk=self.zk, group="g", pool="p", log_dir="none", segments_dir=self._segments)
            spec = SlotSpec(config, Subscription({"t": 1}), number, "run", "")
            opener = kazoo_factory(self.zk, config.session_timeout_ms)
            self._slots.append(Slot(spec, self.log, opener, ThreadRuntime()))
            self._start(self._slots[-1].run)
        wait_for(lambda: self._is_stable(count), TIMEOUT_S, f"{count} fetchers are Stable")

    def planner(self) -> Planner:
        """The planner of a query."""
        config = SourceConfig(zk=self.zk, group="g", query="q")
        return Planner(config, kazoo_factory(self.zk, config.session_timeout_ms), ThreadRuntime())

    def segments(self) -> int:
        """The number of segments."""
        listing = self.store.children(PATHS.segments)
        return len(listing.names) if listing else 0

    def close(self) -> None:
        """Stop all members."""
        for slot in self._slots:
            slot.stop("measured")
        for service in self._nodes:
            service.stop()
        for thread in self._threads:
            thread.join(20)
        self._post.close()
        self.store.close()

    def _start(self, function: Callable[[], object]) -> None:
        self._threads.append(threading.Thread(target=function, daemon=True))
        self._threads[-1].start()

    def _is_stable(self, members: int) -> bool:
        node = self.store.get(PATHS.state)
        if node is None:
            return False
        state = GroupState.parse(PATHS.state, node.data)
        return state.state == STABLE and len(state.target) == members


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
    logging.getLogger("zk_group.coordinator").setLevel(logging.ERROR)
    logging.getLogger("zk_group.consumer").setLevel(logging.ERROR)
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
    group.log.began = time.monotonic()
    time.sleep(SETTLE_S)
    sealed, before = group.segments(), figures(server)
    time.sleep(seconds)
    busy, new = figures(server).since(before), group.segments() - sealed
    group.log.ended = time.monotonic()
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
        counts = {name: getattr(came, name) / by for name in ("znodes", "ephemerals", "watches", "data_bytes")}
        row = row._replace(**counts)
    if rate is not None:
        second = rate.at_s * by
        row = row._replace(requests_s=rate.requests / second, transactions_s=rate.transactions / second)
    return row


def _line(row: Row) -> str:
    cells = [f"{'-' if value is None else f'{value:,.2f}':>15}" for value in row[1:]]
    return f"{row.what:<46}" + "".join(cells)


if __name__ == "__main__":
    run(main, "scripts/sizing")
