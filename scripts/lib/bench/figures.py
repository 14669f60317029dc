"""Numbers as they are told: minimum, median, maximum, and how loaded the machine was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

LOOK_S = 0.5


def summary(values: Iterable[float], digits: int = 1) -> dict[str, float] | None:
    """Minimum, median and maximum; None where nothing was measured."""
    known = sorted(values)
    if not known:
        return None
    named = {"min": known[0], "median": median(known), "max": known[-1]}
    return {name: round(value, digits) for name, value in named.items()}


def machine() -> dict[str, Any]:
    """How loaded the machine is before anything of ours runs: figures from a busy one say little."""
    before = _busy_and_all()
    time.sleep(LOOK_S)
    busy, everything = (after - first for after, first in zip(_busy_and_all(), before, strict=True))
    return {
        "cpus": os.cpu_count(),
        "busy_before_percent": round(100 * busy / max(everything, 1)),
        "load_1m_before": round(os.getloadavg()[0], 2),
    }


def _busy_and_all() -> tuple[int, int]:
    """Clock ticks of all processors since the start: at work, and altogether."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process and the children that it waited for have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def peak_memory_mb(pid: int) -> float:
    """The largest resident memory that a process has had, in MB (10^6 bytes)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return 0.0
