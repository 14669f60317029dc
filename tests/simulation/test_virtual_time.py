"""What holds a test that runs in virtual time, whatever it waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.support.virtual_time import HOSTS, VirtualTime
from tests.support.wait import eventually
from zk_group.coordinator.zk.errors import ZooKeeperUnreachable
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Create


def ten_minutes() -> None:
    runtime = ThreadRuntime()
    began = runtime.monotonic()
    for _ in range(10):
        runtime.sleep(60)
    assert runtime.monotonic() - began == pytest.approx(600)


def test_ten_minutes_of_waiting_in_virtual_time_take_none() -> None:
    began = time.monotonic()

    VirtualTime(1).run(ten_minutes)

    assert time.monotonic() - began < 60


def for_ever() -> None:
    ThreadRuntime().event().wait()


def for_what_never_comes() -> None:
    other = open_kazoo(HOSTS, 4000)

    def look() -> None:
        eventually(lambda: other.get("/a"), 1e6, "it is there", pause_s=10)

    ThreadRuntime().spawn(look, "looks")
    for_ever()


@pytest.mark.parametrize(
    ("waits", "reason"),
    [
        (for_ever, "nobody will ever go on"),
        (for_what_never_comes, r"the test waits for longer than 900 s(?s:.*)looks: waits for"),
    ],
)
def test_a_wait_for_what_never_comes_fails_and_says_where_threads_are(waits: Callable[[], None], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        VirtualTime(1).run(waits)


def test_the_modelled_zookeeper_is_at_its_address_and_nowhere_else() -> None:
    def uses() -> None:
        store = open_kazoo(HOSTS, 4000)
        store.commit([Create("/a", b"1")])
        node = store.get("/a")
        assert node is not None and node.data == b"1"
        store.close()
        with pytest.raises(ZooKeeperUnreachable):
            open_kazoo("127.0.0.1:1", 4000)

    VirtualTime(1).run(uses)


def test_a_thread_that_dies_in_virtual_time_is_reported() -> None:
    virtual = VirtualTime(1)

    def starts() -> None:
        ThreadRuntime().spawn(lambda: 1 // 0, "dies").join()  # type: ignore[arg-type]

    virtual.run(starts)

    (crashed,) = virtual.crashed
    assert "dies" in crashed and "ZeroDivisionError" in crashed


def test_real_time_and_threads_are_back_after_a_test_in_virtual_time() -> None:
    VirtualTime(1).run(ten_minutes)

    assert ThreadRuntime().monotonic() == pytest.approx(time.monotonic(), abs=60)
    assert isinstance(ThreadRuntime().event(), threading.Event)
    assert threading.current_thread() in threading.enumerate()
