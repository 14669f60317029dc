"""The lies of `drills/workloads/lying_member.py`."""

from __future__ import annotations

from collections.abc import Mapping

LIES: Mapping[str, str] = {
    "largest-generation": "it writes the largest generation that there is into its channel",
    "impossible-generation": "it writes a generation beyond the bound of the format",
    "acknowledges-only": "it acknowledges every command and claims nothing",
    "removes-only": "it removes every command, and its channel names none",
    "keeps-what-was-stopped": "it acknowledges a stop and keeps what it was to stop",
    "refuses-everything": "it refuses every partition of a start, and a million more",
    "longest-lease": "it registers with a lease of a day",
    "another-incarnation": "its registration names another incarnation than its channel",
    "no-incarnation": "its incarnation is empty",
    "ended-while-registered": "its channel is ended while it stays registered",
    "scribbles": "it writes unreadable data, by turns into its registration and its channel",
    "commands-itself": "it sends commands to its own channel",
}
"""Kind of lie -> what it does."""
