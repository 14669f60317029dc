"""A fetcher slot: runs inside a Spark task, from its registration in the group to its clean end.

A slot is stopped by a signal (Spark sends SIGHUP through the Python daemon when an executor ends), or by the pool's
znode `/consumers/groups/[group]/pools/[pool]`, an ephemeral of the driver's session with the data
`{"version":1,"slots":4,"run":"…"}`: it leaves when its number is not below `slots` (0 stops the pool), when `run` is
another one (a newer driver has taken the pool's name), and when the znode has been gone for `driver_gone_ms` (the
driver is dead). Spark itself sends no notice: a cancelled task runs on for two seconds and is then killed.
"""

from __future__ import annotations

import logging
import math
import signal
import socket
from typing import Any

import zk_group
from zk_group.coordinator.zk.errors import (
    BadData,
    OutcomeUnknown,
    Refused,
    SessionLost,
    StoreError,
    UsageError,
    ZooKeeperUnreachable,
)
from zk_group.coordinator.zk.process.metrics_server import MetricsServer
from zk_group.coordinator.zk.runtime import Runtime, ThreadRuntime
from zk_group.coordinator.zk.store import Create, Delete, Node, Operation, Sessions, SetData, Store, StoreFactory
from zk_group.coordinator.zk.update import WatchedNode, ensure
from zk_group.coordinator.zk.znodes.json_fields import readable
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import NO_CHANNEL, parsed_channel
from zk_group.coordinator.zk.znodes.segments import Pool, SegmentsRecord

from ...assignment.consumers import client_assignment
from ...errors import TURNED_AWAY, AssignmentFailed, FencedInstanceId
from ...fetching.polling import PENDING_S, Fetcher, Lag, Looks
from ...logs import embedded_folder, open_log
from ...logs.base import Log
from ...membership.call_guard import MemberContext
from ...membership.member import ConsumerMember
from ...membership.offsets import Consumption
from ...membership.start_position import Starts
from ...metrics import ConsumerMetrics
from ...sealing.sealer import SealConfig, Sealer, SlotRegion
from ...sealing.segment_files import ClaimedFiles, SegmentFolder
from ..gc_tuning import fewer_collections, spare_modules
from .config import SlotSpec

log = logging.getLogger(__name__)

LOOK_FOR_DATA_S = 0.02
"""Minimum interval between fetches from an empty log, and maximum delay of a signal."""

MESSAGE = "stopped by its driver"
MOST_FAILING_S = 60.0


class Directions:
    """The pool's and the segments' znodes, as they concern one slot."""

    def __init__(self, spec: SlotSpec, runtime: Runtime) -> None:
        paths = GroupPaths(spec.config.group)
        self._spec = spec
        self._runtime = runtime
        self._pool = WatchedNode(runtime, paths.pool(spec.config.pool))
        self._segments = WatchedNode(runtime, paths.segments)
        self._gone_since: float | None = None
        self._segments_read: Node | None = None
        self._pool_read: Node | None = None
        self._pool_record: Pool | None = None
        self.segments = SegmentsRecord()
        self.is_one_too_many = False

    def read(self, store: Store) -> str | None:
        """Read the znodes if they may have changed; the reason to leave, or None.

        :raises StoreError: when there was no answer.
        """
        node = self._segments.read(store)
        if node is not self._segments_read:
            self._segments_read = node
            self.segments = readable(SegmentsRecord.parse, self._segments.path, node, log) or SegmentsRecord()
        return self._reason_to_leave(self._pool.read(store))

    def _reason_to_leave(self, node: Node | None) -> str | None:
        now = self._runtime.monotonic()
        if node is None:
            # Counted from the first answer without the znode: while ZooKeeper is down the driver has no znode either.
            self._gone_since = self._gone_since if self._gone_since is not None else now
            is_gone = now - self._gone_since >= self._spec.config.driver_gone_ms / 1000
            return "its driver is gone" if is_gone else None
        self._gone_since = None
        if node is not self._pool_read:
            self._pool_read = node
            self._pool_record = readable(Pool.parse, self._pool.path, node, log)
        pool = self._pool_record
        if pool is None:
            return None
        self.is_one_too_many = 0 < pool.slots <= self._spec.number
        if pool.run != self._spec.run:
            return "another driver has taken the pool over"
        return None if self._spec.number < pool.slots else MESSAGE


