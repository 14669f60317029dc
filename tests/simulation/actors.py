"""What runs inside the simulated processes: the product's own entry points, and the little that calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from tests.simulation.assignors import Troubles
from tests.simulation.parts import SharedDisk, SimLog, ranges_in
from zk_group.consumer.assignment.base import ClientAssignor
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer, Record
from zk_group.consumer.errors import AssignmentFailed, CommitFailed, DrainFailed, FencedInstanceId, SegmentError
from zk_group.consumer.metrics import ConsumerMetrics
from zk_group.consumer.sealing.segment_check import sweep
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.fetchers.slot import PoolPost, Slot
from zk_group.consumer.streaming.source.data_source import records
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import Planner
from zk_group.consumer.streaming.source.query_znode import QueryRemoved, QueryTakenOver
from zk_group.consumer.streaming.source.segment_index import SourceOffset
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.assignors.registry import BUILT_IN
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.term.metrics import CoordinatorMetrics
from zk_group.coordinator.zk.errors import CoordinatorError, StoreError
from zk_group.coordinator.zk.runtime import Runtime
from zk_group.coordinator.zk.store import StoreFactory
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

POLL_MS = 500


class Actor(Protocol):
    """What a process runs.

    :ivar kind: for the history: `node`, `consumer`, `slot`, `driver`, `query` or `liar`.
    :ivar is_stuck: whether it does nothing until this is False again. Its session lives.
    """

    kind: str
    is_stuck: bool = False

    def names(self) -> dict[str, str]:
        """Its group, consumer and query, where it has them."""

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        """Live; why it ended."""

    def stop(self) -> None:
        """End soon, and cleanly."""


@dataclass
class NodeActor(Actor):
    """A coordinator service."""

    config: CoordinatorConfig
    disk: SharedDisk
    assignors: Mapping[str, Assignor] = field(default_factory=lambda: BUILT_IN)
    kind: str = "node"
    service: CoordinatorService | None = None

    def names(self) -> dict[str, str]:
        return {}

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        self.service = CoordinatorService(
            self.config, open_store, runtime, self.assignors, CoordinatorMetrics(), remove_file=self.disk.unlink
        )
        self.service.run()
        return "stopped"

    def stop(self) -> None:
        if self.service is not None:
            self.service.stop()


@dataclass
class ApplicationActor(Actor, Callbacks):
    """An application with a consumer: it polls, works a little, and commits now and then.

    :ivar work_s: seconds between polls.
    :ivar commit_every: polls between commits.
    :ivar assignors: of a member that may decide the assignment; `troubles` is what they are about to do.
    :ivar wanted: what it is to subscribe to from the next poll on.
    """

    config: ConsumerConfig
    subscription: Subscription
    log: SimLog
    work_s: float
    commit_every: int
    kind: str = "consumer"
    is_stuck: bool = False
    assignors: Sequence[ClientAssignor] = ()
    troubles: Troubles = field(default_factory=Troubles)
    wanted: Subscription | None = None
    _is_ending: bool = False

    def names(self) -> dict[str, str]:
        return {"group": self.config.group, "consumer": self.config.consumer}

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        consumer = Consumer(
            self.config,
            self.subscription,
            self,
            source=self.log,
            open_store=open_store,
            runtime=runtime,
            metrics=ConsumerMetrics(),
            assignors=self.assignors,
        )
        polls = 0
        self.met(consumer)
        try:
            while not self._is_ending:
                if self.wanted is not None:
                    self.subscription, self.wanted = self.wanted, None
                    consumer.subscribe(self.subscription)
                with suppress(AssignmentFailed, DrainFailed):
                    self.took(consumer, consumer.poll(POLL_MS))
                polls += 1
                if polls % self.commit_every == 0 and not (self.config.region or self.config.enable_auto_commit):
                    self._commit(consumer)
                runtime.sleep(self.work_s)
                while self.is_stuck:
                    runtime.sleep(0.5)
        except FencedInstanceId as over:
            consumer.close()
            return f"fenced: {over}"
        consumer.close()
        return "left"

    def met(self, consumer: Consumer) -> None:
        """The consumer is there."""

    def took(self, consumer: Consumer, found: Mapping[TopicPartition, Sequence[Record]]) -> None:
        """Take in what a poll has returned."""

    def _commit(self, consumer: Consumer) -> None:
        try:
            consumer.commit()
        except CommitFailed:
            return  # the next poll tells what became of the partitions

    def stop(self) -> None:
        self._is_ending = True


@dataclass
class SlotTask(Actor):
    """A Spark task that runs a fetcher slot."""

    spec: SlotSpec
    log: SimLog
    disk: SharedDisk
    kind: str = "slot"
    slot: Slot | None = None

    def names(self) -> dict[str, str]:
        return {"group": self.spec.config.group, "consumer": self.spec.config.consumer(self.spec.number)}

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        self.slot = Slot(self.spec, self.log, open_store, runtime, self.disk)
        return str(self.slot.run()["reason"])

    def stop(self) -> None:
        if self.slot is not None:
            self.slot.stop("signal 15")


@dataclass
class DriverActor(Actor):
    """What a fetcher pool keeps in ZooKeeper and on the disk while its driver lives."""

    config: SlotConfig
    disk: SharedDisk
    pool_run: str
    kind: str = "driver"
    _is_ending: bool = False

    def names(self) -> dict[str, str]:
        return {"group": self.config.group}

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        post = PoolPost(open_store, runtime, self.config.group, self.config.pool, self.pool_run)
        rounds = 0
        while not self._is_ending:
            rounds += 1
            try:
                post.keep(self.config.slots)
                if rounds % 5 == 0:
                    sweep(post.store(), runtime, self.disk, self.config.group)
            except FencedInstanceId as over:
                return f"fenced: {over}"
            except CoordinatorError:
                pass  # it tries again
            runtime.sleep(1.0)
        post.close()
        return "stopped"

    def stop(self) -> None:
        self._is_ending = True


@dataclass
class QueryCheckpoint:
    """A query's checkpoint and its sink, both durable, as Spark keeps them.

    :ivar planned: start and end of every batch that was planned, the first being number 0.
    :ivar planners: the process that planned each.
    :ivar finished: batches that the sink has.
    """

    query: str
    planned: list[tuple[SourceOffset, SourceOffset]] = field(default_factory=list)
    finished: int = 0
    planners: list[str] = field(default_factory=list)

    def older(self, batches: int) -> QueryCheckpoint:
        """As it stood so many batches ago."""
        finished = max(0, self.finished - batches)
        return QueryCheckpoint(self.query, self.planned[:finished], finished, self.planners[:finished])


POINTS = ("listed", "logged", "planned", "read", "sunk")
"""Of a batch, between which a query may end: its offset is in the log from the second on, the last is before the commit
log has it."""


class ConcurrentRun(Exception):
    """Spark's logs of a checkpoint take a batch once: whoever comes second ends."""


