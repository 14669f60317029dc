"""The lease, on a clock that a test moves."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.membership.registration import heartbeat_s
from coordinator.zk.errors import ConnectionLost, EpochOver, SessionLost
from coordinator.zk.lease import Heard, Lease
from tests.property.tree import MemoryTree
from tests.unit.manual import ManualRuntime

TIMEOUT_S = 6.0


class Server:
    """Answers a sync after `takes_s` seconds, or not at all."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.takes_s = 0.0
        self.error: Exception | None = None
        self.fence_error: Exception | None = None
        self.asked: list[str] = []
        store = MemoryTree().open(self._answer, TIMEOUT_S)
        self.lease = Lease(store, self.runtime, self._read_fence, "consumer")

    def _answer(self) -> None:
        self.asked.append("sync")
        self.runtime.now += self.takes_s
        if self.error is not None:
            raise self.error

    def _read_fence(self) -> None:
        self.asked.append("fence")
        if self.fence_error is not None:
            raise self.fence_error


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_lease_that_was_never_renewed_is_not_held(server: Server) -> None:
    assert not server.lease.is_held
    assert server.lease.left_s == 0


def test_a_lease_is_two_thirds_of_the_session_and_renewed_six_times_in_it(server: Server) -> None:
    server.lease.renew()

    assert server.lease.left_s == pytest.approx(4.0)
    assert server.lease.due_s == pytest.approx(1.0)