class Slot:
    """One slot. Built and run in the task's main thread; `stop` may be called from a signal handler.

    :param files: the segments folder; that of the configuration when omitted.
    :param most_failing_s: after sealing has failed for so long, although the lease is held, the slot ends with the
        reason; its partitions go to slots on other hosts.
    """

    def __init__(
        self,
        spec: SlotSpec,
        source: Log,
        open_store: StoreFactory,
        runtime: Runtime,
        files: SegmentFolder | None = None,
        most_failing_s: float = math.inf,
    ) -> None:
        config = spec.config.consumer_config(spec.number)
        metrics = ConsumerMetrics()
        self._meter = metrics.of(config.group, config.consumer)
        host, port = config.metrics_host, config.metrics_port
        self.server = MetricsServer(metrics.registry, host, port, runtime, metrics.unhealthy)
        self._runtime = runtime
        self._consumer = config.consumer
        self._stopping: str | None = None
        self._is_for_good = False
        self._most_failing_s = most_failing_s
        self._failing_since: float | None = None
        self._looks = Looks(runtime)
        self._directions = Directions(spec, runtime)
        claimed = ClaimedFiles(files or SegmentFolder(spec.config.segments_dir), config.group, runtime)
        self._fetcher = Fetcher(source, self._meter, config.auto_offset_reset)
        Lag(source, self._fetcher, runtime).reported(self._meter)
        sealing = SealConfig(spec.config.seal_interval_ms, spec.config.seal_bytes, config.fetch_max_bytes)
        self.sealer = Sealer(sealing, config.consumer, runtime, self._fetcher, claimed, self._meter)
        starts = Starts(source, config.start_rule)
        context = MemberContext(config, runtime, self._meter)
        consumption = Consumption(spec.subscription, self.sealer, starts, spec.config.seal_interval_ms)
        region = SlotRegion(context, self.sealer) if config.region else None
        roles = [role for role in (client_assignment(context, source), region) if role is not None]
        self.member = ConsumerMember(context, claimed.opening(open_store), consumption, roles)
        self.sealer.bind(self.member)

    def stop(self, reason: str, for_good: bool = False) -> None:
        """Let `run` leave the group and return. Only sets flags, as it may run in a signal handler.

        :param for_good: release the seat, and the other slots are assigned its partitions at once; else these wait
            for its return for one session timeout.
        """
        self._is_for_good |= for_good and self._stopping is None
        self._stopping = self._stopping or reason

    def run(self) -> dict[str, Any]:
        """Fetch and seal until stopped; the result as plain values.

        :raises ForeignFolder: when the group's folder belongs to another chroot.
        :raises ZooKeeperUnreachable: when no server answered at the start.
        """
        try:
            while self._stopping is None:
                self._step()
        except (FencedInstanceId, *TURNED_AWAY) as over:
            self.stop(str(over))
        finally:
            # A slot that stops with its pool may return.
            self.member.close(for_good=self._is_for_good or self._directions.is_one_too_many)
            log.info("slot stopped: consumer=%s reason=%s", self._consumer, self._stopping)
        return {"consumer": self._consumer, "reason": self._stopping, "registrations": self.member.registrations}

    def _step(self) -> None:
        self.server.keep()
        self._meter.polled()
        try:
            self.member.tend()
        except AssignmentFailed as failure:
            log.warning("assignment failed: consumer=%s reason=%s", self._consumer, failure)
        self._read_directions()
        fetched = self._fetch()
        wait_s = self.sealer.seal_if_due(self._directions.segments.seal_interval_ms)
        self._end_when_failing()
        if not fetched and self._stopping is None:
            self.member.wake.wait(min(wait_s, PENDING_S if self._fetcher.is_pending else LOOK_FOR_DATA_S))

    def _end_when_failing(self) -> None:
        """Without the lease no seal is tried: a ZooKeeper that is away is waited for."""
        if math.isinf(self._most_failing_s) or self.sealer.problem is None or not self.member.may_fetch:
            self._failing_since = None
            return
        now = self._runtime.monotonic()
        self._failing_since = self._failing_since if self._failing_since is not None else now
        if now - self._failing_since >= self._most_failing_s:
            self.stop(f"sealing fails: {self.sealer.problem}")

    def _fetch(self) -> int:
        if self._looks.wait_s:
            return 0
        began = self._runtime.monotonic()
        fetched = self.sealer.fetch()
        self._looks.note(began, not fetched, self._fetcher.is_pending)
        return fetched

    def _read_directions(self) -> None:
        store = self.member.store
        if store is None or store.lost or self.member.channel is None:
            return
        try:
            reason = self._directions.read(store)
        except StoreError as error:
            log.debug("pool znode read failed, retrying: reason=%s", error)
            return
        if reason is not None:
            self.stop(reason)
        paused, before = self._directions.segments.paused, self.sealer.paused
        self.sealer.paused = paused
        if paused is not None and before is None:
            log.warning("fetching paused: consumer=%s reason=%s", self._consumer, paused)
        elif paused is None and before is not None:
            log.warning("fetching resumed: consumer=%s", self._consumer)


