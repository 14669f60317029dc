"""The definition of a drill: its description, and the function that injects its fault."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.settings import Settings
from ..environments.base import OWN_CHROOT
from ..evidence.measurements import Measured
from ..testbed.testbed import Stage

STEADY = "the group is Stable, every partition is fetched, and records reach the segments"
ABORT = "the steady state is not reached within 30 s, or ZooKeeper is lost for good"
TOUCHES = (OWN_CHROOT, "its own folder under the runs folder", "its own processes")

Bounds = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Promise:
    """One promised number.

    :ivar rule: the bound in words, as in docs/drills.md.
    :ivar measured: the measured value; None when it was not reached.
    :ivar bound: the upper limit, computed from the drill's bounds.
    :ivar unit: seconds, or the counted objects.
    """

    name: str
    rule: str
    measured: Callable[[Measured], float | None]
    bound: Callable[[Bounds], float] = field(default=lambda bounds: 0.0)
    unit: str = "s"


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill.

    :ivar run: injects the fault; at the end exactly the slots must be in the group.
    :ivar servers: the minimum size of the ensemble.
    :ivar needs: required operations on the ensemble's servers, as in `Environment.can`.
    :ivar adjust: maps the given settings to the drill's.
    :ivar touches: what it touches in addition to `TOUCHES`.
    :ivar least_fetched: minimum number of records after the fault; below it the drill is INCONCLUSIVE.
    """

    name: str
    title: str
    proves: str
    hypothesis: str
    fault: str
    run: Callable[[Stage], None]
    promises: tuple[Promise, ...] = ()
    servers: int = 1
    needs: frozenset[str] = frozenset()
    is_short: bool = True
    adjust: Callable[[Settings], Settings] = field(default=lambda settings: settings)
    least_fetched: int = 100
    touches: tuple[str, ...] = ()

    def lacks(self, can: frozenset[str]) -> str:
        """The required operations that are not in `can`, in words; empty when the drill can run."""
        return " and ".join(sorted(self.needs - can))

    def described(self, touches: Sequence[str] = TOUCHES[:1]) -> dict[str, Any]:
        """The drill's description in run.json.

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
