"""`zk-coordinator run`: one node."""

from __future__ import annotations

import socket
import sys
from typing import Any

import click

from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.term.elector import listed
from zk_group.coordinator.term.metrics import CoordinatorMetrics
from zk_group.coordinator.zk.process.cli import built, config_options, log_options
from zk_group.coordinator.zk.process.log_format import log_to_stderr
from zk_group.coordinator.zk.process.metrics_server import MetricsServer
from zk_group.coordinator.zk.runtime import ENDINGS, ThreadRuntime, on_signals, recorder_in
from zk_group.coordinator.zk.session.kazoo_client import OutageLog
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory

HELPS = {
    "zk": "The ZooKeeper servers, as host:port,host:port/chroot.",
    "node": "Name of this node. [default: the host's name]",
    "brokers_path": "The znode with the topics.",
    "session_timeout_ms": "The ZooKeeper session timeout to request.",
    "connect_timeout_ms": "Time to wait for a ZooKeeper server at the start.",
    "rebalance_handlers": "Number of concurrent turns, of different groups.",
    "max_rebalance_retries": "Consecutive failed turns before a group is RebalanceFailed.",
    "rebalance_debounce_ms": "Changes of a group within this time after a turn share one turn.",
    "group_initial_rebalance_delay_ms": "Time after the first member of an empty group in which others join it.",
    "group_max_size": "Members of a group, at most.",
    "assignment_timeout_ms": "Time for a group's leader to answer an ask; then another one leads.",
    "max_session_timeout_ms": "Session timeout of a member, at most; a longer lease is refused.",
    "sweep_interval_ms": "Interval of reading everything again, in case a watch was lost.",
    "channel_retention_ms": "Retention of channels of consumers that have left, and of offsets of deleted topics.",
    "query_retention_ms": "Retention of segments for a query that is silent.",
    "segment_retention_ms": "Retention of segments after their seal, when every query has finished them; 0 for none.",
    "segment_retention_bytes": "Limit of a group's finished segments in bytes; above it the oldest are removed.",
    "max_backlog_bytes": "Limit of a group's unread segments in bytes; above it its fetchers pause.",
    "max_backlog_segments": "The same, in segments.",
    "backlog_interval_ms": "Interval of checking backlogs, and of collecting those over the limit.",
    "max_seals_per_s": "Limit of seals of all groups per second; above it fetchers seal less often.",
    "checkpoint_interval_ms": "Interval of a region's checkpoints.",
    "drain_timeout_ms": "Time for a region's members to take a checkpoint.",
    "checkpoints_kept": "Complete checkpoints of a region that are kept.",
    "max_consecutive_resets": "Resets of a region without a checkpoint between them before it is Failed.",
    "metrics_port": "Port of /metrics for Prometheus, and of /healthz; 0 for none.",
    "metrics_host": "The address to listen on; 0.0.0.0 for all of this host.",
    "history_dir": "Folder for this node's history, for the checker.",
}

SWITCH_S = 0.0005


@click.command()
@config_options(CoordinatorConfig, HELPS)
@log_options
def run(log_level: str, log_format: str, **options: Any) -> None:
    """Stand for election and, while elected, coordinate every group. SIGTERM, SIGHUP and Ctrl-C resign cleanly."""
    log_to_stderr(log_level, log_format)
    config = built(CoordinatorConfig, options)
    opener = kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000, access=config.access)
    runtime = ThreadRuntime(recorder_in(config.history_dir, config.node, kind="node"))
    # A refusal of the list is one of the session: logged, and retried after a backoff.
    opener = listed(opener, config.node, socket.gethostname())
    opener = OutageLog(f"node {config.node}", config.zk, opener, runtime).open
    metrics = CoordinatorMetrics()
    service = CoordinatorService(config, opener, runtime, metrics=metrics)
    on_signals(ENDINGS, lambda number: service.stop())
    # A long turn computes; the others mostly wait for answers, each time for a thread switch of 5 ms by default.
    sys.setswitchinterval(SWITCH_S)
    with MetricsServer(metrics.registry, config.metrics_host, config.metrics_port, runtime, service.unhealthy):
        service.run()
