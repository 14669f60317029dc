"""What is promised, as functions of the negotiated session timeout; docs/drills.md says the same in words."""

from __future__ import annotations

from .drill import Bounds, Promise
from .measure import Measured

ACTS_S = 0.5
FETCHED_S = 1.0
HANDOVER_S = 0.15
GOES_ON_S = 3.0
PAST_THE_SESSION = 1.6
"""So many session timeouts are certainly more than one, with its ticks."""


def noticed_s(bounds: Bounds) -> float:
    """A death is noticed, and somebody acts."""
    return bounds["session_timeout"] + 2 * bounds["tick"] + ACTS_S


def given_up_s(bounds: Bounds) -> float:
    """A consumer that lives and does not obey is given up, and what it ran is fetched by others."""
    return bounds["poll_interval"] + bounds["lease"] + FETCHED_S + ACTS_S


def longest_standstill(measured: Measured) -> float | None:
    """Of all partitions."""
    return max(measured.standstill.values(), default=None)


NEXT_ACTS = Promise(
    "the next coordinator acts",
    "session timeout + 2 ticks + 0.5 s after the fault",
    noticed_s,
    lambda measured: measured.between("T0", "T2"),
)
NEXT_ACTS_AT_ONCE = Promise(
    "the next coordinator acts",
    "0.5 s after SIGTERM: whoever resigns is not waited for",
    lambda bounds: ACTS_S,
    lambda measured: measured.between("T0", "T2"),
)
NOTHING_STANDS_STILL = Promise(
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
    "session timeout + 2 ticks + 1.5 s after all go on, which is 1.6 session timeouts after the fault",
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
    "150 ms: who leaves hands over",
    lambda bounds: HANDOVER_S,
    longest_standstill,
)
NOBODY_MOVES = Promise(
    "no partition changes its owner",
    "0 partitions",
    lambda bounds: 0.0,
    lambda measured: float(measured.passed_on),
    "partitions",
)
FETCHING_GOES_ON = Promise(
    "records of every partition come again",
    "3 s after the broker takes records again",
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
