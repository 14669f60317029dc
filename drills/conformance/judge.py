"""The transaction log of a scenario, replayed: the checker's invariants, and the bounds of a consumer's multis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coordinator.zk.store import MAX_COMMIT_BYTES, MAX_OPERATIONS
from coordinator.zk.znodes.paths import CONSUMERS, GROUPS, NODES, GroupPaths

from ..checker import check
from ..evidence.files import write_history
from ..evidence.histories import STRANGER, Event, Notes, logged, merged_history, write_down

MOST_PATHS = 3
PARENTS = {path.rpartition("/")[2] for path in GroupPaths("any").skeleton[3:]}


def judged(notes: Notes, histories: Path, logs: Sequence[Path], chroot: str, own_session: int) -> list[str]:
    """What the transaction log shows to be wrong; empty when every invariant that it can decide was held.

    The processes have ended. The history is left beside their folder.

    :param histories: of the coordinators.  :param logs: the transaction logs' folders.
    :param own_session: the kit's.
    """
    histories.mkdir(parents=True, exist_ok=True)
    files = write_down(notes, histories, logged(notes, lambda: logs, chroot), own_session)
    events, problems = merged_history(files)
    write_history(histories.parent / "history.jsonl", events)
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
    return any(_is_of_channel(each) for each in operations) or all(map(_is_parent, operations))


def _is_of_channel(operation: dict[str, Any]) -> bool:
    parts = list(_below(operation["path"]))
    return operation["op"] in ("set", "check") and len(parts) == 3 and parts[1] == "channel"


def _is_parent(operation: dict[str, Any]) -> bool:
    """Whether it creates a parent, or an empty channel."""
    if operation["op"] != "create" or operation.get("ephemeral"):
        return False
    parts = list(_below(operation["path"]))
    is_channel = len(parts) == 3 and parts[1] == "channel" and not operation.get("data")
    of_topic = len(parts) == 3 and parts[1] in ("owners", "offsets")
    return len(parts) < 2 or (len(parts) == 2 and parts[1] in PARENTS) or is_channel or of_topic


def _below(path: str) -> Iterator[str]:
    """The names of a path below `/consumers/groups`; none for one above it."""
    if path.startswith(f"{GROUPS}/"):
        yield from path.removeprefix(f"{GROUPS}/").split("/")
    elif path not in (CONSUMERS, GROUPS):
        yield from ("", "", "", "")  # no place for a consumer to write
