"""The configuration of a pool of fetcher slots, and of one slot."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from zk_group.coordinator.zk.values import require
from zk_group.coordinator.zk.znodes.paths import checked_name
from zk_group.coordinator.zk.znodes.segments import SEAL_INTERVAL_MS, slot_name

from ...config import ConsumerConfig, MemberConfig, Subscription

RACK_OF_EXECUTOR = "ZK_GROUP_CLIENT_RACK"


# Configuration: each field is one property, a keyword option.
@dataclass(frozen=True, slots=True, kw_only=True)
class SlotConfig(MemberConfig):
    """The configuration of all slots of a pool. Checked at construction; each field is an option of `FetcherPool`.

    The files of `ZooKeeperAccess` are read by each executor, under the same names as on the driver, and servers and
    logs are named as executors reach them. Put secrets of Kafka into the executors' environment
    (`ZK_GROUP_KAFKA_SASL_PASSWORD`): options are sent with each task.

    :ivar pool: the pool's name; its consumers are `[pool]-slot-[number]`.
    :ivar slots: number of fetchers.
    :ivar log_dir: the log to fetch from, a folder or URL that every executor can access, or `kafka:`.
    :ivar segments_dir: the folder of sealed segments, a path or URI (`s3://bucket/prefix`) that every executor and the
        driver can access; without credentials, which come from their environment.
    :ivar client_rack: the rack of all slots; when empty, each uses its executor's `ZK_GROUP_CLIENT_RACK`.
    :ivar region: the consistent region that the group is in; empty for none. Its checkpoints cut the order of segments.
    :ivar max_poll_interval_ms: a slot that hangs for longer leaves, and seals no more.
    :ivar seal_interval_ms: maximum time between fetch and seal of a record.
    :ivar seal_bytes: maximum Arrow memory of one seal.
    :ivar driver_gone_ms: slots leave after their driver's session has been gone for this long.
    :ivar slot_cpus: CPUs of a slot's task, when the cluster manager supports fractions.
    :ivar executors_timeout_ms: time limit for the executors' registration at the start.
    :ivar metrics_port: slot n serves `/metrics` on this port + n, on any host; 0 disables it.
    :ivar history_dir: a folder on each executor's machine for the slots' histories; empty disables them.
    """

    pool: str
    log_dir: str
    segments_dir: str
    slots: int = 4
    max_poll_interval_ms: int = 30_000
    seal_interval_ms: int = SEAL_INTERVAL_MS
    seal_bytes: int = 32 << 20
    driver_gone_ms: int = 30_000
    slot_cpus: float = 0.25
    executors_timeout_ms: int = 120_000

    def check(self) -> None:
        checked_name("pool", self.pool)
        require(bool(self.log_dir), "name the log to fetch from: log_dir")
        require(bool(self.segments_dir), "name a folder that all executors share for sealed segments: segments_dir")
        require(1 <= self.slots <= 1000, "slots must be from 1 to 1000")
        require(self.driver_gone_ms >= 1000, "driver_gone_ms must be 1000 or more")
        require(0 < self.slot_cpus <= 1, "slot_cpus must be over 0, and 1 at most")
        require(self.executors_timeout_ms > 0, "executors_timeout_ms must be positive")
        last = self.metrics_port + self.slots - 1
        require(self.metrics_port == 0 or last <= 65_535, "metrics_port must leave a port up to 65535 for each slot")
        self.consumer_config(self.slots - 1)
        require(self.seal_interval_ms >= 1, "seal_interval_ms must be 1 or more")
        require(1 <= self.seal_bytes <= 1 << 30, "seal_bytes must be from 1 to 1073741824")
        require(self.fetch_max_bytes <= 1 << 30, "fetch_max_bytes must be from 1 to 1073741824")

    def consumer(self, number: int) -> str:
        """The consumer name of slot `number`: stable, so that a new attempt replaces a dead one at once.

        It is the slot's `group_instance_id` too: a slot that ends and returns within the session timeout keeps its
        partitions, and no other slot stops.
        """
        return slot_name(self.pool, number)

    def consumer_config(self, number: int) -> ConsumerConfig:
        """The configuration of slot `number` as a consumer: the fields of this one that a consumer has."""
        names = {each.name for each in fields(ConsumerConfig)} & {each.name for each in fields(self)}
        own = {
            "group_instance_id": self.consumer(number),
            "client_rack": self.client_rack or os.environ.get(RACK_OF_EXECUTOR, ""),
            "metrics_port": self.metrics_port + number if self.metrics_port else 0,
        }
        return ConsumerConfig(**{name: getattr(self, name) for name in names} | own)


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """The parameters of one slot, pickled to the executor.

    :ivar run: the run of the pool that it belongs to.
    :ivar release: the driver's version of this project.
    """

    config: SlotConfig
    subscription: Subscription
    number: int
    run: str
    release: str
