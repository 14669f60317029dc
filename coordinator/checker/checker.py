"""Checks a history against the invariants of the design, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from .acknowledged import Acknowledged
from .adopted import Adopted
from .commits import Commit
from .covering import Covering
from .cuts import Cuts
from .decided import Decided
from .deposed import Deposed
from .exclusive import Exclusive
from .invariant import Invariant
from .joined import Joined
from .lines import Lines, merged
from .ordered import Ordered
from .progress import Progress
from .pure import Pure
from .remains import Remains
from .restored import Restored
from .resumed import Resumed
from .seen import Seen
from .settled import Settled
from .unhindered import Unhindered
from .verdict import Event, Verdicts
from .world import World

TICK_S = 0.5

Handler = Callable[[Event], None]


class Checker:
    """Feeds events to the world, and to the invariants what concerns them."""

    def __init__(self) -> None:
        world = self.world = World()
        self._exclusive = Exclusive(world)
        settled, restored = Settled(world), Restored(world)
        self.invariants: Sequence[Invariant] = (
            self._exclusive, Covering(world), Ordered(world), Deposed(world), Joined(world), Acknowledged(world),
            Remains(world), Pure(world), Adopted(world), restored, Cuts(world, restored), settled, Seen(world),
            Unhindered(world), Progress(world, settled), Decided(world), Resumed(world),
        )  # fmt: skip
        self._now = float("-inf")
        self._next_tick = float("-inf")
        self._asked = [(each.wants, each.on_commit) for each in self.invariants if each.wants]
        self._asked_of: dict[int, list[Callable[[Commit], None]]] = {}
        self._ticked = [each.on_tick for each in self.invariants if type(each).on_tick is not Invariant.on_tick]
        self._handlers = self._routes()
        self.events = 0

    def _routes(self) -> dict[str, Handler]:
        world = self.world
        routes: dict[str, list[Handler]] = {
            "run": [self._on_run],
            "start": [world.on_start],
            "commit": [self._on_commit],
            "closed": [self._on_closed, world.fetching.on_closed],
            "registered": [world.fetching.on_registered],
            "begin": [world.fetching.on_begin],
            "halt": [world.fetching.on_halt],
            "exit": [world.fetching.on_exit, world.conditions.on_exit],
            "elected": [world.conditions.on_elected],
            "lease": [self._on_lease],
            "fault": [self._on_fault],
            "calm": [world.conditions.on_calm],
        }
        for invariant in self.invariants:
            for kind, handler in invariant.handlers().items():
                routes.setdefault(kind, []).append(handler)
        return {kind: some[0] if len(some) == 1 else _each(some) for kind, some in routes.items()}

    def feed(self, event: Event) -> None:
        """The next event."""
        self.events += 1
        at = event["at"]
        if at > self._now:
            if self.world.fetching.contested:
                self._exclusive.on_time(self._now, at)
            if at >= self._next_tick:
                self._next_tick = at + TICK_S
                for tick in self._ticked:
                    tick(at)
            self._now = at
        handler = self._handlers.get(event["event"])
        if handler is not None:
            handler(event)

    def verdicts(self, aside: int = 0, problems: Sequence[str] = ()) -> Verdicts:
        """
        :param aside: events that were set aside.  :param problems: the first of them, and why.
        """
        found = {each.name: each.verdict(aside) for each in self.invariants}
        return Verdicts(found, self.events, aside, tuple(problems))

    # ---- events that the world hears of in more than one place

    def _on_run(self, event: Event) -> None:
        self.world.bounds = dict(event["bounds"])

    def _on_commit(self, event: Event) -> None:
        self._tell(self.world.commit(event))

    def _on_closed(self, event: Event) -> None:
        self._tell(self.world.close(event))

    def _tell(self, commit: Commit) -> None:
        mask = commit.mask
        asked = self._asked_of.get(mask)
        if asked is None:
            asked = self._asked_of[mask] = [tell for wants, tell in self._asked if wants & mask]
        for tell in asked:
            tell(commit)

    def _on_lease(self, event: Event) -> None:
        if event["role"] == "coordinator":
            self.world.conditions.on_lease(event)
        else:
            self.world.fetching.on_lease(event)

    def _on_fault(self, event: Event) -> None:
        self.world.on_fault(event)


def _each(handlers: Sequence[Handler]) -> Handler:
    def handle(event: Event) -> None:
        for handler in handlers:
            handler(event)

    return handle


def check(events: Iterable[Event]) -> Verdicts:
    """Check a history whose events are in order and of the right shape, as a simulation has them.

    :raises KeyError: when an event lacks what its kind must have; likewise TypeError.
    """
    checker = Checker()
    feed = checker.feed
    for event in events:
        feed(event)
    return checker.verdicts()


def check_file(path: str | Path) -> Verdicts:
    """Check the history in a file. Lines that cannot be read are set aside, and the verdicts say so.

    :raises OSError: when the file cannot be read.
    """
    return check_files([Path(path)])


def check_files(paths: Sequence[Path]) -> Verdicts:
    """Check a history that several processes have written, one file each. Raises as `check_file`."""
    lines = [Lines(path) for path in paths]
    checker = Checker()
    for event in merged(lines) if len(lines) > 1 else lines[0].events():
        checker.feed(event)
    return checker.verdicts(sum(each.aside for each in lines), [text for each in lines for text in each.problems])
