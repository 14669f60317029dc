"""The guard of a consumer's calls, with real threads and signals."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.unit.manual import ManualRuntime
from zk_group.consumer.errors import Closed, ConcurrentModification, Inherited
from zk_group.consumer.membership.call_guard import CallGuard, exclusive, shared
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.runtime import ThreadRuntime

RUNTIME = ThreadRuntime()


class Guarded:
    """Polls, which waits; what else a poll does is `acts`."""

    def __init__(self) -> None:
        self.wake = RUNTIME.event()
        self._calls = self.calls = CallGuard(RUNTIME, self.wake)
        self.acts: Callable[[], object] = lambda: None
        self.ends: Callable[[], object] = lambda: None
        self.ended = 0

    @exclusive
    def poll(self, seconds: float) -> float:
        """The seconds that it took."""
        began = RUNTIME.monotonic()
        self.acts()
        if not self.calls.is_closing:
            self.calls.wait(seconds)
        return RUNTIME.monotonic() - began

    @exclusive
    def commit(self) -> None: ...

    @shared
    def position(self) -> int:
        return 5

    def close(self) -> None:
        self.calls.close(self._end)

    def _end(self) -> None:
        self.ended += 1
        self.ends()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    made = Guarded()
    before = signal.signal(signal.SIGUSR1, lambda *_: made.close())
    yield made
    signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    """Let the handler of SIGUSR1 run in the main thread, here and now."""
    signal.raise_signal(signal.SIGUSR1)


def test_every_call_after_close_says_so_and_a_second_close_does_nothing(guarded: Guarded) -> None:
    guarded.close()
    guarded.close()

    assert guarded.ended == 1
    for call in (lambda: guarded.poll(0), guarded.commit, guarded.position):
        with pytest.raises(Closed, match=r"^This consumer has already been closed\.$"):
            call()


def test_a_close_in_a_signal_handler_ends_the_poll_that_waits(guarded: Guarded) -> None:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()

    assert guarded.poll(30) < 10
    assert guarded.ended == 1
    assert guarded.calls.is_closed


def test_a_close_in_a_signal_handler_waits_for_what_it_has_interrupted(guarded: Guarded) -> None:
    ended: list[int] = []

    def acts() -> None:
        interrupt()
        ended.append(guarded.ended)

    guarded.acts = acts
    guarded.poll(30)

    assert ended == [0], "the call that was interrupted has ended first"
    assert guarded.ended == 1


def test_a_close_in_a_signal_handler_between_calls_closes_at_once(guarded: Guarded) -> None:
    guarded.poll(0)

    interrupt()

    assert guarded.ended == 1


def test_a_signal_handler_that_exits_after_close_leaves_first(guarded: Guarded) -> None:
    def acts() -> None:
        interrupt()
        raise SystemExit(3)

    guarded.acts = acts

    with pytest.raises(SystemExit):
        guarded.poll(30)
    assert guarded.ended == 1


def test_a_second_signal_while_it_closes_does_nothing(guarded: Guarded) -> None:
    guarded.ends = interrupt

    interrupt()

    assert guarded.ended == 1


def test_a_close_in_a_lock_of_the_wake_event_blocks_nothing(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> bool:
        with guarded.wake._cond:  # type: ignore[attr-defined]  # as `wait` holds it for a moment
            interrupt()
        return threading.Event.wait(guarded.wake, seconds)  # type: ignore[arg-type]

    monkeypatch.setattr(guarded.wake, "wait", interrupted)

    assert guarded.poll(30) < 10


def polling(guarded: Guarded, poll: Callable[[], object]) -> threading.Thread:
    """Another thread in a poll."""
    begun = threading.Event()
    guarded.acts = begun.set
    thread = threading.Thread(target=poll, name="worker-7")
    thread.start()
    assert begun.wait(10)
    return thread


def test_a_close_in_another_thread_returns_when_the_poll_has_closed(guarded: Guarded) -> None:
    took: list[float] = []
    thread = polling(guarded, lambda: took.append(guarded.poll(30)))

    guarded.close()

    assert guarded.ended == 1
    thread.join(10)
    assert took[0] < 10


def test_the_error_of_a_close_is_raised_where_it_was_called_and_by_the_poll(guarded: Guarded) -> None:
    errors: list[BaseException] = []

    def fails() -> None:
        raise ValueError("no space")

    def polls() -> None:
        try:
            guarded.poll(30)
        except ValueError as error:
            errors.append(error)

    guarded.ends = fails
    thread = polling(guarded, polls)

    with pytest.raises(ValueError, match="no space"):
        guarded.close()

    thread.join(10)
    assert len(errors) == 1
    assert guarded.calls.is_closed


def test_a_call_of_another_thread_is_refused_while_one_runs(guarded: Guarded) -> None:
    thread = polling(guarded, lambda: guarded.poll(30))

    for call in (lambda: guarded.poll(0), guarded.commit):
        with pytest.raises(ConcurrentModification, match=r"not safe for multi-threaded access.*otherThread.*worker-7"):
            call()
    assert guarded.position() == 5, "a query is for any thread"
    guarded.close()
    thread.join(10)


def test_threads_may_take_turns(guarded: Guarded) -> None:
    thread = threading.Thread(target=lambda: guarded.poll(0))
    thread.start()
    thread.join(10)

    assert guarded.poll(0) < 10


def test_of_two_threads_that_begin_a_call_at_once_one_is_refused(guarded: Guarded) -> None:
    inside, most, refused = 0, 0, 0
    start = threading.Barrier(4)

    def acts() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(20):
            pass
        inside -= 1

    def polls() -> None:
        nonlocal refused
        start.wait(10)
        for _ in range(2000):
            try:
                guarded.poll(0)
            except ConcurrentModification:
                refused += 1

    guarded.acts = acts
    guarded.wake.set()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=polls) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)

    assert most == 1
    assert refused > 0


# ---- callbacks


def test_poll_and_close_inside_a_callback_are_refused_with_one_sentence(guarded: Guarded) -> None:
    refusals: list[str] = []

    def acts() -> None:
        with guarded.calls.callback("on_partitions_revoked"):
            guarded.commit()
            for call in (lambda: guarded.poll(0), guarded.close):
                with pytest.raises(UsageError) as refused:
                    call()
                refusals.append(str(refused.value))

    guarded.acts = acts
    guarded.poll(30)

    assert refusals == [
        "poll was called inside on_partitions_revoked: poll is not reentrant, return first",
        "close was called inside on_partitions_revoked: poll is not reentrant, the consumer is closed when it returns",
    ]
    assert guarded.ended == 1


def test_a_signal_handler_that_interrupts_a_callback_closes_without_an_error(guarded: Guarded) -> None:
    def acts() -> None:
        with guarded.calls.callback("on_partitions_assigned"):
            interrupt()

    guarded.acts = acts
    guarded.poll(30)

    assert guarded.ended == 1


def test_a_callback_fails_until_a_poll_succeeds() -> None:
    runtime = ManualRuntime()
    calls = CallGuard(runtime, runtime.event())

    def fails(text: str) -> None:
        with suppress(ValueError), calls.callback("on_reset"):
            raise ValueError(text)

    assert calls.failing(0) == ""
    fails("one")
    runtime.now += 2.0
    fails("two")

    assert calls.failing(2.0) == "on_reset raised ValueError: two"
    assert calls.failing(2.5) == ""
    with calls.callback("on_reset"):
        assert calls.failing(2.0) == "", "it may succeed now"
    calls.succeeded()
    assert calls.failing(0) == ""


# ---- processes


def test_every_call_in_a_forked_process_says_so(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)

    for call in (lambda: guarded.poll(0), guarded.commit, guarded.position, guarded.close):
        with pytest.raises(Inherited, match=f"made in process {here}, .* make a consumer in each process"):
            call()
    assert guarded.ended == 0
