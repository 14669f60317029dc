"""What a drill is: said before anything is done, and the one function that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .ground import OWN_CHROOT
from .measure import Measured
from .settings import Settings
from .stage import Stage

STEADY = "the group is Stable, every partition is fetched, and records reach the segments"
ABORT = "the steady state does not come within 30 s, or ZooKeeper is lost for good"
TOUCHES = (OWN_CHROOT, "a folder of its own under the runs folder", "processes that it starts")

Bounds = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Promise:
    """One number that was promised.

    :ivar rule: the bound in words, as docs/drills.md has it.
    :ivar bound: the most that it may be, of the drill's bounds.
    :ivar measured: what it was, None when it was not reached.
    :ivar unit: seconds, or what is counted.
    """

    name: str
    rule: str
    bound: Callable[[Bounds], float]
    measured: Callable[[Measured], float | None]
    unit: str = "s"


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill.

    :ivar run: does the fault; the consumers that shall be in the group in the end.
    :ivar servers: it needs an ensemble of so many.
    :ivar needs: what it does to the ensemble's servers, as `Ground.can` has it.
    :ivar adjust: the settings that it wants, of those that it was given.
    :ivar touches: what it touches beside what all of them do.
    :ivar least_fetched: so many records must have come after the fault, or the drill has shown nothing.
    """

    name: str
    title: str
    proves: str
    hypothesis: str
    fault: str
    run: Callable[[Stage], set[str]]
    promises: tuple[Promise, ...] = ()
    servers: int = 1
    needs: frozenset[str] = frozenset()
    is_short: bool = True
    adjust: Callable[[Settings], Settings] = field(default=lambda settings: settings)
    least_fetched: int = 100
    touches: tuple[str, ...] = ()

    def lacks(self, can: frozenset[str]) -> str:
        """What it needs and a ground that `can` so much has not, in words; empty when it can run there."""
        return " and ".join(sorted(self.needs - can))

    def described(self, touches: Sequence[str] = TOUCHES[:1]) -> dict[str, Any]:
        """What is said of it before anything is done, as run.json has it.

        :param touches: what it writes in ZooKeeper.
        """
        return {
            "drill": self.name,
            "title": self.title,
            "proves": self.proves,
            "hypothesis": self.hypothesis,
            "steady_state": STEADY,
            "fault": self.fault,
            "abort": ABORT,
            "touches": [*touches, *TOUCHES[1:], *self.touches],
        }
