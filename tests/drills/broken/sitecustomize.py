"""Breaks the product in every process that a drill starts: Python reads this first where it stands on PYTHONPATH.

DRILL_BREAKS names what is broken; the change lasts as long as the process.
"""

from __future__ import annotations

import os
from unittest.mock import patch


def long_lease() -> None:
    """A lease outlives its session by far."""
    patch("coordinator.zk.lease.LEASE_SHARE", 4.0).start()


BREAKS = {each.__name__: each for each in (long_lease,)}
if name := os.environ.get("DRILL_BREAKS"):
    BREAKS[name]()
