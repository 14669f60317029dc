"""The consumer's configuration."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace

from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.runtime import Recorder, Runtime, recorder_in
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import StoreFactory
from zk_group.coordinator.zk.values import LOOPBACK, Values, checked_hosts, require
from zk_group.coordinator.zk.znodes.paths import checked_name, is_name
from zk_group.coordinator.zk.znodes.records import PATTERNS
from zk_group.coordinator.zk.znodes.topic_filter import TopicFilter

from .fetching.poll_order import GREEDY, HEURISTICS, ORDERS, SHARE
from .logs import KafkaPlace
from .membership.start_position import COMMITTED, EARLIEST, StartRule

COORDINATOR_SIDE = "coordinator"
CLIENT_SIDE = "client"
SIDES = {COORDINATOR_SIDE, CLIENT_SIDE}


UNNAMED = "(unnamed)"
"""`ConsumerConfig.consumer` when no name is given; no valid name, and so none that a consumer can have."""
NAME_DIGITS = 12
"""Random digits in a name that a consumer makes: host and process are the same in two containers."""


# Configuration: each field is one property, a keyword option.
@dataclass(frozen=True, slots=True)
class GroupAccess(ZooKeeperAccess):
    """Part of the configurations of consumers, slots and queries: the group, and its log.

    :ivar zk: servers and chroot, `host:port,host:port/chroot`.
    :ivar log_dir: the embedded log's folder, or the URL of another log: `kafka:`, or `kafka://host:port,host:port`.
    :ivar bootstrap_servers: Kafka's brokers, `host:port,host:port`; when empty, those registered in ZooKeeper.
    :ivar brokers_path: the znode below which Kafka's brokers are registered.
    :ivar kafka: options for librdkafka, as `security.protocol`; the environment's `ZK_GROUP_KAFKA_...` are added.
    """

    zk: str
    group: str
    _: KW_ONLY
    log_dir: str = ""
    bootstrap_servers: str = ""
    brokers_path: str = "/brokers"
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000

    @property
    def kafka_place(self) -> KafkaPlace:
        """Kafka's address, when `log_dir` names it."""
        return KafkaPlace(self.zk, self.brokers_path, self.bootstrap_servers, self.kafka, self.access)

    def opener(self, client: str) -> StoreFactory:
        """Opens sessions; `client` is their name in log lines."""
        return kazoo_factory(self.zk, self.session_timeout_ms, self.connect_timeout_ms / 1000, client, self.access)


# Configuration: each field is one property, a keyword option.
@dataclass(frozen=True, slots=True, kw_only=True)
class MemberConfig(GroupAccess):
    """Part of the configurations of consumers and slots, the members of groups.

    :ivar assignment: `coordinator`, or `client`, the group's leader (sources G8); both, the preferred first, for
        a rolling change from one to the other (`client,coordinator`).
    :ivar protocols: assignment strategies, the preferred first.
    :ivar assignment_delay_ms: the leader's delay after a topic change before it requests a rebalance.
    :ivar client_rack: rack of this consumer, for assignors that prefer replicas in it (KIP-881).
    :ivar region: the group's region (sources R2); empty for none. In a region offsets are not committed: they
        move with the region's checkpoints.
    :ivar start_position: where the group begins with a partition that has no committed offset: `beginning`, `end`,
        `committed` (uses `auto_offset_reset`), or a time: ISO 8601, in UTC unless it contains a zone, or milliseconds
        since the epoch. Resolved once for each partition of a group; it holds for every later owner.
    :ivar auto_offset_reset: `earliest`, `latest` or `none` (an error): the position after an offset out of range, and,
        with `start_position` `committed`, the start position.
    :ivar fetch_max_bytes: maximum bytes of one fetch and of one poll; the first record may exceed it.
    :ivar offsets_interval_ms: interval at which changed offsets are also written into `offsets/`.
    :ivar metrics_port: port of `/metrics` and `/healthz`; 0 disables it.
    :ivar metrics_host: address to listen on; `0.0.0.0` for all of this host.
    :ivar history_dir: folder for the history that the checker verifies; empty disables it.
    """

    assignment: str = COORDINATOR_SIDE
    protocols: tuple[str, ...] = ("range", "cooperative-sticky")
    assignment_delay_ms: int = 100
    client_rack: str = ""
    region: str = ""
    start_position: str | int = COMMITTED
    auto_offset_reset: str = EARLIEST
    fetch_max_bytes: int = 8 << 20
    offsets_interval_ms: int = 60_000
    metrics_port: int = 0
    metrics_host: str = LOOPBACK
    history_dir: str = ""


