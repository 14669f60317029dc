"""A pool of fetcher slots in Spark executors, started, supervised and stopped by the driver.

Each slot is a Spark job of one task, so that a failure of one slot affects no other, and resizing a pool does not
interrupt the remaining slots. A supervisor for each slot restarts it, with backoff, after an unexpected end.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Self

from pyspark import InheritableThread
from pyspark.sql import SparkSession

import zk_group
from zk_group.coordinator.zk.errors import CoordinatorError, NotAuthorized, Refused, Retryable, StoreError, UsageError
from zk_group.coordinator.zk.runtime import Runtime, ThreadRuntime
from zk_group.coordinator.zk.values import load, require, shown, whole
from zk_group.coordinator.zk.znodes.paths import MAX_NAME
from zk_group.coordinator.zk.znodes.records import BLACK_LIST, STATIC, WHITE_LIST

from ...config import Subscription
from ...errors import FencedInstanceId, ForeignFolder, refuse_inherited
from ...sealing.segment_check import sweep
from ...sealing.segment_files import SegmentFolder
from ..resources import cluster_of, context_of
from .config import SlotConfig, SlotSpec
from .slot import UNANSWERED, PoolPost
from .supervisor import (
    GroupView,
    SlotJobs,
    SlotStatus,
    SlotSupervisor,
    late_slots,
    late_text,
    read_group,
    shown_slots,
    slots_table,
    view_of,
)

log = logging.getLogger(__name__)

KEEP_S = 0.5
SWEEP_S = 600.0
CANCEL_S = 5.0
LOOK_S = 0.1
VIEW_S = 10.0
POST_TRIES = 10


# Large: the application's calls, and the slots and the znode behind them, which each of them needs.
class FetcherPool:
    """Fetchers of one group in the executors of one Spark application.

    In a process that was forked meanwhile every call raises `Inherited`.

    :param topics: topic -> threads a slot, or just topic names; or one regular expression as `white_list` or
        `black_list`.
    :param options: any field of `SlotConfig`; also read from the environment, as `ZK_GROUP_SLOTS`. The default of
        `pool` is made from the application's name: a restarted application replaces its earlier pool, and two
        applications in one group need two pool names.
    :raises UsageError: when an option is wrong, or the Spark application cannot run the pool.
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
        sc = context_of(spark)
        self._runtime = runtime or ThreadRuntime()
        self._subscription = subscription_of(topics, white_list, black_list)
        self.config = slot_config(options, pool_name(str(sc.appName)))
        self._cluster = cluster_of(sc)
        self._jobs = SlotJobs(sc, self._cluster, self._spec)
        if refusal := self._cluster.refusal(self.config.slots, self.config.slot_cpus):
            raise UsageError(refusal)
        self._folder = SegmentFolder(self.config.segments_dir)
        self.run = self._runtime.random_id()
        config = self.config
        self._post = PoolPost(config.opener(f"pool {config.pool}"), self._runtime, config.group, config.pool, self.run)
        self._posting = self._runtime.lock()
        self._stopping = self._runtime.event()
        self._closed = self._runtime.event()
        self._resizing = self._runtime.lock()
        self._keeper: InheritableThread | None = None
        self._slots = {number: self._supervisor(number) for number in range(config.slots)}
        self._is_fenced = False
        self._is_released = True
        self._earlier: Mapping[str, str] = {}
        self._viewing = self._runtime.lock()
        self._announced: SlotConfig | None = None
        self._view = GroupView()
        self._viewed_at = 0.0
        self._sweep_refusal = ""
        self.problem: str | None = None
        self._made_in = os.getpid()

    # ---- the application's calls

    def start(self) -> Self:
        """Start all slots, once the executors have registered; `wait_until_running` waits for them.

        :raises ZooKeeperUnreachable: when no server answers.
        :raises NotAuthorized: when an ACL refuses the pool's znode.
        :raises CoordinatorError: when no executor registers.
        """
        refuse_inherited("pool", self._made_in)
        require(self._keeper is None, "a pool starts once: make another one")
        self._jobs.prepare(self._runtime, self.config.executors_timeout_ms / 1000, self.config.slot_cpus)
        try:
            self._register_pool()
        except CoordinatorError:
            self._post.close()
            raise
        self._keeper = InheritableThread(target=self._keep, name="pool-keeper", daemon=True)
        self._keeper.start()
        for slot in self._slots.values():
            slot.start()
        log.info("pool started: group=%s pool=%s slots=%d", self.config.group, self.config.pool, self.config.slots)
        return self

    def wait_until_running(self, timeout_s: float = 60.0) -> Self:
        """Wait until the group is Stable and every slot runs what it is assigned.

        Without an answer of ZooKeeper it raises up to two session timeouts later than `timeout_s`.

        :raises UsageError: when the pool is not started, or stopped.
        :raises CoordinatorError: after `timeout_s`, with what each slot waits for.
        """
        refuse_inherited("pool", self._made_in)
        require(self._keeper is not None, "the pool does not run: start it first")
        deadline = self._runtime.monotonic() + timeout_s
        while True:
            self._check_not_stopped()
            late = self._late()
            if not late:
                return self
            if self._runtime.monotonic() >= deadline:
                what = f"pool {self.config.pool} of group {self.config.group} does not run after {timeout_s:g} s"
                raise CoordinatorError(f"{what}: {late_text(late)}")
            self._runtime.sleep(LOOK_S)

    def resize(self, slots: int, timeout_s: float = 30.0) -> bool:
        """Run `slots` slots from now on. Remaining slots are not interrupted: only the group is rebalanced.

        When slots are removed, those with the highest numbers seal and leave; after `timeout_s` they are cancelled.
        Concurrent calls are serialized.

        :returns: whether every removed consumer has left the group.
        :raises UsageError: when the number is not possible, or the pool does not run; it stays as it is.
        """
        refuse_inherited("pool", self._made_in)
        slots = whole("number of slots", slots)
        replace(self.config, slots=slots)  # checks it
        if refusal := self._cluster.refusal(slots, self.config.slot_cpus):
            raise UsageError(refusal)
        deadline = self._runtime.monotonic() + timeout_s
        with self._resizing:
            require(self._keeper is not None, "only a pool that runs can be resized: start it first")
            self._check_not_stopped()
            before, self.config = self.config.slots, replace(self.config, slots=slots)
            leaving = [slot for number, slot in self._slots.items() if number >= slots]
            for slot in leaving:
                slot.end()
            self._write_slots()
            is_released = self._end(leaving, deadline)
            if self._stopping.is_set():
                return is_released  # `stop` waits for all slots
            self._slots = {number: slot for number, slot in self._slots.items() if number < slots}
            for number in range(len(self._slots), slots):
                slot = self._supervisor(number)
                self._slots = {**self._slots, number: slot}
                if self._stopping.is_set():  # since the resize was requested
                    slot.end()
                slot.start()
            log.info("pool resized: group=%s pool=%s from=%d to=%d", self.config.group, self.config.pool, before, slots)
            return is_released

    def stop(self, timeout_s: float = 30.0) -> bool:
        """Let every slot seal and leave; after `timeout_s`, cancel the remaining ones.

        :returns: whether every consumer of the pool has left the group, or belongs to another driver by now.
        """
        refuse_inherited("pool", self._made_in)
        if self._keeper is None or self._closed.is_set():
            return self._is_released
        deadline = self._runtime.monotonic() + timeout_s
        self._end_all()
        self._write_slots()
        with self._resizing:
            self._is_released = self._end(list(self._slots.values()), deadline, is_stop=True)
        self._closed.set()
        self._keeper.join(CANCEL_S)
        self._post.close()
        log.info("pool stopped: group=%s pool=%s released=%s", self.config.group, self.config.pool, self._is_released)
        return self._is_released

    def status(self) -> list[SlotStatus]:
        """All slots, in order: what each does, and why. Reads the group's znodes once.

        Without an answer of ZooKeeper it returns after two session timeouts at most.
        """
        refuse_inherited("pool", self._made_in)
        self._read_group()
        return self._last_status()

    def __repr__(self) -> str:
        """The number of slots in each state: `status` without a request, as the group was read seconds ago."""
        states = Counter(slot.state for slot in self._last_status())
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        return f"<FetcherPool {self.config.pool} of group {self.config.group}, slots: {counts}>"

    def _repr_html_(self) -> str:
        """The slots as a table, in a notebook: `status` without a request, as the group was read seconds ago."""
        return slots_table(f"pool {self.config.pool} of group {self.config.group}", self._last_status())

    def sweep(self) -> int:
        """Remove orphaned segment files; the number removed. The pool does so every ten minutes.

        :raises UsageError: when the pool has stopped.
        :raises ForeignFolder: when the group's folder belongs to another chroot.
        :raises StoreError: when ZooKeeper did not answer.
        :raises OSError: when the segments folder did not answer.
        """
        refuse_inherited("pool", self._made_in)
        if self._closed.is_set():  # it would open another session
            self._check_not_stopped()
        return sweep(self._post.store(), self._runtime, self._folder, self.config.group)

    def __enter__(self) -> Self:
        return self if self._keeper is not None else self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    # ---- slots

    def _check_not_stopped(self) -> None:
        require(not self._stopping.is_set(), f"the pool has stopped{f': {self.problem}' if self.problem else ''}")

    def _supervisor(self, number: int) -> SlotSupervisor:
        return SlotSupervisor(number, self.config.consumer(number), self._runtime, self._jobs.run, self._jobs.is_over)

    def _end_all(self) -> None:
        self._stopping.set()
        for slot in self._slots.values():
            slot.end()

    def _end(self, slots: Sequence[SlotSupervisor], deadline: float, is_stop: bool = False) -> bool:
        """Wait for slots that are ending, and cancel those that still run at `deadline`.

        Unless `is_stop`, it returns early when the pool is stopped meanwhile.

        :returns: whether all of them are released.
        """
        running = [slot for slot in slots if not self._joined(slot, deadline, is_stop)]
        for slot in running if is_stop or not self._stopping.is_set() else ():
            log.warning("slot cancelled: consumer=%s", slot.status.consumer)
            self._jobs.cancel(slot.number)
            slot.join(CANCEL_S)
        return self._is_fenced or self._wait_released([slot.status.consumer for slot in slots], deadline, is_stop)

    def _joined(self, slot: SlotSupervisor, deadline: float, is_stop: bool) -> bool:
        while not slot.join(min(LOOK_S, deadline - self._runtime.monotonic())):
            if self._is_late(deadline, is_stop):
                return False
        return True

    def _is_late(self, deadline: float, is_stop: bool) -> bool:
        return self._runtime.monotonic() >= deadline or (self._stopping.is_set() and not is_stop)

    def _spec(self, number: int) -> SlotSpec:
        return SlotSpec(self.config, self._subscription, number, self.run, zk_group.__version__)

    # ---- the pool's znode

    def _register_pool(self) -> None:
        # Not by `retried`: each try may open another session, and also follows a read without an answer, after a pause.
        for _ in range(POST_TRIES):
            try:
                self._post.keep(self.config.slots)
                before = read_group(self._post.store(), self.config.group, self._consumers(), {})
                self._earlier = {name: channel.incarnation for name, channel in before.channels.items()}
                return
            except NotAuthorized:
                raise
            except (Retryable, Refused) as error:
                log.info("pool znode rewritten: pool=%s reason=%s", self.config.pool, error)
            self._runtime.sleep(0.1)
        raise StoreError(f"the znode of pool {self.config.pool} keeps changing: does another driver start it too?")

    def _keep(self) -> None:
        """Keep the znode, read the group and sweep periodically, until the pool is closed."""
        swept_at = self._runtime.monotonic()
        while not self._closed.wait(KEEP_S):
            self._write_slots()
            if self._announced is not self.config or self._runtime.monotonic() - self._viewed_at >= VIEW_S:
                self._late()
            if self._runtime.monotonic() - swept_at >= SWEEP_S:
                swept_at = self._runtime.monotonic()
                self._sweep_quietly()

    def _consumers(self) -> list[str]:
        return [self.config.consumer(number) for number in range(max(self.config.slots, len(self._slots)))]

    def _read_group(self) -> GroupView:
        asked_at = self._runtime.monotonic()
        view = view_of(self._post.living, self.config.group, self._consumers(), self._earlier)
        with self._viewing:
            if asked_at >= self._viewed_at:
                self._view, self._viewed_at = view, asked_at
        return view

    def _last_status(self) -> list[SlotStatus]:
        """All slots, in order: by their jobs now, and by the group as it was last read, every `VIEW_S` seconds."""
        slots = self._slots
        return shown_slots(self._view, self._subscription, [slots[number].status for number in sorted(slots)])

    def _late(self) -> list[SlotStatus]:
        """Slots that do not run yet, with what each waits for; logs once when the last of them runs."""
        config, slots = self.config, self._slots
        view = self._read_group()
        new = [SlotStatus(number, config.consumer(number)) for number in range(config.slots)]
        jobs = [slots[one.slot].status if one.slot in slots else one for one in new]
        late = late_slots(view, shown_slots(view, self._subscription, jobs))
        with self._viewing:
            if not late and config is self.config and config is not self._announced:
                self._announced = config
                log.info("pool running: group=%s pool=%s slots=%d", config.group, config.pool, config.slots)
        return late

    def _write_slots(self) -> None:
        """Write the number of slots into the znode; the keeper repeats a failed write."""
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
                log.debug("pool znode write deferred: pool=%s reason=%s", self.config.pool, error)

    def _sweep_quietly(self) -> None:
        try:
            self.sweep()
            self._sweep_refusal = ""
        except ForeignFolder as refused:
            is_new, self._sweep_refusal = str(refused) != self._sweep_refusal, str(refused)
            if is_new:
                log.warning("orphan sweep refused: group=%s reason=%s", self.config.group, refused)
        except (OSError, *UNANSWERED) as error:
            log.warning("orphan sweep deferred: group=%s reason=%s", self.config.group, error)

    def _wait_released(self, consumers: list[str], deadline: float, is_stop: bool) -> bool:
        """Wait until none of them holds partitions; False after a timeout."""
        left = consumers
        while left:
            try:
                with self._posting:
                    left = self._post.unreleased(consumers)
            except UNANSWERED as error:
                log.info("slot release unconfirmed, retrying: reason=%s", error)
            if left and self._is_late(deadline, is_stop):
                log.warning("slot release timed out: group=%s consumers=%s", self.config.group, left)
                return False
            if left:
                self._runtime.sleep(0.05)
        return True


def pool_name(application: str) -> str:
    """The default pool name of a Spark application."""
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
    if not isinstance(topics, Iterable) or isinstance(topics, str):
        raise UsageError("topics is a list of names, or an object topic -> threads")
    named = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
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
