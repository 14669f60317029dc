"""The definition of a drill: its description, the function that injects its fault, and the promises.

Promises are functions of the negotiated session timeout; docs/drills.md has them in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
    run: Callable[[Stage], None]
    proves: str
    hypothesis: str
    fault: str
    promises: tuple[Promise, ...] = ()
    servers: int = 1
    needs: frozenset[str] = frozenset()
    is_short: bool = True
    adjust: Callable[[Settings], Settings] = field(default=lambda settings: settings)
    least_fetched: int = 100
    touches: tuple[str, ...] = ()

    def described(self, touches: Sequence[str] = TOUCHES[:1]) -> dict[str, Any]:
        """The drill's description in run.json.

        :param touches: what it writes in ZooKeeper.
        """
        return {
            "drill": self.name, "title": self.title, "proves": self.proves, "hypothesis": self.hypothesis,
            "steady_state": STEADY, "fault": self.fault, "abort": ABORT,
            "touches": [*touches, *TOUCHES[1:], *self.touches],
        }  # fmt: skip


long_drill = partial(Drill, is_short=False)

ACTS_S = 0.5
RECOVERED_S = 1.0
BACKOFF_S = 0.2
PAST_THE_SESSION = 1.6
"""A multiple of the session timeout that exceeds it with its ticks."""


def noticed_s(bounds: Bounds) -> float:
    """The detection of a failure, and the first action after it."""
    return bounds["session_timeout"] + 2 * bounds["tick"] + ACTS_S


def given_up_s(bounds: Bounds) -> float:
    """The eviction of an unresponsive consumer, and the reassignment of its partitions."""
    return bounds["poll_interval"] + bounds["lease"] + RECOVERED_S + ACTS_S


def recovered_s(bounds: Bounds) -> float:
    """The detection of a failure, and the recovery from it."""
    return noticed_s(bounds) + RECOVERED_S


def fetched_again(rule: str, bound: Callable[[Bounds], float], since: str = "T0") -> Promise:
    """Every partition is fetched again, this long after the fault or another mark."""
    return Promise("every partition is fetched again", rule, lambda measured: measured.between(since, "T5"), bound)


def none_of(unit: str, name: str, measured: Callable[[Measured], float | None], rule: str = "") -> Promise:
    """None of these objects is counted; by default the rule says so in the words `0 partitions`."""
    return Promise(name, rule or f"0 {unit}", measured, unit=unit)


def longest_standstill(measured: Measured) -> float | None:
    """The longest downtime of all partitions."""
    return max(measured.standstill.values(), default=None)


NEXT_ACTS = Promise(
    "the next coordinator acts", "session timeout + 2 ticks + 0.5 s after the fault",
    lambda measured: measured.between("T0", "T2"), noticed_s,
)  # fmt: skip
NEXT_ACTS_AT_ONCE = replace(
    NEXT_ACTS, rule="0.5 s after SIGTERM: a resignation needs no session expiry", bound=lambda bounds: ACTS_S
)
FETCHING_UNINTERRUPTED = Promise("no partition stands still", "0 s: fetchers need no coordinator", longest_standstill)
FETCHED_AGAIN = fetched_again("session timeout + 2 ticks + 1.5 s after the fault", recovered_s)
FETCHED_WHEN_BACK = fetched_again(
    "session timeout + 2 ticks + 1.5 s after SIGCONT, which comes 1.6 session timeouts after the fault",
    lambda bounds: PAST_THE_SESSION * bounds["session_timeout"] + recovered_s(bounds),
)
GIVEN_UP = fetched_again("max_poll_interval + lease + 1.5 s after the fault", given_up_s)
EVICTED = fetched_again("max_poll_interval + lease + 1.5 s after the first stop-fetcher", given_up_s, since="T3")
HANDED_OVER = Promise(
    "no partition stands still for long", "150 ms: a consumer that leaves hands over",
    longest_standstill, lambda bounds: 0.15,
)  # fmt: skip
OWNERS_UNCHANGED = none_of("partitions", "no partition changes its owner", lambda measured: measured.passed_on)
FETCHING_GOES_ON = Promise(
    "every partition delivers records again", "3 s after the broker accepts records again",
    lambda measured: measured.resumed_s, lambda bounds: 3.0,
)  # fmt: skip
KEEPS_ITS_GENERATION = none_of("generations", "the group is not rebalanced", lambda measured: measured.generations)
SETTLED_WITHOUT_THE_LEADER = Promise(
    "the group is Stable without the killed leader", "session timeout + 2 ticks + 1.5 s after each kill",
    lambda measured: measured.settled_s, recovered_s,
)  # fmt: skip
SETTLED_BY_THE_NEXT = replace(SETTLED_WITHOUT_THE_LEADER, name="the group is Stable with its members")
NEXT_LEADER_AFTER_A_HANG = Promise(
    "the next leader's answer is adopted", "assignment_timeout + 0.2 s (backoff) + 1 s after the first ask",
    lambda measured: measured.asks.longest_s, lambda bounds: bounds["assignment_timeout"] + BACKOFF_S + RECOVERED_S,
)  # fmt: skip
NEXT_LEADER_AFTER_AN_ERROR = replace(
    NEXT_LEADER_AFTER_A_HANG,
    rule="0.2 s (backoff) + 1 s after the first ask", bound=lambda bounds: BACKOFF_S + RECOVERED_S,
)  # fmt: skip
NOTHING_IS_REVOKED = none_of(
    "partitions", "no partition is revoked before an answer is adopted", lambda measured: measured.asks.revoked
)
OTHERS_FETCH_ON = Promise(
    "members other than the leader continue to fetch",
    "no record of one of their partitions for at most 1 s during an ask",
    lambda measured: measured.asks.silent_s, lambda bounds: 1.0,
)  # fmt: skip
EVERYBODY_HEARS = none_of(
    "members", "every member acknowledges assignment-failed",
    lambda measured: measured.asks.unheard, "0 members without",
)  # fmt: skip
OTHERS_UNDISTURBED = (NOTHING_IS_REVOKED, OTHERS_FETCH_ON, EVERYBODY_HEARS)
ASKED_ONCE = none_of(
    "asks", "each ask gets one answer, which is adopted", lambda measured: measured.asks.repeated, "0 further asks"
)
ONE_GENERATION_EACH = none_of(
    "generations", "each change of members begins one generation",
    lambda measured: abs(measured.generations - measured.changes), "0 generations more or fewer",
)  # fmt: skip
