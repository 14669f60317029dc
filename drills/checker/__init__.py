"""The history checker: decides in one pass whether a history satisfies the invariants of the design. `history.md`
specifies the format of histories. Imports the records of `coordinator.zk`.

verdicts = check(events)
assert not verdicts.broken, verdicts.text()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from .invariants.base import Invariant, Rules
from .invariants.l1_settles import Decided, Settled
from .invariants.l2_l3_delays import ChangesSeen, Unhindered
from .invariants.l4_churn import ChurnProgress
from .invariants.l6_resumed import Resumed
from .invariants.s1_exclusive import Exclusive
from .invariants.s2_coverage import Covering
from .invariants.s3_s6_commands import Acknowledged, Ordered
from .invariants.s4_deposed import Deposed
from .invariants.s5_sealed_ranges import SealedRanges
from .invariants.s7_leftovers import Remains
from .invariants.s9_assignments import Adopted
from .invariants.s10_restored import Restored
from .invariants.s11_cuts import CompleteCuts
from .replay.commits import Commit
from .replay.history_files import Lines, merged
from .replay.replay import Replay
from .replay.verdict import BROKEN, HELD, NOT_DECIDED, Event, Verdict, Verdicts, Violation, handlers_of

__all__ = [
    "BROKEN", "HELD", "NOT_DECIDED", "Checker", "Event", "Violation", "Verdict", "Verdicts", "check", "check_files",
]  # fmt: skip

TICK_S = 0.5

Handler = Callable[[Event], None]


class Checker:
    """Feeds events to the world, and to the invariants that handle them."""

    def __init__(self) -> None:
        world = self.world = Replay()
        self._exclusive = Exclusive(world)
        restored = Restored(world)
        self.invariants: Sequence[Invariant] = (
            self._exclusive, Covering(world), Ordered(world), Deposed(world), SealedRanges(world), Acknowledged(world),
            Remains(world), Adopted(world), restored, CompleteCuts(world, restored),
            Settled(world), ChangesSeen(world), Unhindered(world), ChurnProgress(world),
            Decided(world), Resumed(world),
        )  # fmt: skip
        self._now = float("-inf")
        self._next_tick = float("-inf")
        self._handlers_of: dict[int, list[Callable[[Commit], None]]] = {}
        rules = chain.from_iterable(each.parts for each in self.invariants)
        parts: list[Invariant | Rules] = [*self.invariants, *rules]
        self._ticked = [each.on_tick for each in parts if type(each).on_tick not in (Invariant.on_tick, Rules.on_tick)]
        self._handlers: dict[str, list[Handler]] = {
            "commit": [lambda event: self._dispatch(world.commit(event))],
            "closed": [lambda event: self._dispatch(world.close(event))],
        }
        for part in (world, world.conditions, world.fetching, *parts):
            for kind, handler in handlers_of(part):
                self._handlers.setdefault(kind, []).append(handler)
        self.events = 0

    def feed(self, event: Event) -> None:
        self.events += 1
        at = event["at"]
        if at > self._now:
            if self.world.fetching.contested:
                self._exclusive.meet(self._now)
            if at >= self._next_tick:
                self._next_tick = at + TICK_S
                for tick in self._ticked:
                    tick(at)
            self._now = at
        for handler in self._handlers.get(event["event"], ()):
            handler(event)

    def verdicts(self, aside: int = 0, problems: Sequence[str] = ()) -> Verdicts:
        """
        :param aside: number of ignored events.  :param problems: the first of them, each with its reason.
        """
        found = {each.name: each.verdict(aside) for each in self.invariants}
        return Verdicts(found, self.events, aside, tuple(problems))

    def _dispatch(self, commit: Commit) -> None:
        mask = commit.mask
        handlers = self._handlers_of.get(mask)
        if handlers is None:
            handlers = self._handlers_of[mask] = [each.on_commit for each in self.invariants if each.wants & mask]
        for handle in handlers:
            handle(commit)


def check(events: Iterable[Event]) -> Verdicts:
    """Check a history whose events are in order and of the right schema, as a simulation's are.

    :raises KeyError: when an event lacks a required field; likewise TypeError.
    """
    checker = Checker()
    for event in events:
        checker.feed(event)
    return checker.verdicts()


def check_files(*paths: Path) -> Verdicts:
    """Check a history in a file, or that of several processes, one file each.

    Unreadable lines are ignored, and counted in the verdicts.

    :raises OSError: when a file cannot be read.
    """
    lines = [Lines(path) for path in paths]
    checker = Checker()
    for event in merged(lines) if len(lines) > 1 else lines[0].events():
        checker.feed(event)
    return checker.verdicts(sum(each.aside for each in lines), [text for each in lines for text in each.problems])
