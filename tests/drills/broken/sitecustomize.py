"""Breaks the product in the processes that a drill starts: Python imports this first from PYTHONPATH.

DRILL_BREAKS is `drill=mutation,drill=mutation`. A mutation is a function of `nodes.py` or of `consumers.py`, called in
the nodes or in the consumers of its drill and nowhere else: the drill that judges them, and the process that reads its
DataFrame, are the product as it is. A process's chroot names its drill.

With DRILL_READER=plain what is sealed is read without a Spark.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from importlib import import_module

NODE = "-m zk_group.coordinator.cli run "
CONSUMERS = (
    "-m zk_group.consumer.cli run ",
    "-m zk_group.drills.workloads slot.main ",
    "-m zk_group.drills.workloads application.",
)
READER = "-m zk_group.drills.workloads.spark_app"
COMMAND = " ".join(sys.orig_argv[1:])

if (BREAKS := os.environ.get("DRILL_BREAKS", "")) and COMMAND.startswith((NODE, *CONSUMERS)):
    drill = re.search(r"/zk-group-drill-[0-9a-z]+-([0-9a-z-]+)", COMMAND)
    broken = dict(each.split("=") for each in BREAKS.split(",")).get(drill[1] if drill else "", "")
    module = import_module("tests.drills.broken." + ("nodes" if COMMAND.startswith(NODE) else "consumers"))
    getattr(module, broken, lambda: None)()

if os.environ.get("DRILL_READER") == "plain" and COMMAND.startswith(READER):
    try:
        from tests.drills.broken.plain_reader import main

        main()
        os._exit(0)  # before the module of the command is run
    except BaseException:  # noqa: BLE001  Python would continue with that module
        traceback.print_exc()
        os._exit(1)
