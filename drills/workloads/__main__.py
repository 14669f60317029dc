"""`python -m zk_group.drills.workloads MODULE.FUNCTION CONFIG`: runs one process of a drill. Its log goes to stderr."""

from __future__ import annotations

import sys
from pkgutil import resolve_name

from zk_group.coordinator.zk.process.log_format import log_to_stderr
from zk_group.coordinator.zk.znodes.json_fields import Fields

if __name__ == "__main__":
    log_to_stderr()
    resolve_name(f"zk_group.drills.workloads.{sys.argv[1]}")(Fields.parse("the configuration", sys.argv[2].encode()))
