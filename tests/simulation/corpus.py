"""The corpus: worlds of the aimed profile in which something met that had not met before, kept and mutated.

As a coverage-guided fuzzer keeps the inputs that reached something new (AFL): here the circumstances of a world and the
kinds of its faults. What meets is in `interleavings`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

FILE = Path(__file__).parent / "corpus.jsonl"
MOST = 60
"""Entries that are kept: those with most that was new."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A world of a profile.

    :ivar circumstances: name of a field -> index of its value.  :ivar kinds: of faults.
    """

    circumstances: Mapping[str, int]
    kinds: tuple[str, ...]

    def mutated(self, random: Random, fresh: Plan) -> Plan:
        """One circumstance, or one kind, as in `fresh`; one kind less; or all as it is, with other draws."""
        change = random.randrange(4)
        circumstances, kinds = dict(self.circumstances), list(self.kinds)
        if change == 0 and circumstances:
            name = random.choice(sorted(circumstances))
            circumstances[name] = fresh.circumstances[name]
        elif change == 1:
            kinds.append(random.choice(fresh.kinds))
        elif change == 2 and len(kinds) > 1:
            kinds.remove(random.choice(kinds))
        return Plan(circumstances, tuple(dict.fromkeys(kinds)))


def load(file: Path = FILE) -> tuple[Plan, ...]:
    """The entries of the repository."""
    lines = file.read_text().splitlines() if file.exists() else []
    return tuple(Plan(entry["circumstances"], tuple(entry["kinds"])) for entry in map(json.loads, lines))


def save(plans: Iterable[Plan], file: Path = FILE) -> None:
    """One line for each."""
    file.write_text("".join(json.dumps(asdict(plan), separators=(",", ":")) + "\n" for plan in plans))


def selected(runs: Iterable[tuple[Plan, frozenset[str]]], most: int = MOST) -> Iterator[Plan]:
    """The plans that together reach what all runs reached, those that add most first."""
    left = list(runs)
    seen: set[str] = set()
    for _ in range(most):
        plan, reached = max(left, key=lambda run: len(run[1] - seen), default=(None, frozenset[str]()))
        if plan is None or not reached - seen:
            return
        seen |= reached
        yield plan


def known(plan: Plan, circumstances: Mapping[str, tuple[Any, ...]], kinds: Iterable[str]) -> bool:
    """Whether a profile still has all of a plan."""
    has = set(kinds)
    return plan.circumstances.keys() == circumstances.keys() and has.issuperset(plan.kinds)


# ---- interleavings

_ENDED = '"ended":"'
_COMMANDS = {"start-fetcher": "start", "stop-fetcher": "stop", "assign": "assign", "drain": "drain"}


def interleavings(history: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Pairs of commits of different processes in a group, and of a fault and the commit after it."""
    found: set[str] = set()
    last: dict[str, tuple[str, str]] = {}
    fault = ""
    for event in history:
        if event["event"] == "fault":
            fault = event["kind"]
        elif event["event"] == "closed":
            for group in {path.split("/")[3] for path in event["paths"] if path.startswith("/consumers/groups/")}:
                last[group] = ("server", "session ended")
        elif event["event"] == "commit":
            for group, said in _said(event).items():
                who, before = last.get(group, ("", "nothing"))
                if who != event["who"]:
                    found.add(f"{before} > {said}")
                if fault:
                    found.add(f"{fault} > {said}")
                last[group] = event["who"], said
            fault = ""
    return frozenset(found)


def _said(event: Mapping[str, Any]) -> dict[str, str]:
    """Group -> what a commit did there, and who it was: `node evict start`."""
    by = "node" if event["who"].startswith("node") else "hand" if event["who"] == "hand" else "member"
    done: dict[str, set[str]] = {}
    for operation in event["ops"]:
        parts = operation["path"].split("/")
        if parts[1:3] == ["consumers", "groups"] and len(parts) > 4 and operation["op"] != "check":
            done.setdefault(parts[3], set()).add(_what(operation, parts[4:], by))
    return {group: " ".join([by, *sorted(what - {""})]) for group, what in done.items()}


def _what(operation: Mapping[str, Any], parts: Sequence[str], by: str) -> str:
    kind, data = operation["op"], operation.get("data") or ""
    if parts[0] == "channel" and len(parts) == 3:
        if kind == "delete":
            return "withdraw" if by == "node" else "acknowledge"
        return next((name for option, name in _COMMANDS.items() if f'"{option}"' in data), "")
    if parts[0] == "channel":
        return "evict" if f"{_ENDED}evicted" in data else "end" if _ENDED in data else "channel"
    if parts[0] in ("owners", "ids", "seats", "segments", "queries") and len(parts) > 1:
        return f"{kind} {parts[0]}"
    return parts[0] if parts[0] in ("state", "sync", "sync_request") else ""