@dataclass
class QueryActor(Actor):
    """A streaming query's driver: the order of calls is Spark's micro-batch execution.

    :ivar life: the process that it is.
    :ivar plans: how often each batch is planned: twice for `df.union(df)`.
    :ivar at_point: called with each of `POINTS`.
    """

    config: SourceConfig
    checkpoint: QueryCheckpoint
    disk: SharedDisk
    trigger_s: float
    kind: str = "query"
    life: str = ""
    plans: int = 1
    at_point: Callable[[str], object] | None = None
    _is_ending: bool = False

    def names(self) -> dict[str, str]:
        return {"group": self.config.group, "query": self.checkpoint.query}

    def run(self, runtime: Runtime, open_store: StoreFactory) -> str:
        planner = Planner(self.config, open_store, runtime, lambda url: self.disk)
        run = runtime.random_id()
        try:
            while not self._is_ending:
                if not self._batch(planner, runtime, run):
                    runtime.sleep(self.trigger_s)
        except (SegmentError, QueryTakenOver, QueryRemoved) as error:
            at = {"batch": self.checkpoint.finished} if self.at_point is not None else {}
            runtime.record("query-failed", **self.names(), **self._planned(), **at, why=str(error))
            return f"failed: {error}"
        except ConcurrentRun:
            return "another run of the query writes the same checkpoint"
        except StoreError as error:
            return f"gave up: {error}"
        finally:
            planner.close()
        return "stopped"

    def _batch(self, planner: Planner, runtime: Runtime, run: str) -> bool:
        """Plan one batch, or take up the one that was not finished; whether there was anything to do."""
        checkpoint = self.checkpoint
        number = checkpoint.finished
        if number == len(checkpoint.planned):
            start = checkpoint.planned[-1][1] if checkpoint.planned else planner.initial()
            end = planner.latest(start)
            if end == start:
                return False
            self._reach(runtime, "listed")
            if len(checkpoint.planned) != number:
                raise ConcurrentRun
            checkpoint.planned.append((start, end))
            checkpoint.planners.append(self.life)
            runtime.sleep(0.001)
            self._reach(runtime, "logged")
        start, end = checkpoint.planned[number]
        if number == 0 and self.at_point is not None and checkpoint.planners[0] != self.life:
            start = planner.initial()  # no log has it
        for _ in range(self.plans):
            parts = planner.plan(start, end)
        self._reach(runtime, "planned")
        batches: list[pa.RecordBatch] = []
        names = []
        for sealed in (one for part in parts for one in part):
            names.append(sealed.name)
            batches += records((sealed,), include_headers=True)
        runtime.sleep(0.001)
        self._reach(runtime, "read")
        self._sink(runtime, run, number, names, ranges_in(batches))
        return True

    def _reach(self, runtime: Runtime, point: str) -> None:
        if self.at_point is not None:
            self.at_point(point)
            runtime.sleep(0.001)

    def _planned(self) -> dict[str, str]:
        """Who planned the batch that is not finished, for the history, unless that was this process."""
        planners = self.checkpoint.planners[self.checkpoint.finished :]
        return {"planned": planners[0]} if planners and planners[0] != self.life else {}

    def _sink(
        self, runtime: Runtime, run: str, number: int, names: Sequence[str], ranges: list[dict[str, Any]]
    ) -> None:
        """The sink takes a batch by its number, in one step with the commit log, but for a crash between."""
        if self.checkpoint.finished != number:
            raise ConcurrentRun
        start, end = self.checkpoint.planned[number]
        after = max(start.czxid, end.begun) if number == 0 else start.czxid
        runtime.record(
            "batch",
            **self.names(),
            run=run,
            batch=number,
            after=after,
            upto=end.czxid,
            segments=list(names),
            rows=ranges,
            **self._planned(),
            **({} if self.config.fail_on_data_loss else {"fail_on_data_loss": False}),
        )
        self._reach(runtime, "sunk")
        if self.checkpoint.finished != number:
            raise ConcurrentRun
        self.checkpoint.finished = number + 1

    def stop(self) -> None:
        self._is_ending = True
