"""`zk-coordinator run`: one node."""

from __future__ import annotations

import signal
from typing import Any

import click

from coordinator.config import CoordinatorConfig
from coordinator.metrics import CoordinatorMetrics
from coordinator.service import CoordinatorService
from coordinator.zk.cli_config import built, config_options, log_options, log_to_stderr
from coordinator.zk.kazoo_store import kazoo_factory
from coordinator.zk.recorder import recorder_in
from coordinator.zk.runtime import ThreadRuntime, on_signals
from coordinator.zk.serving import MetricsServer

HELPS = {
    "zk": "The ZooKeeper servers, as host:port,host:port/chroot.",
    "node": "This node's name; the host's when it is not given.",
    "brokers_path": "The znode under which the topics stand.",
    "session_timeout_ms": "The ZooKeeper session timeout to ask for.",
    "connect_timeout_ms": "How long to wait for a ZooKeeper server at the start.",
    "rebalance_handlers": "Groups whose turns may run at the same time.",
    "max_rebalance_retries": "Turns that may fail in a row before a group is RebalanceFailed.",
    "rebalance_debounce_ms": "Changes of a group that come so soon after a turn make one turn.",
    "sweep_interval_ms": "How often everything is read again, in case a watch was lost.",
    "channel_retention_ms": "How long the channel of a consumer that is gone is kept.",
    "query_retention_ms": "How long a query that gives no sign of life holds segments back.",
    "max_backlog_bytes": "Bytes of sealed segments that may wait for a group's queries; over it its fetchers pause.",
    "max_backlog_segments": "The same, in segments.",
    "backlog_interval_ms": "How often backlogs are looked at, and those that press are collected.",
    "max_seals_per_s": "Seals of all groups together; for more, fetchers are told to seal less often.",
    "metrics_port": "Serve /metrics for Prometheus on this port; 0 does not.",
    "metrics_host": "The address to serve it on.",
    "history_dir": "Keep a history of what this node does in this folder, for the checker.",
}


@click.command()
@config_options(CoordinatorConfig, HELPS)
@log_options
def run(log_level: str, log_format: str, **options: Any) -> None:
    """Stand for election and, while elected, coordinate every group. SIGTERM resigns cleanly."""
    log_to_stderr(log_level, log_format)
    config = built(CoordinatorConfig, options)
    opener = kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000)
    runtime = ThreadRuntime(recorder_in(config.history_dir, config.node, kind="node"))
    metrics = CoordinatorMetrics()
    service = CoordinatorService(config, opener, runtime, metrics=metrics)
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: service.stop())
    with MetricsServer(metrics.registry, config.metrics_host, config.metrics_port, runtime):
        service.run()
