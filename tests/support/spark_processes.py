"""The processes of a Spark application on this machine, found below the process that started it."""

from __future__ import annotations

import psutil

from zk_group.coordinator.zk.embedded.ensemble import command_line, descendants

EXECUTOR = "CoarseGrainedExecutorBackend"
PYTHON = "pyspark.daemon"


def executors(root: int) -> list[int]:
    """The executor JVMs below a process."""
    return [pid for pid in descendants(root) if EXECUTOR in command_line(pid)]


def slots(root: int, zk_port: int) -> list[int]:
    """The Python workers below a process that talk to ZooKeeper: those that run fetcher slots."""
    return [pid for pid in descendants(root) if PYTHON in command_line(pid) and zk_port in _remote_ports(pid)]


def _remote_ports(pid: int) -> set[int]:
    """The ports that a process is connected to."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return set()
    return {each.raddr.port for each in connections if each.raddr}
