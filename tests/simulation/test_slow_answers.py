"""Answers that are slow, and connections that are: what the modelled ZooKeeper adds for the faults that need it."""

from __future__ import annotations

from random import Random
from statistics import mean, median

import pytest

from coordinator.zk.errors import OutcomeUnknown
from coordinator.zk.store import Create
from tests.simulation.alone import alone
from tests.simulation.latency import WIDE, WideLatency


def test_a_commit_whose_slow_answer_is_cut_off_has_happened_and_is_unknown() -> None:
    with alone() as world:
        store = world.open()
        store.slow_next_commit(reply_s=2.0, cut_s=1.5)
        began = world.now

        with pytest.raises(OutcomeUnknown):
            world.call(lambda: store.commit([Create("/a")]), store.process)

        assert world.now - began == pytest.approx(1.5, abs=0.05)
        assert world.faults["slow-then-cut"] == 1
        assert world.call(lambda: store.get("/a"), store.process) is not None


def test_a_slow_answer_that_comes_before_the_cut_is_heard_late() -> None:
    with alone() as world:
        store = world.open()
        store.slow_next_commit(reply_s=2.0, cut_s=2.1)
        began = world.now

        assert world.call(lambda: store.commit([Create("/a")]), store.process) == ["/a"]
        assert world.now - began == pytest.approx(2.0, abs=0.05)


def test_wide_latencies_are_skewed_and_differ_from_connection_to_connection() -> None:
    random = Random(1)
    connections = [[one.hop_s() for _ in range(200)] for one in (WideLatency(random) for _ in range(200))]

    hops = sorted(hop for each in connections for hop in each)
    middles = [median(each) for each in connections]
    assert mean(hops) > 5 * median(hops)
    assert max(middles) > 50 * min(middles)
    stalls = sum(hop >= 0.2 for hop in hops) / len(hops)
    assert 0.008 < stalls < 0.05


def test_on_a_connection_of_wide_latency_nothing_overtakes_anything() -> None:
    with alone(seed=3) as world:
        world.ensemble.latency = WIDE
        store = world.open(timeout_s=40.0)
        arrived: list[int] = []
        link = store._link
        assert link is not None and link.latency is not None
        for number in range(300):
            link.deliver(lambda number=number: arrived.append(number), 0.0)  # type: ignore[misc]
        world.wait(60.0)

        assert arrived == list(range(300))
