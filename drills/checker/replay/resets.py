"""Recognizes an operator's reset of offsets, by its process and by what its transactions look at."""

from __future__ import annotations

from coordinator.zk.znodes.paths import COORDINATOR_EPOCH

from .commits import OFFSET, Commit, KnownProcess

MEMBERS = ("node", "consumer", "slot", "liar")


def is_reset(commit: Commit, process: KnownProcess) -> bool:
    """Whether offsets are written by neither a coordinator, which looks at its epoch, nor a consumer, which looks at
    its channel."""
    if commit.by_hand or not commit.mask & OFFSET or process.kind in MEMBERS:
        return False
    paths = [op["path"] for op in commit.event.get("ops", ())]
    return not any(path == COORDINATOR_EPOCH or "/channel/" in path for path in paths)
