"""The rebalance request queue (seed 000, `rebalanceRequestQ` and `groupsBeingRebalanced`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator.term.request_queue import Request, RequestQueue
from coordinator.zk.runtime import ThreadRuntime
from tests.support.wait import eventually
from tests.unit.manual import Forever, ManualRuntime


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_a_take_blocks_until_there_is_a_request(pool: ThreadPoolExecutor) -> None:
    queue = RequestQueue(ThreadRuntime())
    taken = pool.submit(queue.take)
    assert not taken.done()

    queue.request("g", "joined a")

    assert taken.result(5) == Request("g", ("joined a",))


def test_requests_of_a_group_become_one_with_every_reason_once_in_order() -> None:
    queue = RequestQueue(ManualRuntime())
    for reason in ("b", "a", "b"):
        queue.request("g", reason)

    assert len(queue) == 1
    assert queue.take() == Request("g", ("b", "a"))
    assert len(queue) == 0


def test_group_due_for_the_longest_time_is_handed_out_first() -> None:
    runtime = ManualRuntime()
    queue = RequestQueue(runtime)
    queue.request("late", "x", 2.0)
    queue.request("soon", "x", 1.0)
    queue.request("now", "x")

    assert [taken.group for _ in range(3) if (taken := queue.take())] == ["now", "soon", "late"]


def test_a_request_is_not_handed_out_before_it_is_due() -> None:
    runtime = ManualRuntime(now=10.0)
    queue = RequestQueue(runtime)
    queue.request("g", "again", 0.5)

    queue.take()

    assert runtime.now == 10.5


def test_of_several_requests_the_earliest_counts() -> None:
    runtime = ManualRuntime(now=10.0)
    queue = RequestQueue(runtime)
    for delay_s in (5.0, 0.2, 3.0):
        queue.request("g", f"in {delay_s}", delay_s)

    assert queue.take() == Request("g", ("in 5.0", "in 0.2", "in 3.0"))
    assert runtime.now == pytest.approx(10.2)


def test_earlier_request_wakes_a_handler_that_waits_for_a_later_one(pool: ThreadPoolExecutor) -> None:
    queue = RequestQueue(ThreadRuntime())
    queue.request("g", "much later", 3600.0)
    taken = pool.submit(queue.take)

    queue.request("g", "now")

    assert taken.result(5) == Request("g", ("much later", "now"))


def test_a_group_is_not_handed_out_again_before_it_is_done() -> None:
    queue = RequestQueue(ManualRuntime())
    queue.request("g", "first")
    queue.take()
    queue.request("g", "second")

    with pytest.raises(Forever):
        queue.take()

    assert queue.groups_being_rebalanced == {"g"}


def test_a_request_during_a_turn_brings_another_turn() -> None:
    """Hole 1 of the seed: `compareAndSet` failed, and the change was lost."""
    queue = RequestQueue(ManualRuntime())
    queue.request("g", "first")
    queue.take()
    queue.request("g", "during the turn")

    queue.done("g")

    assert queue.take() == Request("g", ("during the turn",))


def test_rebalancing_group_delays_no_other_group() -> None:
    """Hole 3 of the seed: one stuck group stalled all."""
    queue = RequestQueue(ManualRuntime())
    queue.request("stuck", "x")
    queue.take()
    queue.request("stuck", "y")
    queue.request("other", "x")

    assert queue.take() == Request("other", ("x",))


def test_removed_group_is_not_handed_out() -> None:
    queue = RequestQueue(ManualRuntime())
    queue.request("gone", "x")

    queue.forget("gone")

    assert len(queue) == 0
    with pytest.raises(Forever):
        queue.take()


def test_closing_ends_every_take_at_once(pool: ThreadPoolExecutor) -> None:
    queue = RequestQueue(ThreadRuntime())
    queue.request("g", "later", 3600.0)
    taken = [pool.submit(queue.take) for _ in range(4)]

    queue.close()

    assert [each.result(5) for each in taken] == [None] * 4


def test_a_closed_queue_hands_nothing_out_even_if_it_is_due() -> None:
    queue = RequestQueue(ManualRuntime())
    queue.request("g", "x")

    queue.close()

    assert queue.take() is None


def test_no_group_is_ever_in_two_of_many_handlers_and_no_request_is_lost(pool: ThreadPoolExecutor) -> None:
    queue = RequestQueue(ThreadRuntime())
    lock = threading.Lock()
    inside: set[str] = set()
    twice: list[str] = []
    seen: set[tuple[str, str]] = set()

    def handle() -> None:
        while (request := queue.take()) is not None:
            with lock:
                twice.extend({request.group} & inside)
                inside.add(request.group)
                seen.update((request.group, reason) for reason in request.reasons)
            with lock:
                inside.discard(request.group)
            queue.done(request.group)

    handlers = [pool.submit(handle) for _ in range(6)]
    wanted = {(f"g{number % 3}", f"reason {number}") for number in range(300)}
    for group, reason in wanted:
        queue.request(group, reason)

    eventually(lambda: seen == wanted, 10, "every request has been handled")
    queue.close()
    for handler in handlers:
        handler.result(5)
    assert twice == []
