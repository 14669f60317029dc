"""What a busy machine excuses in tests that run drills beside others, and what it does not."""

from __future__ import annotations

from tests.support.drills import unexcused

LATE = "the next coordinator acts: 4.982 s, promised 4.9 (session timeout + 2 ticks + 0.5 s after the fault)"
MUCH_TOO_LATE = "the next coordinator acts: 5.5 s, promised 4.9 (session timeout + 2 ticks + 0.5 s after the fault)"
HANDOVER = "no partition stands still for long: 0.656 s, promised 0.15 (150 ms: who leaves hands over)"
MOVED = "no partition changes its owner: 2 partitions, promised 0 (0 partitions)"
BROKEN = "S1 is broken: c1 and c2 both fetch t-0"


def test_half_a_second_over_a_promise_is_excused_and_so_is_one_in_plain_seconds() -> None:
    assert unexcused([LATE, HANDOVER]) == []


def test_nothing_else_is() -> None:
    reasons = [MUCH_TOO_LATE, MOVED, BROKEN]

    assert unexcused(reasons) == reasons
    assert unexcused(reasons, "0.5 s after the fault)") == [MOVED, BROKEN]
