"""Breadth-first search of a model: every interleaving up to the first violation, and a trace that leads to it.

Besides what models of groups have in common: their worlds have `channels`, `processes`, and in `left` the faults that
may still happen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

W = TypeVar("W", bound=Hashable)
C = TypeVar("C", bound="DataclassInstance")

NAMES = "ABC"
FIRST = 10
"""Incarnations count from here."""


@dataclass
class Result:
    """The result of a search: `violation` is empty when there is none; `trace` leads to it."""

    states: int
    exhausted: bool
    seconds: float
    violation: str
    trace: list[str]
    progress_checks: int

    def report(self, what: str) -> str:
        """The trace and one line, for people."""
        end = "EXHAUSTED" if self.exhausted else "stopped" if self.violation else "BOUNDED"
        found = f"VIOLATION ({len(self.trace)} steps) {self.violation}" if self.violation else "no violation"
        counts = f"{self.states} states, {self.progress_checks} progress checks, {end}, {self.seconds:.1f} s"
        return "\n".join([*(f"{i:4} {label}" for i, label in enumerate(self.trace, 1)), f"{what} | {counts} | {found}"])


def put(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    """With another item at that place."""
    return (*items[:at], item, *items[at + 1 :])


def name_of(name: int, incarnation: int) -> str:
    """An incarnation, for people."""
    return f"{NAMES[name]}{incarnation - FIRST}"


def spend(w: Any, fault: str) -> Any:
    """The world with one fault less to come; None when none is left."""
    left = dict(w.left)
    return w._replace(left=tuple((f, n - (f == fault)) for f, n in w.left)) if left[fault] else None


def swap(w: Any, old: Any, new: Any) -> Any:
    """With another process in the place of one, or with none."""
    return w._replace(processes=tuple(q for q in (new if q == old else q for q in w.processes) if q))


def is_mine(w: Any, p: Any) -> bool:
    """Whether a process still has its name."""
    c = w.channels[p.name]
    return bool(c.incarnation == p.incarnation and not c.ended)


def main(kind: type[C], run: Callable[[C], Result], words: list[str]) -> int:
    """Search what `field=value` words say, and print what was found; 1 with a violation."""
    result = run(configured(kind, (word for word in words if "=" in word)))
    print(result.report(" ".join(words)))
    return 1 if result.violation else 0


def configured(kind: type[C], words: Iterable[str]) -> C:
    """The configuration that `field=value` words describe."""
    kinds: dict[str, Any] = {each.name: type(each.default) for each in fields(kind) if each.init}
    return kind(**{key: kinds[key](value) for key, value in (word.split("=", 1) for word in words)})


def search(
    start: W,
    steps: Callable[[W], Iterable[tuple[str, W, str]]],
    stuck: Callable[[W], str],
    progress: int,
    most: int,
    secs: float,
    quiet: Callable[[W], W] = lambda w: w,
) -> Result:
    """Breadth first, up to the first violation. Visited states are kept as 64-bit hashes.

    :param steps: (label, next state, violation or empty) of each step from a state.
    :param stuck: the violation of a state without progress after faults have stopped; empty without one.
    :param progress: every n-th state is asked about; 0: none.  :param quiet: what of a state matters for that.
    :param most: states, at most.
    """
    began = time.monotonic()
    parent: dict[int, int] = {hash(start): 0}
    waiting, proven = deque([start]), set[int]()
    expanded = 0

    def result(violation: str, at: int, last: tuple[str, ...] = (), exhausted: bool = False) -> Result:
        trace = [*_path(start, steps, parent, at), *last] if violation else []
        return Result(len(parent), exhausted, time.monotonic() - began, violation, trace, len(proven))

    while waiting:
        w = waiting.popleft()
        here = hash(w)
        expanded += 1
        if progress and expanded % progress == 0 and hash(quiet(w)) not in proven:
            proven.add(hash(quiet(w)))
            if problem := stuck(w):
                return result(problem, here)
        for label, after, bad in steps(w):
            if bad:
                return result(bad, here, (label,))
            key = hash(after)
            if key not in parent:
                parent[key] = here
                waiting.append(after)
        if len(parent) > most or time.monotonic() - began > secs:
            return result("", here)
    return result("", 0, exhausted=True)


def _path(start: W, steps: Callable[[W], Iterable[tuple[str, W, str]]], parent: dict[int, int], at: int) -> list[str]:
    """The labels from the start to the state with this hash."""
    keys = []
    while at:
        keys.append(at)
        at = parent[at]
    labels, w = [], start
    for key in reversed(keys[:-1]):
        label, w, _ = next(step for step in steps(w) if hash(step[1]) == key)
        labels.append(label)
    return labels