def test_renewal_is_recorded_before_it_takes_effect(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that acts under it is recorded after it."""
    seen: list[tuple[float, bool]] = []

    def record(event: str, **fields: Any) -> None:
        seen.append((fields["until"], server.lease.is_held))

    monkeypatch.setattr(server.runtime, "record", record)
    server.lease.renew()

    assert seen == [(server.runtime.now + 4.0, False)] and server.lease.is_held


def test_a_renewal_syncs_and_then_reads_the_fence(server: Server) -> None:
    server.lease.renew()

    assert server.asked == ["sync", "fence"]
    assert server.lease.left_s == pytest.approx(4.0)


def test_a_lease_counts_from_when_the_sync_was_sent_not_from_its_answer(server: Server) -> None:
    server.takes_s = 1.5

    server.lease.renew()

    assert server.lease.left_s == pytest.approx(2.5)


def test_answer_after_the_lapse_of_the_lease_renews_nothing(server: Server) -> None:
    server.takes_s = 4.0

    server.lease.renew()

    assert not server.lease.is_held


def test_a_lease_lapses_by_itself(server: Server) -> None:
    server.lease.renew()

    server.runtime.now += 3.99
    assert server.lease.is_held
    server.runtime.now += 0.02
    assert not server.lease.is_held
    assert server.lease.left_s == 0


def test_renewal_without_an_answer_leaves_the_lease_unchanged(server: Server) -> None:
    server.lease.renew()
    server.runtime.now += 1.0
    server.error = ConnectionLost("no answer")

    with pytest.raises(ConnectionLost):
        server.lease.renew()

    assert server.lease.left_s == pytest.approx(3.0)


def test_a_lease_that_has_lapsed_is_resumed_by_three_renewals(server: Server) -> None:
    server.lease.renew()
    server.runtime.now += 60.0

    for _ in range(2):
        server.lease.renew()
        assert not server.lease.is_held, "the leader may not have heard of the session, and end it"
        server.runtime.now += server.lease.due_s
    server.lease.renew()

    assert server.lease.left_s == pytest.approx(3.0)


@pytest.mark.parametrize("late_s, left_s", [(1.4, 3.0), (2.0, 2.5), (5.0, 0.0)])
def test_lease_ends_before_the_session_that_the_leader_has_certainly_heard_of(
    server: Server, late_s: float, left_s: float
) -> None:
    """It has at the first renewal, and lets the session live 6 s from then."""
    server.lease.renew()
    server.runtime.now += late_s
    server.lease.renew()
    server.runtime.now += 1.0

    server.lease.renew()

    assert server.lease.left_s == pytest.approx(left_s)


def test_slow_syncs_keep_the_lease(server: Server) -> None:
    server.takes_s = 0.6
    server.lease.renew()
    for _ in range(5):
        server.runtime.now += server.lease.due_s
        assert server.lease.is_held
        server.lease.renew()


@pytest.mark.parametrize("max_poll_interval_ms", [100, 4000, 5500, 5990, 6000, 300_000])
def test_a_consumers_lease_does_not_lapse_whatever_its_poll_interval(server: Server, max_poll_interval_ms: int) -> None:
    server.takes_s = 0.01
    server.lease.renew()
    wait_s = heartbeat_s(server.lease.due_s, max_poll_interval_ms)
    assert wait_s <= max_poll_interval_ms / 6000

    for _ in range(round(30 / wait_s)):
        server.runtime.now += wait_s
        assert server.lease.left_s > 1.0
        server.lease.renew()


def test_a_renewal_counts_half_a_tick_after_the_answer_of_another(server: Server) -> None:
    server.lease.renew()
    server.takes_s = 0.7
    server.lease.renew()
    server.takes_s = 0.0
    server.runtime.now += 0.9

    server.lease.renew()
    assert server.lease.left_s == pytest.approx(4.0 - 1.6), "sent 1.6 s after the slow one, answered 0.9 s before"

    server.runtime.now += 0.1
    server.lease.renew()
    assert server.lease.left_s == pytest.approx(4.0 - 1.7), "the slow one counts"


def test_renewal_counts_from_the_last_sync_known_to_the_leader(server: Server) -> None:
    server.lease.renew()
    for _ in range(5):
        server.runtime.now += 1.0
        server.lease.renew()

    assert server.lease.left_s == pytest.approx(3.0)


def test_a_sync_that_follows_another_within_half_a_tick_confirms_nothing(server: Server) -> None:
    server.lease.renew()
    server.runtime.now += 1.0
    server.lease.renew()
    for _ in range(9):
        server.runtime.now += 0.1
        server.lease.renew()

    assert server.lease.left_s == pytest.approx(4.0 - 1.9), "the first is confirmed, the second not yet"
    server.runtime.now += 0.1
    server.lease.renew()
    assert server.lease.left_s == pytest.approx(4.0 - 1.0)


def test_a_session_that_was_just_opened_has_a_lease_from_before_that(server: Server) -> None:
    lease = Lease(
        MemoryTree().open(lambda: None, TIMEOUT_S), server.runtime, lambda: None, "consumer", Heard(server.runtime.now)
    )
    server.runtime.now += 0.5
    assert not lease.is_held, "the fence has not been read"

    lease.renew()

    assert lease.left_s == pytest.approx(3.5)


def test_session_opened_long_ago_has_no_lease_before_three_renewals(server: Server) -> None:
    store = MemoryTree().open(lambda: None, TIMEOUT_S)
    lease = Lease(store, server.runtime, lambda: None, "consumer", Heard(server.runtime.now - 5))

    for _ in range(2):
        lease.renew()
        assert not lease.is_held
        server.runtime.now += 1.0
    lease.renew()

    assert lease.left_s == pytest.approx(3.0)


def test_another_lease_of_a_session_continues_the_last_one(server: Server) -> None:
    for _ in range(3):
        server.lease.renew()
        server.runtime.now += 1.0
    store = MemoryTree().open(lambda: None, TIMEOUT_S)

    lease = Lease(store, server.runtime, lambda: None, "consumer", server.lease.heard)
    assert not lease.is_held, "its own fence has not been read"
    lease.renew()

    assert lease.left_s == pytest.approx(3.0)


def test_a_fence_that_has_moved_renews_nothing(server: Server) -> None:
    server.fence_error = EpochOver("another coordinator was elected")

    with pytest.raises(EpochOver):
        server.lease.renew()

    assert not server.lease.is_held


def test_ended_session_renews_nothing(server: Server) -> None:
    server.error = SessionLost("the session is over")

    with pytest.raises(SessionLost):
        server.lease.renew()

    assert not server.lease.is_held


def test_a_slow_renewal_never_shortens_a_lease_that_a_later_one_has_renewed(server: Server) -> None:
    lease, runtime = server.lease, server.runtime

    def renewed_meanwhile() -> None:
        server.fence_error = None
        runtime.now += 1.0
        lease.renew()
        runtime.now += 1.0

    store = MemoryTree().open(renewed_meanwhile, TIMEOUT_S)
    slow = Lease(store, runtime, lambda: None, "consumer")
    slow.renew()
    assert slow.left_s == pytest.approx(2.0)
    assert lease.left_s == pytest.approx(3.0)
