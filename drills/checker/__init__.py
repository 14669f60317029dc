"""The history checker: decides whether a history satisfies the invariants of the design. `history.md` specifies the
format of histories. Imports the records of `coordinator.zk`.

verdicts = check(events)
assert not verdicts.broken, verdicts.text()
"""

from __future__ import annotations

from .checker import Checker, check, check_file, check_files
from .replay.verdict import BROKEN, HELD, NOT_DECIDED, Event, Verdict, Verdicts, Violation

__all__ = [
    "BROKEN", "HELD", "NOT_DECIDED", "Checker", "Event", "Violation", "Verdict", "Verdicts", "check", "check_file",
    "check_files",
]  # fmt: skip
