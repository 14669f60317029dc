"""Breadth-first search of a model: every interleaving up to the first violation, and a trace that leads to it.

Besides what models of groups have in common: their worlds have `channels`, `processes`, and in `left` the faults that
may still happen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

W = TypeVar("W", bound=Hashable)
C = TypeVar("C", bound="Bounds")
Step = tuple[str, Any, str]
"""A label, the next world, and what it violates or ""."""
Apply = Callable[[Any, Any, Any], tuple[Any, str] | None]
"""The world after a multi and what it violates, or None when ZooKeeper refuses it."""

NAMES = "ABC"
FIRST = 10
"""Incarnations count from here."""


class Rule(NamedTuple):
    """A line of `rules.txt`."""

    sentence: str
    faults: str = ""
    found: str = ""


class Table(NamedTuple):
    """A model's rules, and its searches that find nothing: title -> words."""

    rules: dict[str, Rule]
    searches: dict[str, str]


def table(model: str) -> Table:
    """A section of `rules.txt`."""
    text = Path(__file__).with_name("rules.txt").read_text().replace("\n    ", " ")
    section = text.partition(f"\n== {model}\n")[2].partition("\n\n== ")[0]
    rules, searches = ([line.split(" | ") for line in part.splitlines()] for part in section.split("\n\n"))
    return Table({name: Rule(*columns) for name, *columns in rules}, {title: words for title, words in searches})


@dataclass(frozen=True)
class Bounds:
    """What bounds a search.

    :ivar mut: rules that are taken out.  :ivar progress: every n-th state is checked for progress; 0: none.
    :ivar left: faults of the model's `FAULTS`, and how often each may happen.
    """

    TABLE: ClassVar[Table]
    FAULTS: ClassVar[tuple[str, ...]] = ()
    mut: str = ""
    progress: int = 0
    max: int = 3_000_000
    secs: float = 240
    left: tuple[tuple[str, int], ...] = ()
    muts: frozenset[str] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "muts", frozenset(self.mut.split(",")) - {""})
        if self.muts - self.TABLE.rules.keys():
            raise ValueError(f"unknown rule, known are {', '.join(self.TABLE.rules)}")


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


def versioned(x: Any, version: int) -> Any:
    """With this version; itself when it has that."""
    return x if x.version == version else x._replace(version=version)


def union(shares: Iterable[int]) -> int:
    """All that is in one of these sets, whose members are bits."""
    return reduce(or_, shares, 0)


def name_of(name: int, incarnation: int) -> str:
    """An incarnation, for people."""
    return f"{NAMES[name]}{incarnation - FIRST}"


def spend(w: Any, fault: str) -> Any:
    """The world with one fault less to come; None when none is left."""
    if not dict(w.left).get(fault):
        return None
    return w._replace(left=tuple((f, n - (f == fault)) for f, n in w.left))


def swap(w: W, old: Any, new: Any) -> W:
    """With another process in the place of one, or with none."""
    world: Any = w
    swapped: W = world._replace(processes=tuple(q for q in (new if q == old else q for q in world.processes) if q))
    return swapped


def is_mine(w: Any, p: Any) -> bool:
    """Whether a process still has its name."""
    c = w.channels[p.name]
    return bool(c.incarnation == p.incarnation and not c.ended)


def sends(apply: Apply, cfg: Any, w: Any, p: Any, what: str, ops: Any, after: Any, before: Any) -> Iterator[Step]:
    """A process's multi: answered, refused, done with its reply lost, or still on its way."""
    label, unknown = f"{name_of(p.name, p.incarnation)} {what}", before._replace(unknown=1)
    done = apply(cfg, w, ops)
    if done is None:
        yield label + ": refused", swap(w, p, unknown), ""
        return
    yield label, swap(done[0], p, after), done[1]
    if lost := spend(done[0], "lost"):
        yield label + " (reply lost)", swap(lost, p, unknown), done[1]
    if late := spend(w, "late"):
        yield label + " (in flight)", swap(late, p, unknown)._replace(flight=(*late.flight, (p.incarnation, ops))), ""


def arrives(apply: Apply, cfg: Any, w: Any) -> Iterator[Step]:
    """A multi that was in flight."""
    for i, (_, ops) in enumerate(w.flight):
        if done := apply(cfg, w, ops):
            yield f"late: {[o[0] for o in ops]}", done[0]._replace(flight=(*w.flight[:i], *w.flight[i + 1 :])), done[1]


def described(multi: tuple[Any, ...], says: Mapping[str, Callable[..., str]]) -> str:
    """The label of a coordinator's multi, for a trace."""
    return ", ".join(says[op](*args) for op, *args in multi if op in says) or "state"


class Canon:
    """The canonical form of what refers to versions and commands: versions become 1 or 0, command names their ranks.

    :ivar ahead: for each operation with a version, by how much that of each thing is above 1.
    :ivar ranked: operations with the name of a command, and whether it must exist.
    :ivar lenient: operations that any version will do for.
    """

    def __init__(
        self, w: Any, ahead: Mapping[str, Sequence[int]], ranked: Mapping[str, bool], lenient: Collection[str] = ()
    ) -> None:
        self._rank = {x: i + 1 for i, x in enumerate(sorted(x.seq for c in w.channels for x in c.commands))}
        self._ahead, self._ranked, self._lenient = ahead, ranked, lenient

    def rank(self, seq: int) -> int:
        return self._rank.get(seq, 0)

    def channels(self, channels: Sequence[Any]) -> tuple[Any, ...]:
        """Those of now, or as a turn has read them; one that it has not read is empty."""
        return tuple(map(self._channel, channels, self._ahead["channel"]))

    def _channel(self, c: Any, by: int) -> Any:
        if not c or not (by or c.commands):
            return c
        commands = tuple([x._replace(seq=self._rank.get(x.seq, 0)) for x in c.commands])
        return c._replace(version=max(c.version - by, 0), commands=commands)

    def multi(self, multi: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(map(self._op, multi))

    def _op(self, o: tuple[Any, ...]) -> tuple[Any, ...]:
        if o[0] in self._ahead:
            return (*o[:2], max(o[2] - self._ahead[o[0]][o[1]], 0), *o[3:])
        return (*o[:2], self._rank.get(o[2], 0), *o[3:]) if o[0] in self._ranked else o

    def is_hopeless(self, multi: tuple[Any, ...]) -> bool:
        """Whether it can only be refused."""
        for o in multi:
            if o[0] in self._ahead:
                if o[2] != 1 and o[0] not in self._lenient:
                    return True
            elif self._ranked.get(o[0]) and not o[2]:
                return True
        return False

    def flight(self, flight: Sequence[tuple[int, Any]]) -> tuple[tuple[int, Any], ...]:
        if not flight:
            return ()
        sailing = ((i, self.multi(multi)) for i, multi in flight)
        return tuple(sorted(each for each in sailing if not self.is_hopeless(each[1])))


def configured(kind: type[C], words: Iterable[str]) -> C:
    """The configuration that `field=value` words describe."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    kinds: dict[str, Any] = {each.name: type(each.default) for each in fields(kind) if each.init}
    left = tuple((fault, int(given.pop(fault, 0))) for fault in kind.FAULTS)
    return kind(left=left, **{key: kinds[key](value) for key, value in given.items()})


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
