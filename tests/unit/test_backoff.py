"""The growing pause between failures."""

from __future__ import annotations

from zk_group.coordinator.zk.backoff import Backoff


def test_backoff_doubles_with_each_failure_in_a_row_up_to_its_bound() -> None:
    backoff = Backoff(0.2, 5.0)
    assert [backoff.after(failures) for failures in range(8)] == [0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.after(10**6) == 5.0
