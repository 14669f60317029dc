"""One group on a real ZooKeeper, with nodes and fetchers in threads of this process, each with its own session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from consumer.config import Subscription
from consumer.logs.base import LOG_SCHEMA, Fetched
from consumer.sealing.segment_files import SegmentFolder
from consumer.spark.fetchers.config import SlotConfig, SlotSpec
from consumer.spark.fetchers.slot import PoolPost, Slot
from consumer.spark.source.options import SourceConfig
from consumer.spark.source.planner import Planner
from coordinator.service import CoordinatorService
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory, open_kazoo
from coordinator.zk.znodes.group_state import STABLE, GroupState
from coordinator.zk.znodes.paths import GroupPaths
from drills.base.waiting import wait_for

PATHS = GroupPaths("g")
TIMEOUT_S = 120.0
RECORD_EVERY_S = 0.05


class TrickleLog:
    """A log in which every partition gets a record each 50 ms while `flows`."""

    def __init__(self) -> None:
        self.flows = False
        self._flowed_s = 0.0
        self._since = time.monotonic()

    def flow(self, flows: bool) -> None:
        """Start or stop the records."""
        now = time.monotonic()
        self._flowed_s += (now - self._since) if self.flows else 0.0
        self.flows, self._since = flows, now

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return 0

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        return int((self._flowed_s + (time.monotonic() - self._since if self.flows else 0.0)) / RECORD_EVERY_S)

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        return 0

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        end = self.latest(topic, topic_id, partition)
        if end <= offset:
            return Fetched([], offset)
        count = end - offset
        columns = (
            [None] * count,
            [b"x" * 100] * count,
            [topic] * count,
            [partition] * count,
            list(range(offset, end)),
            [0] * count,
            [0] * count,
            [None] * count,
        )
        arrays = [pa.array(column, field.type) for column, field in zip(columns, LOG_SCHEMA, strict=True)]
        return Fetched([pa.RecordBatch.from_arrays(arrays, schema=LOG_SCHEMA)], end)

    def close(self) -> None:
        pass


class Group:
    """The group `g` over topic `t`."""

    def __init__(self, zk: str, segments: Path) -> None:
        self.zk = zk
        self.log = TrickleLog()
        self.store = open_kazoo(zk, 10_000)
        self._segments = SegmentFolder(str(segments)).url
        self._nodes: list[tuple[CoordinatorService, threading.Thread]] = []
        self._slots: list[tuple[Slot, threading.Thread]] = []
        self._post = PoolPost(kazoo_factory(zk, 10_000), ThreadRuntime(), "g", "p", "run")

    def node(self) -> None:
        """Start another coordinator node; the first is elected."""
        config = CoordinatorConfig(zk=self.zk, node=f"node-{len(self._nodes)}", segment_retention_ms=0)
        service = CoordinatorService(config, kazoo_factory(self.zk, config.session_timeout_ms), ThreadRuntime())
        self._nodes.append((service, _thread(service.run)))
        wait_for(lambda: self._nodes[0][0].term is not None, TIMEOUT_S, "a node is elected")

    def driver(self) -> None:
        """The znode of a pool, as its driver maintains it."""
        self._post.keep(1000)

    def slots(self, count: int) -> None:
        """Start slots up to this total; returns once the group is Stable."""
        for number in range(len(self._slots), count):
            config = SlotConfig(zk=self.zk, group="g", pool="p", log_dir="none", segments_dir=self._segments)
            spec = SlotSpec(config, Subscription({"t": 1}), number, "run", "")
            opener = kazoo_factory(self.zk, config.session_timeout_ms)
            slot = Slot(spec, self.log, opener, ThreadRuntime())
            self._slots.append((slot, _thread(slot.run)))
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
        for slot, _ in self._slots:
            slot.stop("measured")
        for service, _ in self._nodes:
            service.stop()
        for _, thread in (*self._slots, *self._nodes):
            thread.join(20)
        self._post.close()
        self.store.close()

    def _is_stable(self, members: int) -> bool:
        node = self.store.get(PATHS.state)
        if node is None:
            return False
        state = GroupState.parse(PATHS.state, node.data)
        return state.state == STABLE and len(state.target) == members


def _thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread
