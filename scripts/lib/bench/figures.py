"""Statistics: minimum, median, maximum, and the machine's load."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import psutil

LOOK_S = 0.5


def summary(values: Iterable[float], digits: int = 1) -> dict[str, float] | None:
    """Minimum, median and maximum; None without a measurement."""
    known = sorted(values)
    if not known:
        return None
    named = {"min": known[0], "median": median(known), "max": known[-1]}
    return {name: round(value, digits) for name, value in named.items()}


def machine() -> dict[str, Any]:
    """The machine's load before the benchmark: a loaded machine makes the figures unreliable."""
    return {
        "cpus": os.cpu_count(),
        "busy_before_percent": round(psutil.cpu_percent(LOOK_S)),
        "load_1m_before": round(os.getloadavg()[0], 2),
    }


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its reaped children."""
    return float(sum(psutil.Process(pid).cpu_times()[:4]))


def peak_memory_mb(pid: int) -> float:
    """The peak resident memory of a process, in MB (10^6 bytes). psutil lacks it on Linux."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) * 1024 / 1e6, 1)
    return 0.0