# Configuration: each field is one property, a keyword option.
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(MemberConfig):
    """Checked at construction. Names as in Kafka where Kafka has one.

    :ivar consumer: consumer name; the newest process with a name owns it. A static member's is its
        `group_instance_id`. Without one, each consumer object makes a name of its own: host, process and random digits.
    :ivar group_instance_id: makes the consumer a static member (KIP-345): its seat is kept for one session timeout
        after it has left; if it returns within that time, it keeps its partitions and no other member stops.
    :ivar checkpoint_dir: storage for states that are too large for a znode: a folder or any URI that pyarrow opens, the
        same for all members. Not shared with a region of the same name below another chroot or in another ensemble.
    :ivar max_poll_interval_ms: maximum time between polls; after it the consumer leaves.
    :ivar max_poll_records: maximum records of one poll; -1 for no limit.
    :ivar poll_order: order of partitions in a poll: `greedy`, or `proportional` (KIP-41;
        `consumer/fetching/poll_order.py`).
    :ivar prefetch: prefetching while records are buffered: `share`, or `total` (KIP-41;
        `consumer/fetching/poll_order.py`).
    :ivar max_partition_fetch_bytes: maximum bytes of one partition in one fetch; the first record may exceed it.
    :ivar buffer_memory: maximum bytes of buffered records; one record may exceed it.
    :ivar enable_auto_commit: commit what earlier polls returned every `auto_commit_interval_ms`, before partitions are
        revoked, and on close.
    """

    consumer: str = field(default_factory=lambda: UNNAMED, kw_only=False)
    group_instance_id: str = ""
    checkpoint_dir: str = ""
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    poll_order: str = GREEDY
    prefetch: str = SHARE
    max_partition_fetch_bytes: int = 1024 * 1024
    buffer_memory: int = 32 * 1024 * 1024
    enable_auto_commit: bool = False
    auto_commit_interval_ms: int = 5_000

    def check(self) -> None:
        checked_name("group", self.group)
        if self.group_instance_id:
            checked_name("group_instance_id", self.group_instance_id)
            require(
                self.consumer in (UNNAMED, self.group_instance_id),
                "a static member's name is its group_instance_id: leave out consumer, or group_instance_id",
            )
            object.__setattr__(self, "consumer", self.group_instance_id)
        if self.consumer != UNNAMED:
            checked_name("consumer", self.consumer)
        checked_hosts(self.zk)
        require(self.session_timeout_ms >= 100, "session_timeout_ms must be 100 or more")
        require(self.connect_timeout_ms > 0, "connect_timeout_ms must be positive")
        require(1000 <= self.max_poll_interval_ms < 2**31, "max_poll_interval_ms must be 1000 or more")
        require(self.max_poll_records == -1 or self.max_poll_records > 0, "max_poll_records must be positive, or -1")
        require(self.poll_order in ORDERS, f"poll_order must be one of {', '.join(ORDERS)}")
        require(self.prefetch in HEURISTICS, f"prefetch must be one of {', '.join(HEURISTICS)}")
        require(self.fetch_max_bytes > 0, "fetch_max_bytes must be positive")
        require(self.max_partition_fetch_bytes > 0, "max_partition_fetch_bytes must be positive")
        require(self.buffer_memory > 0, "buffer_memory must be positive")
        require(self.auto_commit_interval_ms > 0, "auto_commit_interval_ms must be positive")
        require(self.offsets_interval_ms > 0, "offsets_interval_ms must be positive")
        require(0 <= self.metrics_port <= 65_535, "metrics_port must be from 0 (off) to 65535")
        require(bool(self.metrics_host), "metrics_host must be an address of this host")
        require(
            bool(self.sides) and set(self.sides) <= SIDES and len(set(self.sides)) == len(self.sides),
            "assignment must be coordinator, client, or both in the order of preference: client,coordinator",
        )
        require(self.assignment_delay_ms >= 0, "assignment_delay_ms must not be negative")
        require(len(self.client_rack) <= 249, "client_rack must have 249 characters at most")
        if self.region:
            checked_name("region", self.region)
        require(
            not (self.region and self.enable_auto_commit),
            "enable_auto_commit is not for a consistent region: its offsets move with checkpoints",
        )
        require(bool(self.protocols), "protocols must name at least one strategy")
        for protocol in self.protocols:
            checked_name("protocols", protocol)
        self.start_rule  # noqa: B018  validates both

    def named(self, runtime: Runtime) -> ConsumerConfig:
        """This configuration for one consumer: with a unique name when it has none, as Kafka's member ids.

        Not a default of the field: one configuration may be sent to several processes, or used by several threads.
        """
        if self.consumer != UNNAMED:
            return self
        host = "".join(char if is_name(char) else "-" for char in socket.gethostname())
        return replace(self, consumer=f"{host[:100]}-{os.getpid()}-{runtime.random_id()[:NAME_DIGITS]}")

    def recorder(self, kind: str, **more: str) -> Recorder | None:
        """The recorder of the consumer's own process.

        :param more: further fields of its first event.
        :raises UsageError: when the file cannot be written.
        """
        return recorder_in(self.history_dir, self.consumer, kind=kind, group=self.group, consumer=self.consumer, **more)

    @property
    def sides(self) -> tuple[str, ...]:
        """`assignment` as a list, the preferred first."""
        return tuple(side.strip() for side in self.assignment.split(",") if side.strip())

    @property
    def start_rule(self) -> StartRule:
        """`start_position` and `auto_offset_reset`, as parsed.

        :raises UsageError: when one of them is invalid.
        """
        return StartRule.parse(self.start_position, self.auto_offset_reset)


@dataclass(frozen=True, slots=True)
class Subscription(Values):
    """The topics or the pattern that a consumer subscribes to.

    :ivar topics: topic -> threads, or for a wildcard one pattern -> threads.
    :ivar pattern: `static`, `white_list` or `black_list`.
    """

    topics: dict[str, int]
    pattern: str = "static"

    def check(self) -> None:
        require(bool(self.topics), "subscribe to at least one topic or pattern")
        require(self.pattern in PATTERNS, f"pattern must be one of {', '.join(PATTERNS)}")
        require(all(threads > 0 for threads in self.topics.values()), "a topic needs at least one thread")
        if self.pattern == "static":
            for topic in self.topics:
                checked_name("topic", topic)
        else:
            require(len(self.topics) == 1, "a wildcard is one pattern")
            try:
                TopicFilter(self.pattern, next(iter(self.topics)))
            except BadData as error:
                raise UsageError(str(error)) from error
