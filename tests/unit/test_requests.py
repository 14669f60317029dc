"""The rebalance request queue (sources D6)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.wait import eventually
from tests.unit.manual import Forever, ManualRuntime
from zk_group.coordinator.term.request_queue import (
    AGAIN,
    GroupTurn,
    RegionTurn,
    Request,
    RequestQueue,
    Trigger,
    TurnKey,
)
from zk_group.coordinator.zk.runtime import ThreadRuntime


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def group_of(queue: RequestQueue) -> str:
    """The group of the next request, which is taken."""
    taken = queue.take()
    assert taken is not None
    return taken.key.name


def ask(queue: RequestQueue, group: str, text: str = "x", delay_s: float = 0.0) -> None:
    """A change of `group`."""
    queue.request(GroupTurn(group), Trigger(text), delay_s)


def requested(group: str, *changes: str) -> Request:
    """The request of `group` for these changes."""
    return Request(GroupTurn(group), tuple(map(Trigger, changes)))


def test_a_take_blocks_until_there_is_a_request(pool: ThreadPoolExecutor) -> None:
    queue = RequestQueue(ThreadRuntime())
    taken = pool.submit(queue.take)
    assert not taken.done()

    ask(queue, "g", "joined a")

    assert taken.result(5) == requested("g", "joined a")


def test_requests_of_a_group_become_one_with_every_reason_once_in_order() -> None:
    queue = RequestQueue(ManualRuntime())
    for reason in ("b", "a", "b"):
        ask(queue, "g", reason)

    assert len(queue) == 1
    assert queue.take() == requested("g", "b", "a")
    assert len(queue) == 0


def test_group_due_for_the_longest_time_is_handed_out_first() -> None:
    runtime = ManualRuntime()
    queue = RequestQueue(runtime)
    ask(queue, "late", delay_s=2.0)
    ask(queue, "soon", delay_s=1.0)
    ask(queue, "now")

    assert [group_of(queue) for _ in range(3)] == ["now", "soon", "late"]


def test_group_and_region_of_one_name_have_turns_of_their_own() -> None:
    queue = RequestQueue(ManualRuntime())
    queue.request(RegionTurn("a"), AGAIN)
    ask(queue, "b")
    ask(queue, "a")

    taken = [queue.take() for _ in range(3)]

    assert taken == [requested("a", "x"), requested("b", "x"), Request(RegionTurn("a"), (AGAIN,))]


def test_of_several_requests_the_earliest_counts() -> None:
    runtime = ManualRuntime(now=10.0)
    queue = RequestQueue(runtime)
    for delay_s in (5.0, 0.2, 3.0):
        ask(queue, "g", f"in {delay_s}", delay_s)

    assert queue.take() == requested("g", "in 5.0", "in 0.2", "in 3.0")
    assert runtime.now == pytest.approx(10.2)


def test_earlier_request_wakes_a_handler_that_waits_for_a_later_one(pool: ThreadPoolExecutor) -> None:
    queue = RequestQueue(ThreadRuntime())
    ask(queue, "g", "much later", 3600.0)
    taken = pool.submit(queue.take)

    ask(queue, "g", "now")

    assert taken.result(5) == requested("g", "much later", "now")


def test_a_group_is_handed_out_again_when_it_is_done_and_delays_no_other() -> None:
    """Sources H1, `compareAndSet` failed, and the change was lost; H3, one stuck group stalled all."""
    queue = RequestQueue(ManualRuntime())
    ask(queue, "g", "first")
    queue.take()
    ask(queue, "g", "during the turn")
    ask(queue, "other")

    assert queue.take() == requested("other", "x")
    with pytest.raises(Forever):
        queue.take()
    queue.done(GroupTurn("g"))
    assert queue.take() == requested("g", "during the turn")


def test_removed_group_is_not_handed_out() -> None:
    queue = RequestQueue(ManualRuntime())
    ask(queue, "gone")

    queue.forget(GroupTurn("gone"))

    assert len(queue) == 0
    with pytest.raises(Forever):
        queue.take()


def test_closing_ends_every_take_at_once(pool: ThreadPoolExecutor) -> None:
    queue = RequestQueue(ThreadRuntime())
    ask(queue, "g", "later", 3600.0)
    taken = [pool.submit(queue.take) for _ in range(4)]

    queue.close()

    assert [each.result(5) for each in taken] == [None] * 4


def test_a_closed_queue_hands_nothing_out_even_if_it_is_due() -> None:
    queue = RequestQueue(ManualRuntime())
    ask(queue, "g")

    queue.close()

    assert queue.take() is None


def test_no_group_is_ever_in_two_of_many_handlers_and_no_request_is_lost(pool: ThreadPoolExecutor) -> None:
    queue = RequestQueue(ThreadRuntime())
    lock = threading.Lock()
    inside: set[TurnKey] = set()
    twice: list[TurnKey] = []
    seen: set[tuple[str, str]] = set()

    def handle() -> None:
        while (request := queue.take()) is not None:
            with lock:
                twice.extend({request.key} & inside)
                inside.add(request.key)
                seen.update((request.key.name, text) for text in request.changes)
            with lock:
                inside.discard(request.key)
            queue.done(request.key)

    handlers = [pool.submit(handle) for _ in range(6)]
    wanted = {(f"g{number % 3}", f"reason {number}") for number in range(300)}
    for group, reason in wanted:
        ask(queue, group, reason)

    eventually(lambda: seen == wanted, 10, "every request has been handled")
    queue.close()
    for handler in handlers:
        handler.result(5)
    assert twice == []


# ---- a group that costs much


def busy(queue: RequestQueue, runtime: ManualRuntime, group: str, seconds: float) -> None:
    """A turn of `group` that takes so long."""
    ask(queue, group)
    assert queue.take() == requested(group, "x")
    runtime.now += seconds
    assert queue.done(GroupTurn(group)) == pytest.approx(seconds)


def test_group_with_a_long_turn_waits_behind_later_requests_of_the_others() -> None:
    queue = RequestQueue(runtime := ManualRuntime())
    busy(queue, runtime, "costly", 9.0)

    ask(queue, "costly", "again")
    runtime.now += 1
    for number in range(3):
        ask(queue, f"cheap{number}")

    assert [group_of(queue) for _ in range(4)] == ["cheap0", "cheap1", "cheap2", "costly"]
    queue.done(GroupTurn("costly"))
    now = runtime.now
    ask(queue, "costly", "once more")
    assert (group_of(queue), runtime.now) == ("costly", now), "at once, where no other is before it"


def test_costly_group_waits_no_longer_than_its_turns_took() -> None:
    queue = RequestQueue(runtime := ManualRuntime())
    busy(queue, runtime, "costly", 4.0)
    ask(queue, "costly", "again")

    order = []
    for number in range(8):
        runtime.now += 1
        ask(queue, f"cheap{number}")
        order.append(group_of(queue))
        queue.done(GroupTurn(order[-1]))

    assert order.index("costly") <= 4


def test_cost_of_a_turn_is_forgotten_after_a_while() -> None:
    queue = RequestQueue(runtime := ManualRuntime())
    busy(queue, runtime, "costly", 5.0)
    runtime.now += 120

    ask(queue, "costly", "again")
    runtime.now += 0.01
    ask(queue, "cheap")

    assert group_of(queue) == "costly"


def test_last_free_handler_is_kept_for_a_group_that_costs_little() -> None:
    queue = RequestQueue(runtime := ManualRuntime(), handlers=3)
    for number in range(3):
        busy(queue, runtime, f"costly{number}", 5.0)
    for number in range(3):
        ask(queue, f"costly{number}", "again")
    assert queue.take() is not None
    assert queue.take() is not None

    with pytest.raises(Forever):
        queue.take()
    ask(queue, "cheap")

    assert queue.take() == requested("cheap", "x")


def test_groups_without_members_wait_for_each_other_and_not_the_others_for_them() -> None:
    queue = RequestQueue(runtime := ManualRuntime(), is_idle=lambda key: key.name.startswith("empty"))
    for number in range(1000):
        ask(queue, f"empty{number}")
    waited = []
    for _ in range(200):
        asked = runtime.now
        ask(queue, "real")
        while (taken := group_of(queue)) != "real":
            runtime.now += 0.01
            queue.done(GroupTurn(taken))
        waited.append(runtime.now - asked)
        runtime.now += 0.001
        queue.done(GroupTurn("real"))
        empty = group_of(queue)
        runtime.now += 0.05
        queue.done(GroupTurn(empty))

    assert max(waited) < 0.2
    assert waited[-100:] == [0] * 100


def test_costs_of_gone_groups_take_no_memory() -> None:
    queue = RequestQueue(runtime := ManualRuntime())
    for number in range(5000):
        busy(queue, runtime, f"g{number}", 0.2)

    assert len(queue._costs) < 1100


def test_thousands_of_groups_without_members_cost_no_look_at_each_for_each_turn() -> None:
    runtime, looks = ManualRuntime(), Counter[str]()

    def is_idle(key: TurnKey) -> bool:
        looks[key.name] += 1
        return True

    queue = RequestQueue(runtime, 4, is_idle)
    for _ in range(2):
        for number in range(1000):
            ask(queue, f"g{number}", "sweep")
        for _ in range(1000):
            taken = group_of(queue)
            runtime.now += 0.001
            queue.done(GroupTurn(taken))

    assert max(looks.values()) <= 10


def test_group_that_gets_a_member_while_it_waits_may_have_the_last_handler() -> None:
    runtime, members = ManualRuntime(), set[str]()
    queue = RequestQueue(runtime, 2, lambda key: key.name.startswith("idle") and key.name not in members)
    for _ in range(10):
        busy(queue, runtime, "idle0", 0.1)  # groups without members have cost a second
    ask(queue, "idle7", "sweep")
    ask(queue, "long", "a change")
    assert group_of(queue) == "long"
    busy(queue, runtime, "other", 0.01)

    members.add("idle7")
    ask(queue, "idle7", "joined c1")

    assert group_of(queue) == "idle7"
