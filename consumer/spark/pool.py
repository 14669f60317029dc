"""A pool of fetcher slots in Spark executors, started, watched over and stopped from the driver.

Each slot is a Spark job of one task, so that what befalls one slot touches no other, and a pool that is resized leaves
those alone that stay. A supervisor for each starts it again, with backoff, whenever it ends unasked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Any, Self

from pyspark import InheritableThread, SparkContext
from pyspark.resource import ResourceProfile
from pyspark.sql import SparkSession

import coordinator
from coordinator.zk.config import load, require
from coordinator.zk.errors import CoordinatorError, Refused, Retryable, StoreError, UsageError
from coordinator.zk.kazoo_store import kazoo_factory
from coordinator.zk.names import MAX_NAME, shown
from coordinator.zk.records import BLACK_LIST, STATIC, WHITE_LIST
from coordinator.zk.runtime import Runtime, ThreadRuntime

from ..config import Subscription
from ..errors import FencedInstanceId
from ..segment_files import SegmentFolder
from .config import SlotConfig, SlotSpec
from .post import UNANSWERED, PoolPost
from .resources import cluster_of, context_of, slot_profile, wait_for_executors
from .ship import ship
from .slot import run_slot
from .supervisor import SlotStatus, SlotSupervisor, reason_of
from .sweep import sweep

log = logging.getLogger(__name__)

KEEP_S = 0.5
SWEEP_S = 600.0
CANCEL_S = 5.0
LOOK_S = 0.1
POST_TRIES = 10

INHERITED = ("spark.jobGroup.id", "spark.job.interruptOnCancel", "spark.job.tags", "spark.sql.execution.id")
"""What a slot's job must not take over from the thread that started it: who ends a query that resizes the pool in
`foreachBatch` would cancel the slots with it."""


class FetcherPool:
    """Fetchers of one group in the executors of one Spark application.

    :param topics: topic -> threads a slot, or just topic names; or one regular expression as `white_list` or
        `black_list`.
    :param options: any field of `SlotConfig`; they also come from the environment, as `ZK_GROUP_SLOTS`. The pool's
        name is made from the application's: an application that is started again takes over from what is left of it,
        and two applications in one group need two names (option `pool`).
    :raises UsageError: when an option is wrong, or the Spark application cannot run it.
    """

    def __init__(
        self,
        spark: SparkSession,
        topics: Mapping[str, int] | Iterable[str] | None = None,
        white_list: str | None = None,
        black_list: str | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> None:
        self._sc: SparkContext = context_of(spark)
        self._runtime = runtime or ThreadRuntime()
        self._subscription = subscription_of(topics, white_list, black_list)
        self.config = slot_config(options, pool_name(str(self._sc.appName)))
        self._cluster = cluster_of(self._sc)
        if refusal := self._cluster.refusal(self.config.slots, self.config.slot_cpus):
            raise UsageError(refusal)
        self._folder = SegmentFolder(self.config.segments_dir)
        self.run = self._runtime.random_id()
        config = self.config
        opener = kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000)
        self._post = PoolPost(opener, self._runtime, config.group, config.pool, self.run)
        self._posting = self._runtime.lock()
        self._stopping = self._runtime.event()
        self._closed = self._runtime.event()
        self._resizing = self._runtime.lock()
        self._keeper: InheritableThread | None = None
        self._profile: ResourceProfile | None = None
        self._slots = {number: self._supervisor(number) for number in range(config.slots)}
        self._is_fenced = False
        self._is_released = True
        self.problem: str | None = None

    # ---- what an application calls

    def start(self) -> Self:
        """Start all slots, once the executors have come. They register within a second or two.

        :raises ZooKeeperUnreachable: when no server answers.
        :raises CoordinatorError: when no executor comes.
        """
        require(self._keeper is None, "a pool starts once: make another one")
        wait_for_executors(self._sc, self._cluster, self._runtime, self.config.executors_timeout_ms / 1000)
        ship(self._sc)
        self._profile = slot_profile(self._cluster, self.config.slot_cpus)
        try:
            self._begin_post()
        except CoordinatorError:
            self._post.close()
            raise
        self._keeper = InheritableThread(target=self._keep, name="pool-keeper", daemon=True)
        self._keeper.start()
        for slot in self._slots.values():
            slot.start()
        log.info("pool started: group=%s pool=%s slots=%d", self.config.group, self.config.pool, self.config.slots)
        return self

    def resize(self, slots: int, timeout_s: float = 30.0) -> bool:
        """Run `slots` slots from now on. Those that stay are not disturbed: only the group is rebalanced.

        Of fewer slots, those with the highest numbers seal and leave; after `timeout_s` they are cancelled. One call is
        carried out after the other.

        :returns: whether every consumer that had to leave is gone from the group.
        :raises UsageError: when there cannot be so many slots, or the pool does not run; it stays as it is.
        """
        self._check_size(slots)
        deadline = self._runtime.monotonic() + timeout_s
        with self._resizing:
            require(self._keeper is not None, "only a pool that runs can be resized: start it first")
            require(not self._stopping.is_set(), f"the pool has stopped{f': {self.problem}' if self.problem else ''}")
            before, self.config = self.config.slots, replace(self.config, slots=slots)
            leaving = [slot for number, slot in self._slots.items() if number >= slots]
            for slot in leaving:
                slot.end()
            self._tell()
            is_released = self._end(leaving, deadline)
            if self._stopping.is_set():
                return is_released  # `stop` waits for all that there are
            self._slots = {number: slot for number, slot in self._slots.items() if number < slots}
            for number in range(len(self._slots), slots):
                self._add(number)
            log.info("pool resized: group=%s pool=%s from=%d to=%d", self.config.group, self.config.pool, before, slots)
            return is_released

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Let every slot seal and leave; then, after `timeout_s`, cancel what still runs.

        :returns: whether every consumer of the pool is gone from the group, or another driver's by now.
        """
        if self._keeper is None or self._closed.is_set():
            return self._is_released
        deadline = self._runtime.monotonic() + timeout_s
        self._end_all()
        self._tell()
        with self._resizing:
            self._is_released = self._end(list(self._slots.values()), deadline, is_stop=True)
        self._closed.set()
        self._keeper.join(CANCEL_S)
        self._post.close()
        log.info("pool stopped: group=%s pool=%s released=%s", self.config.group, self.config.pool, self._is_released)
        return self._is_released

    def status(self) -> list[SlotStatus]:
        """All slots, in order."""
        slots = self._slots
        return [slots[number].status for number in sorted(slots)]

    def sweep(self) -> int:
        """Remove segment files that nobody will ever name; how many. The pool does so itself every ten minutes.

        :raises StoreError: when ZooKeeper did not answer.
        :raises OSError: when the segments folder did not.
        """
        return sweep(self._post.store(), self._runtime, self._folder, self.config.group)

    def __enter__(self) -> Self:
        return self if self._keeper is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- slots

    def _check_size(self, slots: int) -> None:
        require(type(slots) is int, f"a pool has a whole number of slots, not {shown(str(slots))}")
        replace(self.config, slots=slots)
        if refusal := self._cluster.refusal(slots, self.config.slot_cpus):
            raise UsageError(refusal)

    def _supervisor(self, number: int) -> SlotSupervisor:
        return SlotSupervisor(number, self.config.consumer(number), self._runtime, self._run_job, self._is_over)

    def _add(self, number: int) -> None:
        slot = self._supervisor(number)
        self._slots = {**self._slots, number: slot}
        if self._stopping.is_set():  # since the pool was asked to grow
            slot.end()
        slot.start()

    def _end_all(self) -> None:
        self._stopping.set()
        for slot in self._slots.values():
            slot.end()

    def _end(self, slots: Sequence[SlotSupervisor], deadline: float, is_stop: bool = False) -> bool:
        """Wait for slots that were told to end, and cancel those that still run at `deadline`.

        Unless `is_stop`, it gives up when the pool is stopped meanwhile.

        :returns: whether all of them are released.
        """
        running = [slot for slot in slots if not self._joined(slot, deadline, is_stop)]
        for slot in running if is_stop or not self._stopping.is_set() else ():
            log.warning("slot cancelled: consumer=%s", slot.status.consumer)
            self._sc.cancelJobsWithTag(self._tag(slot.number))
            slot.join(CANCEL_S)
        return self._is_fenced or self._wait_released([slot.status.consumer for slot in slots], deadline, is_stop)

    def _joined(self, slot: SlotSupervisor, deadline: float, is_stop: bool) -> bool:
        while not slot.join(min(LOOK_S, deadline - self._runtime.monotonic())):
            if self._is_late(deadline, is_stop):
                return False
        return True

    def _is_late(self, deadline: float, is_stop: bool) -> bool:
        return self._runtime.monotonic() >= deadline or (self._stopping.is_set() and not is_stop)

    def _run_job(self, number: int) -> str:
        """The slot's life; why it ended."""
        config = self.config
        spec = SlotSpec(config, self._subscription, number, self.run, coordinator.__version__)
        try:
            for name in INHERITED:
                self._sc.setLocalProperty(name, None)  # type: ignore[arg-type]
            self._sc.addJobTag(self._tag(number))
            self._sc.setJobDescription(f"{config.consumer(number)} of group {config.group}")
            rdd = self._sc.parallelize([spec], 1)
            if self._profile is not None:
                rdd = rdd.withResources(self._profile)
            results = rdd.map(run_slot).collect()
            return str(results[0]["reason"])
        except Exception as error:  # noqa: BLE001  whatever ended the job, the slot is started again
            return reason_of(error)

    def _tag(self, number: int) -> str:
        return f"zk-group-{self.run}-slot-{number}"

    def _is_over(self) -> bool:
        """Whether the Spark application has ended."""
        return self._sc._jsc is None or bool(self._sc._jsc.sc().isStopped())

    # ---- the pool's znode

    def _begin_post(self) -> None:
        for _ in range(POST_TRIES):
            try:
                return self._post.keep(self.config.slots)
            except (Retryable, Refused) as error:
                log.info("the pool's znode is written again: pool=%s reason=%s", self.config.pool, error)
            self._runtime.sleep(0.1)
        raise StoreError(f"the znode of pool {self.config.pool} keeps changing: does another driver start it too?")

    def _keep(self) -> None:
        """Keep the znode, and sweep now and then, until the pool is closed."""
        swept_at = self._runtime.monotonic()
        while not self._closed.wait(KEEP_S):
            self._tell()
            if self._runtime.monotonic() - swept_at >= SWEEP_S:
                swept_at = self._runtime.monotonic()
                self._sweep_quietly()

    def _tell(self) -> None:
        """Make the znode say which slots shall run; what fails now is done by the keeper later."""
        with self._posting:
            try:
                self._post.keep(0 if self._stopping.is_set() else self.config.slots)
                self.problem = None
            except FencedInstanceId as over:
                self.problem = str(over)
                self._is_fenced = True
                self._end_all()
            except UNANSWERED as error:
                self.problem = str(error)
                log.info("pool is posted later: pool=%s reason=%s", self.config.pool, error)

    def _sweep_quietly(self) -> None:
        try:
            self.sweep()
        except (OSError, *UNANSWERED) as error:
            log.warning("orphans are swept later: group=%s reason=%s", self.config.group, error)

    def _wait_released(self, consumers: list[str], deadline: float, is_stop: bool) -> bool:
        """Wait until none of them holds anything; False when that took too long."""
        left = consumers
        while left:
            try:
                with self._posting:
                    left = self._post.unreleased(consumers)
            except UNANSWERED as error:
                log.info("not known yet what is released: reason=%s", error)
            if left and self._is_late(deadline, is_stop):
                log.warning("not released in time: group=%s consumers=%s", self.config.group, left)
                return False
            if left:
                self._runtime.sleep(0.05)
        return True


def pool_name(application: str) -> str:
    """A name for the pool of a Spark application."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", application).strip("-")
    return name[: MAX_NAME - 20] or "spark"


def subscription_of(
    topics: Mapping[str, int] | Iterable[str] | None, white_list: str | None, black_list: str | None
) -> Subscription:
    """
    :raises UsageError: unless exactly one is given.
    """
    given = [value for value in (topics, white_list, black_list) if value is not None]
    require(len(given) == 1, "give exactly one of topics, white_list and black_list")
    if white_list is not None:
        return Subscription({white_list: 1}, WHITE_LIST)
    if black_list is not None:
        return Subscription({black_list: 1}, BLACK_LIST)
    require(not isinstance(topics, str), "topics is a list of names, or an object topic -> threads")
    named = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics or (), 1)
    return Subscription(named, STATIC)


def slot_config(options: Mapping[str, Any], pool: str) -> SlotConfig:
    """
    :raises UsageError: when an option is unknown, missing or wrong.
    """
    known = [field.name for field in fields(SlotConfig)]
    for name in options:
        require(name in known, f"a pool has no option {shown(name)}: known are {', '.join(known)}")
    given = {"pool": pool, **{name: value for name, value in options.items() if value is not None}}
    return load(SlotConfig, given)
