"""The coordinator's configuration."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from ..zk.security.access import ZooKeeperAccess
from ..zk.values import LOOPBACK, checked_hosts, require
from ..zk.znodes.paths import checked_name

MIN_SESSION_MS = 100


@dataclass(frozen=True, slots=True)
class CoordinatorConfig(ZooKeeperAccess):
    """Validated when built; each field is an option of `zk-coordinator run`, an environment name and a file's key.

    :ivar zk: servers and chroot, `host:port,host:port/chroot`.
    :ivar node: this node's name, as in the coordinator's znode.
    :ivar rebalance_handlers: number of concurrent turns, of different groups.
    :ivar max_rebalance_retries: consecutive failed turns before the group's state is RebalanceFailed.
    :ivar rebalance_debounce_ms: changes of a group within this time after a turn share one turn.
    :ivar group_initial_rebalance_delay_ms: a group without members waits for more members until none has joined for
        this time, three times as long at most. Half a second by default: the processes of one start join faster than
        that, and a lone consumer is hardly delayed (Kafka's default is three seconds).
    :ivar assignment_timeout_ms: under client-side assignment, a leader's time to answer before the next one is asked.
    :ivar group_max_size: limit of a group's members; more are refused.
    :ivar max_session_timeout_ms: the longest session that any server of the ensemble grants (its maxSessionTimeout): a
        member with a longer lease is refused, since its partitions would wait for that after an eviction.
    :ivar sweep_interval_ms: interval of reading everything again, in case a watch was lost.
    :ivar channel_retention_ms: retention of the channel of a consumer that has left, and of the offsets of a deleted
        topic.
    :ivar query_retention_ms: time for which a silent query holds back the collection of segments.
    :ivar segment_retention_ms: segments that every query has finished are removed this long after their seal, as by
        Kafka's retention.ms; 0 removes them at once. A query that begins meanwhile reads them.
    :ivar segment_retention_bytes: limit of a group's segments that are retained so, as by Kafka's retention.bytes. At
        most 1,000 are retained, and none while the group's segments are over half of a limit of its backlog.
    :ivar max_backlog_bytes: limit of a group's unread segments in bytes; above it its fetchers pause.
    :ivar max_backlog_segments: the same, in segments.
    :ivar backlog_interval_ms: interval of checking backlogs; those over the limit are collected then.
    :ivar max_seals_per_s: limit of the seals of all groups together; above it fetchers seal less often.
    :ivar checkpoint_interval_ms: of consistent regions: from one checkpoint to the next.
    :ivar drain_timeout_ms: a checkpoint without a member's contribution after this time is aborted. A ConsumerOperator
        that is not operator-driven needs more than 3 s.
    :ivar checkpoints_kept: number of complete checkpoints of a region that are kept.
    :ivar max_consecutive_resets: resets that a region's application may request without a new checkpoint.
    :ivar metrics_port: port of `/metrics` and `/healthz`; 0 for none.
    :ivar metrics_host: address to listen on; `0.0.0.0` for all of this host.
    :ivar history_dir: folder of the history, from which the checker decides invariants; empty for none.
    """

    zk: str
    node: str = field(default_factory=socket.gethostname)
    brokers_path: str = "/brokers"
    session_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000
    rebalance_handlers: int = 4
    max_rebalance_retries: int = 4
    rebalance_debounce_ms: int = 100
    group_initial_rebalance_delay_ms: int = 500
    group_max_size: int = 2**31 - 1
    assignment_timeout_ms: int = 30_000
    max_session_timeout_ms: int = 60_000
    sweep_interval_ms: int = 10_000
    channel_retention_ms: int = 86_400_000
    query_retention_ms: int = 7 * 86_400_000
    segment_retention_ms: int = 3_600_000
    segment_retention_bytes: int = 256 << 20
    max_backlog_bytes: int = 4 << 30
    max_backlog_segments: int = 20_000
    backlog_interval_ms: int = 1000
    max_seals_per_s: int = 500
    checkpoint_interval_ms: int = 60_000
    drain_timeout_ms: int = 60_000
    checkpoints_kept: int = 10
    max_consecutive_resets: int = 5
    metrics_port: int = 0
    metrics_host: str = LOOPBACK
    history_dir: str = ""

    def check(self) -> None:
        checked_name("node", self.node)
        checked_hosts(self.zk)
        require(self.brokers_path.startswith("/"), "brokers_path must begin with a slash")
        require(self.session_timeout_ms >= MIN_SESSION_MS, f"session_timeout_ms must be {MIN_SESSION_MS} or more")
        require(self.connect_timeout_ms > 0, "connect_timeout_ms must be positive")
        require(1 <= self.rebalance_handlers <= 64, "rebalance_handlers must be from 1 to 64")
        require(self.max_rebalance_retries >= 0, "max_rebalance_retries must not be negative")
        require(self.rebalance_debounce_ms >= 0, "rebalance_debounce_ms must not be negative")
        require(self.group_initial_rebalance_delay_ms >= 0, "group_initial_rebalance_delay_ms must not be negative")
        require(self.assignment_timeout_ms >= 100, "assignment_timeout_ms must be 100 or more")
        require(self.group_max_size >= 1, "group_max_size must be 1 or more")
        require(
            1000 <= self.max_session_timeout_ms <= 86_400_000, "max_session_timeout_ms must be from 1000 to 86400000"
        )
        require(self.sweep_interval_ms >= 100, "sweep_interval_ms must be 100 or more")
        require(
            self.channel_retention_ms >= 2 * self.session_timeout_ms,
            "channel_retention_ms must be at least twice session_timeout_ms: a fence must outlive every session",
        )
        require(self.query_retention_ms >= 1000, "query_retention_ms must be 1000 or more")
        require(self.segment_retention_ms >= 0, "segment_retention_ms must not be negative")
        require(self.segment_retention_bytes >= 0, "segment_retention_bytes must not be negative")
        require(self.max_backlog_bytes >= 1, "max_backlog_bytes must be 1 or more")
        require(
            1 <= self.max_backlog_segments <= 40_000,
            "max_backlog_segments must be from 1 to 40000: a listing of more would come close to what ZooKeeper sends",
        )
        require(self.backlog_interval_ms >= 10, "backlog_interval_ms must be 10 or more")
        require(self.max_seals_per_s >= 1, "max_seals_per_s must be 1 or more")
        require(self.checkpoint_interval_ms >= 100, "checkpoint_interval_ms must be 100 or more")
        require(self.drain_timeout_ms >= 100, "drain_timeout_ms must be 100 or more")
        require(1 <= self.checkpoints_kept <= 1000, "checkpoints_kept must be from 1 to 1000")
        require(self.max_consecutive_resets >= 1, "max_consecutive_resets must be 1 or more")
        require(0 <= self.metrics_port <= 65_535, "metrics_port must be from 0 (off) to 65535")
        require(bool(self.metrics_host), "metrics_host must be an address of this host")
