"""The promises, as functions of the negotiated session timeout; docs/drills.md has them in words."""

from __future__ import annotations

from ..evidence.measurements import Measured
from .definition import Bounds, Promise

ACTS_S = 0.5
FETCHED_S = 1.0
HANDOVER_S = 0.15
GOES_ON_S = 3.0
BACKOFF_S = 0.2
ANSWERED_S = 1.0
SILENT_S = 1.0
PAST_THE_SESSION = 1.6
"""A multiple of the session timeout that exceeds it with its ticks."""


def noticed_s(bounds: Bounds) -> float:
    """The detection of a failure, and the first action after it."""
    return bounds["session_timeout"] + 2 * bounds["tick"] + ACTS_S


def given_up_s(bounds: Bounds) -> float:
    """The eviction of an unresponsive consumer, and the reassignment of its partitions."""
    return bounds["poll_interval"] + bounds["lease"] + FETCHED_S + ACTS_S


def longest_standstill(measured: Measured) -> float | None:
    """The longest standstill of all partitions."""
    return max(measured.standstill.values(), default=None)


NEXT_ACTS = Promise(
    "the next coordinator acts",
    "session timeout + 2 ticks + 0.5 s after the fault",
    noticed_s,
    lambda measured: measured.between("T0", "T2"),
)
NEXT_ACTS_AT_ONCE = Promise(
    "the next coordinator acts",
    "0.5 s after SIGTERM: a resignation needs no session expiry",
    lambda bounds: ACTS_S,
    lambda measured: measured.between("T0", "T2"),
)
FETCHING_UNINTERRUPTED = Promise(
    "no partition stands still", "0 s: fetchers need no coordinator", lambda bounds: 0.0, longest_standstill
)
FETCHED_AGAIN = Promise(
    "every partition is fetched again",
    "session timeout + 2 ticks + 1.5 s after the fault",
    lambda bounds: noticed_s(bounds) + FETCHED_S,
    lambda measured: measured.between("T0", "T5"),
)
FETCHED_WHEN_BACK = Promise(
    "every partition is fetched again",
    "session timeout + 2 ticks + 1.5 s after SIGCONT, which comes 1.6 session timeouts after the fault",
    lambda bounds: PAST_THE_SESSION * bounds["session_timeout"] + noticed_s(bounds) + FETCHED_S,
    lambda measured: measured.between("T0", "T5"),
)
GIVEN_UP = Promise(
    "every partition is fetched again",
    "max_poll_interval + lease + 1.5 s after the fault",
    given_up_s,
    lambda measured: measured.between("T0", "T5"),
)
EVICTED = Promise(
    "every partition is fetched again",
    "max_poll_interval + lease + 1.5 s after the first stop-fetcher",
    given_up_s,
    lambda measured: measured.between("T3", "T5"),
)
HANDED_OVER = Promise(
    "no partition stands still for long",
    "150 ms: a consumer that leaves hands over",
    lambda bounds: HANDOVER_S,
    longest_standstill,
)
OWNERS_UNCHANGED = Promise(
    "no partition changes its owner",
    "0 partitions",
    lambda bounds: 0.0,
    lambda measured: float(measured.passed_on),
    "partitions",
)
FETCHING_GOES_ON = Promise(
    "every partition delivers records again",
    "3 s after the broker accepts records again",
    lambda bounds: GOES_ON_S,
    lambda measured: measured.resumed_s,
)
KEEPS_ITS_GENERATION = Promise(
    "the group is not rebalanced",
    "0 generations",
    lambda bounds: 0.0,
    lambda measured: float(measured.generations),
    "generations",
)
SETTLED_WITHOUT_THE_LEADER = Promise(
    "the group is Stable without the killed leader",
    "session timeout + 2 ticks + 1.5 s after each kill",
    lambda bounds: noticed_s(bounds) + ANSWERED_S,
    lambda measured: measured.settled_s,
)
SETTLED_BY_THE_NEXT = Promise(
    "the group is Stable with its members",
    "session timeout + 2 ticks + 1.5 s after each kill",
    lambda bounds: noticed_s(bounds) + ANSWERED_S,
    lambda measured: measured.settled_s,
)
NEXT_LEADER_AFTER_A_HANG = Promise(
    "the next leader's answer is adopted",
    "assignment_timeout + 0.2 s (backoff) + 1 s after the first ask",
    lambda bounds: bounds["assignment_timeout"] + BACKOFF_S + ANSWERED_S,
    lambda measured: measured.asks.longest_s,
)
NEXT_LEADER_AFTER_AN_ERROR = Promise(
    "the next leader's answer is adopted",
    "0.2 s (backoff) + 1 s after the first ask",
    lambda bounds: BACKOFF_S + ANSWERED_S,
    lambda measured: measured.asks.longest_s,
)
NOTHING_IS_REVOKED = Promise(
    "no partition is revoked before an answer is adopted",
    "0 partitions",
    lambda bounds: 0.0,
    lambda measured: _count(measured.asks.revoked),
    "partitions",
)
OTHERS_FETCH_ON = Promise(
    "members other than the leader continue to fetch",
    "no record of one of their partitions for at most 1 s during an ask",
    lambda bounds: SILENT_S,
    lambda measured: measured.asks.silent_s,
)
EVERYBODY_HEARS = Promise(
    "every member acknowledges assignment-failed",
    "0 members without",
    lambda bounds: 0.0,
    lambda measured: _count(measured.asks.unheard),
    "members",
)
ASKED_ONCE = Promise(
    "each ask gets one answer, which is adopted",
    "0 further asks",
    lambda bounds: 0.0,
    lambda measured: float(measured.asks.repeated),
    "asks",
)
ONE_GENERATION_EACH = Promise(
    "each change of members begins one generation",
    "0 generations more or fewer",
    lambda bounds: 0.0,
    lambda measured: float(abs(measured.generations - measured.changes)),
    "generations",
)


def _count(number: int | None) -> float | None:
    return None if number is None else float(number)
