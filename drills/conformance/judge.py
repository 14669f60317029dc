"""The transaction log of a scenario, replayed: the checker's invariants, and the bounds of a consumer's multis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.zk.store import MAX_COMMIT_BYTES, MAX_OPERATIONS
from coordinator.zk.znodes.paths import NODES, GroupPaths

from ..checker import check
from ..evidence.files import write_history
from ..evidence.histories import STRANGER, Event, merged_history

MOST_PATHS = 3
ANY = "[^/]+"
OF_ANY = GroupPaths(ANY)
CHANNEL = re.compile(OF_ANY.channel(ANY))
PARENTS = re.compile("|".join([*OF_ANY.skeleton, OF_ANY.owners_of(ANY), OF_ANY.offsets_of(ANY)]))


def judged(files: Sequence[Path], folder: Path) -> list[str]:
    """What the histories show to be wrong; empty when every invariant that they can decide was held.

    :param files: of the coordinators, the kit and ZooKeeper, in one history left in `folder`.
    """
    events, problems = merged_history(files)
    write_history(folder / "history.jsonl", events)
    verdicts = check(events)
    found = [f"unreadable history: {problem}" for problem in problems]
    found += [f"{verdict.invariant} is broken: {verdict.why}" for verdict in verdicts.broken]
    return found + multis_of_consumers(events)


def multis_of_consumers(events: Sequence[Event]) -> list[str]:
    """The commits of consumers that are too large, or not under the fence of a channel."""
    found = []
    commits = [event for event in events if event["event"] == "commit"]
    nodes = {event["who"] for event in commits if any(each["path"].startswith(f"{NODES}/") for each in event["ops"])}
    for event in commits:
        if not event["who"].startswith(STRANGER) or event["who"] in nodes:  # a node that wrote no history yet
            continue
        operations = event["ops"]
        size = sum(len(each["path"]) + len(each.get("data") or "") for each in operations)
        what = f"the multi at zxid 0x{event['zxid']:x}"
        if len(operations) > MAX_OPERATIONS or size > MAX_COMMIT_BYTES:
            found.append(f"{what} has {len(operations)} operations and {size} bytes")
        elif not _is_fenced(operations):
            paths = ", ".join(sorted({each["path"] for each in operations})[:MOST_PATHS])
            found.append(f"{what} changes {paths}, and neither sets nor checks a channel")
    return found


def _is_fenced(operations: Sequence[dict[str, Any]]) -> bool:
    fences = [each for each in operations if each["op"] in ("set", "check") and CHANNEL.fullmatch(each["path"])]
    return bool(fences) or all(map(_is_parent, operations))


def _is_parent(operation: dict[str, Any]) -> bool:
    """Whether it creates a parent, or an empty channel."""
    if operation["op"] != "create" or operation.get("ephemeral"):
        return False
    path = operation["path"]
    return bool(PARENTS.fullmatch(path) or (CHANNEL.fullmatch(path) and not operation.get("data")))
