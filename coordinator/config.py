"""The coordinator's configuration."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from .zk.config import EVERYWHERE, require
from .zk.names import checked_name

MIN_SESSION_MS = 100


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Checked when built; each field is an option of `zk-coordinator run`, an environment name and a file's key.

    :ivar zk: servers and chroot, `host:port,host:port/chroot`.
    :ivar node: this node's name, as the coordinator's znode shows it.
    :ivar rebalance_handlers: groups whose turns may run at the same time.
    :ivar max_rebalance_retries: turns that may fail in a row before the group's state says RebalanceFailed.
    :ivar rebalance_debounce_ms: changes of a group that come within this time after a turn make one turn.
    :ivar group_initial_rebalance_delay_ms: a group that nobody is in waits for more members until nobody has joined for
        so long, three times as long at most. Half a second by default: the processes of one start come closer together
        than that, and a lone consumer hardly feels it (Kafka's three do).
    :ivar assignment_timeout_ms: under client-side assignment, how long a leader has to answer before the next is asked.
    :ivar group_max_size: members that a group may have; who comes after them is refused.
    :ivar sweep_interval_ms: how often everything is read again, in case a watch was lost.
    :ivar channel_retention_ms: how long the channel of a consumer that is gone is kept.
    :ivar query_retention_ms: how long a query that gives no sign of life holds back the collection of segments.
    :ivar max_backlog_bytes: sealed segments of a group that wait for its queries, in bytes; over it its fetchers pause.
    :ivar max_backlog_segments: the same, in segments.
    :ivar backlog_interval_ms: how often backlogs are looked at; those that press are collected then.
    :ivar max_seals_per_s: seals of all groups together; were there more, fetchers are told to seal less often.
    :ivar checkpoint_interval_ms: of consistent regions: from one checkpoint to the next.
    :ivar drain_timeout_ms: a checkpoint to which a member has not contributed for so long is aborted.
    :ivar checkpoints_kept: complete checkpoints of a region that are kept.
    :ivar max_consecutive_resets: resets that a region's application may ask for without a new checkpoint.
    :ivar metrics_port: where `/metrics` is served; 0 serves none.
    :ivar metrics_host: the address to serve it on.
    :ivar history_dir: a folder for the history that the checker decides invariants from; empty keeps none.
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
    sweep_interval_ms: int = 10_000
    channel_retention_ms: int = 86_400_000
    query_retention_ms: int = 7 * 86_400_000
    max_backlog_bytes: int = 4 << 30
    max_backlog_segments: int = 20_000
    backlog_interval_ms: int = 1000
    max_seals_per_s: int = 500
    checkpoint_interval_ms: int = 60_000
    drain_timeout_ms: int = 60_000
    checkpoints_kept: int = 10
    max_consecutive_resets: int = 5
    metrics_port: int = 0
    metrics_host: str = EVERYWHERE
    history_dir: str = ""

    def __post_init__(self) -> None:
        checked_name("node", self.node)
        require(bool(self.zk), "name the ZooKeeper servers: --zk HOST:PORT,HOST:PORT/CHROOT")
        require(self.brokers_path.startswith("/"), "brokers_path must begin with a slash")
        require(self.session_timeout_ms >= MIN_SESSION_MS, f"session_timeout_ms must be {MIN_SESSION_MS} or more")
        require(self.connect_timeout_ms > 0, "connect_timeout_ms must be positive")
        require(1 <= self.rebalance_handlers <= 64, "rebalance_handlers must be from 1 to 64")
        require(self.max_rebalance_retries >= 0, "max_rebalance_retries must not be negative")
        require(self.rebalance_debounce_ms >= 0, "rebalance_debounce_ms must not be negative")
        require(self.group_initial_rebalance_delay_ms >= 0, "group_initial_rebalance_delay_ms must not be negative")
        require(self.assignment_timeout_ms >= 100, "assignment_timeout_ms must be 100 or more")
        require(self.group_max_size >= 1, "group_max_size must be 1 or more")
        require(self.sweep_interval_ms >= 100, "sweep_interval_ms must be 100 or more")
        require(
            self.channel_retention_ms >= 2 * self.session_timeout_ms,
            "channel_retention_ms must be at least twice session_timeout_ms: a fence must outlive every session",
        )
        require(self.query_retention_ms >= 1000, "query_retention_ms must be 1000 or more")
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
