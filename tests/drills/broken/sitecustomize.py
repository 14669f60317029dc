"""Breaks the product in the processes that a drill starts: Python reads this first where it stands on PYTHONPATH.

DRILL_BREAKS names a function of `nodes.py` or of `consumers.py`. It is called in the nodes or in the consumers of the
drill and nowhere else: the drill that judges them, and the process that reads its DataFrame, are the product as it is.
"""

from __future__ import annotations

import os
import sys

BREAKS = os.environ.get("DRILL_BREAKS", "")
MODULE = " ".join(sys.orig_argv[1:4])
"""`-m`, the module that is started, and its first argument."""

if BREAKS and MODULE == "-m coordinator.cli run":
    from tests.drills.broken import nodes

    getattr(nodes, BREAKS, lambda: None)()
elif BREAKS and MODULE.startswith(("-m consumer.drill.slot ", "-m consumer.drill.application ")):
    from tests.drills.broken import consumers

    getattr(consumers, BREAKS, lambda: None)()