def check_folders(log_dir: str, files: SegmentFolder, group: str) -> None:
    """
    :raises UsageError: when this host has no such log, or cannot write segments.
    """
    here = socket.gethostname()
    folder = embedded_folder(log_dir)
    if folder is not None and not folder.is_dir():
        raise UsageError(f"log_dir {folder} is no folder on {here}: give the log's folder, as all executors mount it")
    try:
        files.check(group)
    except OSError as error:
        raise UsageError(f"segments_dir {files.url} cannot be written on {here}: {error.strerror or error}") from error


def run_slot(spec: SlotSpec) -> dict[str, Any]:
    """Run one slot in this process, until it is stopped. For a Spark task, in its main thread.

    :raises UsageError: when this executor has another version of the project than the driver, or cannot reach the
        folder of the log or of the segments; also when the group's folder belongs to another chroot.
    :raises ZooKeeperUnreachable: when no server answered at the start.
    """
    if zk_group.__version__ != spec.release:
        raise UsageError(
            f"the executor has version {zk_group.__version__} of zk-group-coordinator, the driver {spec.release}: "
            "install the same on both"
        )
    spare_modules()
    config = spec.config
    files = SegmentFolder(config.segments_dir)
    check_folders(config.log_dir, files, config.group)
    source = open_log(config.log_dir, config.kafka_place)
    runtime = ThreadRuntime(config.consumer_config(spec.number).recorder("slot"))
    opener = config.opener(f"slot {config.consumer(spec.number)}")
    slot = Slot(spec, source, opener, runtime, files, MOST_FAILING_S)
    # PySpark's daemon sets these to their defaults before each task, and sends SIGHUP when the executor ends.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, frame: slot.stop(f"signal {received}"))
    try:
        with fewer_collections():
            return slot.run()
    finally:
        slot.server.close()  # the worker process may be reused, and would keep the port
        source.close()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)


class PoolPost(Sessions):
    """Keeps the znode of one run of a pool, over all sessions of its driver; their end removes it."""

    def __init__(self, open_store: StoreFactory, runtime: Runtime, group: str, pool: str, run: str) -> None:
        super().__init__(open_store)
        self._paths = GroupPaths(group)
        self._path = self._paths.pool(pool)
        self._run = run
        self._watched = WatchedNode(runtime, self._path)
        self._is_posted = False

    def keep(self, slots: int) -> None:
        """Write `slots` into the znode: slots with lower numbers run. The newest run of a pool owns the name.

        :raises FencedInstanceId: when a newer run has taken it.
        :raises StoreError: when there was no answer; call again.
        :raises ZooKeeperUnreachable: when no server answers.
        """
        store = self.store()
        node = self._watched.read(store)
        is_mine = node is not None and self._is_mine(node)
        if node is not None and not is_mine and self._is_posted:
            raise FencedInstanceId("another driver has taken the pool over")
        data = Pool(slots, self._run).to_bytes()
        if node is not None and is_mine and node.stat.ephemeral_owner == store.session_id and node.data == data:
            self._is_posted = True
            return
        self._write(store, node, data)

    def _is_mine(self, node: Node) -> bool:
        try:
            return Pool.parse(self._path, node.data).run == self._run
        except BadData as error:
            log.warning("unreadable znode replaced: path=%s problem=%s", self._path, error)
            return False

    def _write(self, store: Store, node: Node | None, data: bytes) -> None:
        operations: list[Operation] = [Create(self._path, data, ephemeral=True)]
        if node is not None and node.stat.ephemeral_owner == store.session_id:
            operations = [SetData(self._path, data, node.stat.version)]
        elif node is not None:
            operations.insert(0, Delete(self._path, node.stat.version))
        try:
            ensure(store, self._paths.skeleton)
            store.commit(operations)
            self._is_posted = True
        except (Refused, OutcomeUnknown) as error:
            log.info("pool znode changed: path=%s reason=%s", self._path, error)
            self._watched.forget()
            raise
        self._watched.forget()

    def unreleased(self, consumers: list[str]) -> list[str]:
        """Consumers that may still hold partitions: their `ids` exists, or their channel is live.

        :raises StoreError: when there was no answer.
        """
        store = self.store()
        ids = store.get_many([self._paths.id(consumer) for consumer in consumers])
        channels = store.get_many([self._paths.channel(consumer) for consumer in consumers])
        return [
            consumer
            for consumer, member, channel in zip(consumers, ids, channels, strict=True)
            if member is not None or (readable(parsed_channel, "a channel", channel) or NO_CHANNEL).is_live
        ]


UNANSWERED = (StoreError, SessionLost, ZooKeeperUnreachable)
"""Errors after which the keeper tries again."""
