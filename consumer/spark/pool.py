"""A pool of fetcher slots in Spark executors, started, watched over and stopped from the driver.

Each slot is a Spark job of one task, so that what befalls one slot touches no other. A thread for each starts it again,
with backoff, whenever it ends unasked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
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
from ..errors import Superseded
from ..segment_files import SegmentFolder
from .config import SlotConfig, SlotSpec
from .post import UNANSWERED, PoolPost
from .resources import cluster_of, context_of, slot_profile, wait_for_executors
from .ship import ship
from .slot import run_slot
from .sweep import sweep

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 30.0
GOOD_WHILE_S = 60.0
KEEP_S = 0.5
SWEEP_S = 600.0
CANCEL_S = 5.0
POST_TRIES = 10


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """One slot as the driver sees it.

    :ivar state: `new`, `running` (its job does), `waiting` (for its next attempt) or `ended`.
    :ivar attempts: jobs started so far.
    :ivar last_error: why the last job ended unasked, None when none did.
    """

    slot: int
    consumer: str
    state: str = "new"
    attempts: int = 0
    last_error: str | None = None


class FetcherPool:
    """Fetchers of one group in the executors of one Spark application.

    :param topics: topic -> threads a slot, or just topic names; or one regular expression as `white_list` or
        `black_list`.
    :param options: any field of `SlotConfig`; they also come from the environment, as `ZK_GROUP_SLOTS`. The pool's
        name is made from the application's: an application that is started again takes over from what is left of it.
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
        self._threads: list[InheritableThread] = []
        self._keeper: InheritableThread | None = None
        self._profile: ResourceProfile | None = None
        self._slots = {n: SlotStatus(n, config.consumer(n)) for n in range(config.slots)}
        self._is_superseded = False
        self._is_released = True
        self.problem: str | None = None

    # ---- what an application calls

    def start(self) -> Self:
        """Start all slots, once the executors have come. They register within a second or two.

        :raises ZooKeeperUnreachable: when no server answers.
        :raises CoordinatorError: when no executor comes.
        """
        require(not self._threads, "a pool starts once: make another one")
        wait_for_executors(self._sc, self._cluster, self._runtime, self.config.executors_timeout_ms / 1000)
        ship(self._sc)
        self._profile = slot_profile(self._cluster, self.config.slot_cpus)
        try:
            self._begin_post()
        except CoordinatorError:
            self._post.close()
            raise
        self._keeper = self._thread(self._keep, "pool-keeper")
        self._threads = [self._thread(self._supervisor(n), f"pool-slot-{n}") for n in self._slots]
        log.info("pool started: group=%s pool=%s slots=%d", self.config.group, self.config.pool, self.config.slots)
        return self

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Let every slot seal and leave; then, after `timeout_s`, cancel what still runs.

        :returns: whether every consumer of the pool is gone from the group, or another driver's by now.
        """
        if not self._threads or self._closed.is_set():
            return self._is_released
        deadline = self._runtime.monotonic() + timeout_s
        self._stopping.set()
        self._tell(0)
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._runtime.monotonic()))
        for number, thread in enumerate(self._threads):
            if thread.is_alive():
                log.warning("slot cancelled: consumer=%s", self.config.consumer(number))
                self._sc.cancelJobsWithTag(self._tag(number))
                thread.join(CANCEL_S)
        self._is_released = self._is_superseded or self._wait_released(deadline)
        self._closed.set()
        if self._keeper is not None:
            self._keeper.join(CANCEL_S)
        self._post.close()
        log.info("pool stopped: group=%s pool=%s released=%s", self.config.group, self.config.pool, self._is_released)
        return self._is_released

    def status(self) -> list[SlotStatus]:
        """All slots, in order."""
        return [self._slots[number] for number in sorted(self._slots)]

    def sweep(self) -> int:
        """Remove segment files that nobody will ever name; how many. The pool does so itself every ten minutes.

        :raises StoreError: when ZooKeeper did not answer.
        :raises OSError: when the segments folder did not.
        """
        return sweep(self._post.store(), self._runtime, self._folder, self.config.group)

    def __enter__(self) -> Self:
        return self if self._threads else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- one slot

    def _supervisor(self, number: int) -> Callable[[], None]:
        return lambda: self._supervise(number)

    def _supervise(self, number: int) -> None:
        """Run the slot's job, again and again, with backoff unless it ran for a good while."""
        backoff_s = FIRST_BACKOFF_S
        while not self._stopping.is_set() and not self._has_ended():
            started = self._runtime.monotonic()
            self._note(number, state="running", attempts=self._slots[number].attempts + 1)
            problem = self._run_job(number)
            if self._stopping.is_set():
                break
            if self._runtime.monotonic() - started >= GOOD_WHILE_S:
                backoff_s = FIRST_BACKOFF_S
            self._note(number, state="waiting", last_error=problem)
            log.warning("slot starts again: slot=%d in_s=%.1f reason=%s", number, backoff_s, problem)
            self._stopping.wait(backoff_s)
            backoff_s = min(LONGEST_BACKOFF_S, 2 * backoff_s)
        self._note(number, state="ended")

    def _run_job(self, number: int) -> str:
        """The slot's life; why it ended."""
        config = self.config
        spec = SlotSpec(config, self._subscription, number, self.run, coordinator.__version__)
        try:
            self._sc.addJobTag(self._tag(number))
            self._sc.setJobDescription(f"{config.consumer(number)} of group {config.group}")
            rdd = self._sc.parallelize([spec], 1)
            if self._profile is not None:
                rdd = rdd.withResources(self._profile)
            results = rdd.map(run_slot).collect()
            return str(results[0]["reason"])
        except Exception as error:  # noqa: BLE001  whatever ended the job, the slot is started again
            return reason_of(error)

    def _note(self, number: int, **changes: Any) -> None:
        self._slots[number] = replace(self._slots[number], **changes)

    def _tag(self, number: int) -> str:
        return f"zk-group-{self.run}-slot-{number}"

    def _has_ended(self) -> bool:
        """Whether the Spark application has."""
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
            self._tell(0 if self._stopping.is_set() else self.config.slots)
            if self._runtime.monotonic() - swept_at >= SWEEP_S:
                swept_at = self._runtime.monotonic()
                self._sweep_quietly()

    def _tell(self, slots: int) -> None:
        with self._posting:
            try:
                self._post.keep(slots)
                self.problem = None
            except Superseded as over:
                self.problem = str(over)
                self._is_superseded = True
                self._stopping.set()
            except UNANSWERED as error:
                self.problem = str(error)
                log.info("pool is posted later: pool=%s reason=%s", self.config.pool, error)

    def _sweep_quietly(self) -> None:
        try:
            self.sweep()
        except (OSError, *UNANSWERED) as error:
            log.warning("orphans are swept later: group=%s reason=%s", self.config.group, error)

    def _wait_released(self, deadline: float) -> bool:
        """Wait until no consumer of the pool holds anything; False when `deadline` came first."""
        left = consumers = [status.consumer for status in self.status()]
        while True:
            try:
                with self._posting:
                    if not (left := self._post.unreleased(consumers)):
                        return True
            except UNANSWERED as error:
                log.info("not known yet what is released: reason=%s", error)
            if self._runtime.monotonic() >= deadline:
                log.warning("not released in time: group=%s consumers=%s", self.config.group, left)
                return False
            self._runtime.sleep(0.05)

    def _thread(self, function: Callable[[], None], name: str) -> InheritableThread:
        thread = InheritableThread(target=function, name=name, daemon=True)
        thread.start()
        return thread


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


def reason_of(error: Exception) -> str:
    """One line of what ended a job: the last line of a Python task's traceback where there is one."""
    text = str(error)
    _, found, traceback = text.rpartition("Traceback (most recent call last):")
    if not found:
        return text.partition("\n")[0]
    lines = [line for line in traceback.split("\n")[1:] if line and not line[0].isspace()]
    return lines[0] if lines else text.partition("\n")[0]
