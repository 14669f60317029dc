"""The processes of a Spark application on this machine, found below the process that started it."""

from __future__ import annotations

import os
from pathlib import Path

from coordinator.drills.processes import below
from coordinator.zk.ensemble import command_line

EXECUTOR = "CoarseGrainedExecutorBackend"
PYTHON = "pyspark.daemon"


def executors(root: int) -> list[int]:
    """The executor JVMs below a process."""
    return [pid for pid in below(root) if EXECUTOR in command_line(pid)]


def slots(root: int, zk_port: int) -> list[int]:
    """The Python workers below a process that talk to ZooKeeper: those that run fetcher slots."""
    return [pid for pid in below(root) if PYTHON in command_line(pid) and zk_port in _remote_ports(pid)]


def _remote_ports(pid: int) -> set[int]:
    """The ports that a process is connected to."""
    try:
        links = {os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}  # noqa: PTH115  `socket:[1]` is no path
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return set()
    found = set()
    for fields in (line.split() for line in lines):
        if f"socket:[{fields[9]}]" in links:
            found.add(int(fields[2].rpartition(":")[2], 16))
    return found
