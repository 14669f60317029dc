"""The lease, on a clock that a test moves. When it ends is in `test_zk_paths_of_members.py`, for any renewals."""

from __future__ import annotations

from typing import Any

import pytest

from consumer.membership.registration import heartbeat_s
from coordinator.zk.errors import EpochOver, SessionLost
from coordinator.zk.lease import Lease
from tests.property.tree import MemoryTree
from tests.unit.manual import ManualRuntime

TIMEOUT_S = 6.0


class Server:
    """Answers a sync after `takes_s` seconds, or not at all."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.takes_s = 0.0
        self.errors: dict[str, Exception] = {}
        self.asked: list[str] = []
        store = MemoryTree().open(lambda: self._answer("sync", self.takes_s), TIMEOUT_S)
        self.lease = Lease(store, self.runtime, lambda: self._answer("fence"), "consumer")

    def _answer(self, what: str, takes_s: float = 0.0) -> None:
        self.asked.append(what)
        self.runtime.now += takes_s
        if what in self.errors:
            raise self.errors[what]


@pytest.fixture
def server() -> Server:
    return Server()


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


def test_a_lease_lapses_by_itself(server: Server) -> None:
    server.lease.renew()

    server.runtime.now += 3.99
    assert server.lease.is_held
    server.runtime.now += 0.02
    assert not server.lease.is_held
    assert server.lease.left_s == 0


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


def test_another_lease_of_a_session_continues_the_last_one(server: Server) -> None:
    for _ in range(3):
        server.lease.renew()
        server.runtime.now += 1.0
    store = MemoryTree().open(lambda: None, TIMEOUT_S)

    lease = Lease(store, server.runtime, lambda: None, "consumer", server.lease.heard)
    assert not lease.is_held, "its own fence has not been read"
    lease.renew()

    assert lease.left_s == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("step", "error"), [("sync", SessionLost("the session is over")), ("fence", EpochOver("another was elected"))]
)
def test_session_or_fence_that_is_over_renews_nothing(server: Server, step: str, error: Exception) -> None:
    server.errors[step] = error

    with pytest.raises(type(error)):
        server.lease.renew()

    assert not server.lease.is_held


def test_a_slow_renewal_never_shortens_a_lease_that_a_later_one_has_renewed(server: Server) -> None:
    lease, runtime = server.lease, server.runtime

    def renewed_meanwhile() -> None:
        runtime.now += 1.0
        lease.renew()
        runtime.now += 1.0

    store = MemoryTree().open(renewed_meanwhile, TIMEOUT_S)
    slow = Lease(store, runtime, lambda: None, "consumer")
    slow.renew()
    assert slow.left_s == pytest.approx(2.0)
    assert lease.left_s == pytest.approx(3.0)
