"""The history checker: decides from a history whether the invariants of the design held. `history.md` says what a
history is.

verdicts = check(events)
assert not verdicts.broken, verdicts.text()
"""

from __future__ import annotations

from .checker import Checker, check, check_file, check_files
from .verdict import BROKEN, HELD, NOT_DECIDED, Event, Finding, Verdict, Verdicts

__all__ = [
    "BROKEN", "HELD", "NOT_DECIDED", "Checker", "Event", "Finding", "Verdict", "Verdicts", "check", "check_file",
    "check_files",
]  # fmt: skip
