"""The ends of public objects: what `close` promises, in whichever thread, signal handler or process it is called."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.support.hand_polled import HandPolled
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World, expire, parts
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.errors import Closed, CommitFailed, Inherited
from zk_group.consumer.group import GroupMember, MemberCallbacks
from zk_group.consumer.operator.consumer_operator import ConsumerOperator, Processor
from zk_group.consumer.operator.states import State
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths

PATHS = GroupPaths("g")
T0 = TopicPartition("t", 0)
BOTH = parts("t", 0, 1)
CLOSED = r"^This consumer has already been closed\."


@pytest.fixture
def world(world: World) -> World:
    """With a coordinator, and topic `t` of two partitions."""
    world.coordinator()
    world.topic("t", 2)
    return world


def nothing_is_left(world: World) -> None:
    """Of group `g`: no owner, and no registration."""
    assert (world.owners("g"), world.names(PATHS.ids)) == ({}, [])


def consumer_of(world: World, log: MemoryLog | None = None, **options: Any) -> HandPolled:
    return HandPolled(world, "c1", log or MemoryLog(end=5), **{"session_timeout_ms": SESSION_MS, **options})


def owning(world: World) -> Consumer:
    """A consumer that owns both partitions, and whose log has no more records."""
    made = consumer_of(world)
    made.is_at(5)
    return made.consumer


def member_of(world: World, callbacks: MemberCallbacks | None = None) -> GroupMember:
    member = GroupMember(
        world.zk, "jobs", "named-jobs", {"even": b""}, lambda protocol, members: members, callbacks,
        member="m1", session_timeout_ms=SESSION_MS,
    )  # fmt: skip
    eventually(lambda: member.poll(20), 10, "it has its assignment")
    return member


CALLS: list[tuple[Any, ...]] = [
    *(("poll", 500), ("commit",), ("commit", {T0: 1}), ("subscribe", Subscription({"t": 1})), ("enforce_rebalance",)),
    *(("request_checkpoint",), ("request_reset", "a test"), ("assignment",), ("subscription",), ("retained",)),
    *(("position", T0), ("committed", T0), ("seek", T0, 0), ("seek_to_beginning",), ("seek_to_end",)),
    *(("pause", T0), ("resume", T0), ("paused",), ("beginning_offsets", [T0]), ("end_offsets", [T0])),
    *(("offsets_for_times", {T0: 0}), ("lag", T0)),
]


def called(consumer: Consumer, name: str, *given: Any) -> object:
    """A method called, or a property read."""
    found = getattr(consumer, name)
    return found(*given) if callable(found) else found


def test_every_call_of_a_closed_consumer_says_so(world: World) -> None:
    consumer = owning(world)
    consumer.close()
    consumer.close()

    for call in CALLS:
        with pytest.raises(Closed, match=CLOSED):
            called(consumer, *call)
            pytest.fail(f"{call} was answered")
    assert consumer.member.registrations == 1
    assert world.names(PATHS.ids) == []


def operator_of(world: World, group: str) -> ConsumerOperator:
    config = ConsumerConfig(world.zk, group, "c1", region="r", session_timeout_ms=SESSION_MS)
    return ConsumerOperator(config, Subscription({"t": 1}), Processor(), source=MemoryLog(end=0))


def test_every_call_of_a_closed_member_or_operator_says_so(world: World) -> None:
    member, operator = member_of(world), operator_of(world, "g")
    with operator:
        eventually(lambda: operator.consumer.region.is_ready, 10, "it is restored")
    for each in (member, member, operator):
        each.close()

    calls: list[Callable[[], object]] = [
        lambda: member.poll(0), lambda: member.update({"even": b""}), member.enforce_rebalance,
        operator.start, operator.request_checkpoint, lambda: operator.request_reset("a test"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(Closed, match=CLOSED):
            call()
    assert (member.may_run, member.assignment, operator.wait(0)) == (False, None, True)


@pytest.mark.parametrize(("of", "nothing"), [(owning, {}), (member_of, None)], ids=["consumer", "member"])
def test_close_in_another_thread_ends_a_poll_that_waits(
    world: World, of: Callable[[World], Consumer | GroupMember], nothing: object
) -> None:
    polling = of(world)
    runtime, polled = ThreadRuntime(), list[object]()
    task = runtime.spawn(lambda: polled.append(polling.poll(20_000)), "polls")
    runtime.sleep(1.0)
    began = runtime.monotonic()

    polling.close()

    task.join(5)
    assert polled == [nothing]
    assert runtime.monotonic() - began < 2
    nothing_is_left(world)


class Watched(MemoryLog):
    """Records that it was closed, and calls `then` once inside a fetch, as a signal handler would be."""

    then: Callable[[], None] | None = None
    is_closed = False

    def fetch(self, *args: object, **options: object) -> object:  # type: ignore[override]
        found = super().fetch(*args, **options)  # type: ignore[arg-type]
        then, self.then = self.then, None
        if then is not None:
            then()
        return found

    def close(self) -> None:
        self.is_closed = True


def test_records_of_a_poll_that_is_closed_meanwhile_are_not_committed(world: World) -> None:
    log = Watched(end=5)
    consumer = consumer_of(world, log, enable_auto_commit=True).consumer
    log.then = consumer.close
    returned: list[int] = []

    def is_closed() -> bool:
        try:
            returned.extend(map(len, consumer.poll(20).values()))
        except Closed:
            return True
        return False

    eventually(is_closed, 10, "it is closed")

    assert returned == []
    assert {offset for offset in world.offsets("g").values()} <= {0}


@pytest.mark.real_zookeeper("signals reach real processes")
def test_a_signal_handler_that_closes_ends_the_poll_that_it_interrupts(world: World) -> None:
    consumer, member = owning(world), member_of(world)

    def on_signal(*_: object) -> None:
        consumer.close()
        member.close()

    before = signal.signal(signal.SIGTERM, on_signal)
    began = ThreadRuntime().monotonic()
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    try:
        assert consumer.poll(20_000) == {}
    finally:
        signal.signal(signal.SIGTERM, before)

    assert ThreadRuntime().monotonic() - began < 10
    nothing_is_left(world)
    with pytest.raises(Closed):
        consumer.poll(0)
    with pytest.raises(Closed):
        member.poll(0)


UNCLOSED = """
import sys
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer
from tests.support.hand_polled import HandPolled
from tests.support.memlog import MemoryLog

class Says(Callbacks):
    def on_partitions_revoked(self, partitions): print("revoked", flush=True)
    def on_partitions_lost(self, partitions): print("lost", flush=True)

config = ConsumerConfig(sys.argv[1], "g", "c1", session_timeout_ms=int(sys.argv[2]))
consumer = Consumer(config, Subscription({"t": 1}), Says(), source=MemoryLog(end=5))
while len(consumer.assignment()) < 2 or consumer.poll(20): consumer.poll(20)
print("owns", flush=True)
"""


@pytest.mark.real_zookeeper("it is about a process")
@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('wrong record')", 1, "ValueError: wrong record"),
        ("consumer.poll(60_000)", -signal.SIGINT, "KeyboardInterrupt"),
    ],
    ids=["end", "exit", "exception", "Ctrl-C"],
)
def test_a_script_that_ends_without_close_ends_at_once_and_its_session_later(
    world: World, end: str, code: int, said: str
) -> None:
    words = [sys.executable, "-c", UNCLOSED + end, world.zk, str(SESSION_MS)]
    script = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert script.stdout is not None
    assert script.stdout.readline() == "owns\n"
    began = ThreadRuntime().monotonic()
    if code == -signal.SIGINT:
        script.send_signal(signal.SIGINT)

    output, errors = script.communicate(timeout=30)

    assert (script.returncode, output) == (code, ""), "no callback is called when the consumer is freed"
    assert errors.strip().rpartition("\n")[2] == said
    assert ThreadRuntime().monotonic() - began < 5
    eventually(lambda: not world.names(PATHS.ids), SESSION_MS / 1000 + 10, "its session ends")
    owning(world).close()


# ---- a callback that raises inside `close`


def fails() -> None:
    raise ValueError("no space")


@pytest.mark.parametrize(
    ("error", "options"),
    [
        *((error, {"region": region}) for error in (ValueError, OSError, CommitFailed) for region in ("", "r")),
        pytest.param(
            ValueError, {"metrics_port": 0}, marks=pytest.mark.real_zookeeper("a metrics server has threads of its own")
        ),
    ],
)
def test_close_ends_all_if_a_callback_raises(world: World, error: type[Exception], options: dict[str, object]) -> None:
    """Another consumer of its configuration consumes: also where both listen at one port."""
    if "metrics_port" in options:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            options = {"metrics_port": probe.getsockname()[1]}

    def raises() -> None:
        raise error("no space")

    log = Watched(end=5)
    one = consumer_of(world, log, **options)
    one.revokes = raises
    one.has(1)

    with pytest.raises(error, match="no space"):
        one.close()

    assert log.is_closed
    nothing_is_left(world)
    assert f"{error.__name__}: no space" in (world.channel("g", "c1").ended or "")
    with pytest.raises(Closed):
        one.poll(0)
    following = consumer_of(world, **options)
    following.holds(BOTH)
    following.close()


def test_a_member_whose_callback_raises_inside_close_has_left(world: World) -> None:
    failing = MemberCallbacks()
    failing.on_revoked = failing.on_lost = fails  # type: ignore[method-assign]
    member = member_of(world, failing)

    with pytest.raises(ValueError, match="no space"):
        member.close()

    assert world.names(GroupPaths("jobs").ids) == []
    assert "ValueError: no space" in (world.channel("jobs", "m1").ended or "")
    with pytest.raises(Closed):
        member.poll(0)


# ---- calls inside callbacks


PLACES = [
    "on_partitions_assigned", "on_partitions_revoked", "on_partitions_lost", "on_drain", "on_checkpoint", "on_reset",
]  # fmt: skip


@pytest.mark.parametrize("inside", PLACES)
@pytest.mark.parametrize("call", ["poll", "close"])
def test_poll_and_close_inside_a_callback_are_refused(world: World, inside: str, call: str) -> None:
    one = consumer_of(world, region="" if inside.startswith("on_partitions") else "r")
    refusals: list[str] = []

    def calls(*_: object) -> State:
        try:
            called(one.consumer, call)
        except UsageError as error:
            refusals.append(str(error))
        return State()  # of a checkpoint; other callbacks return nothing

    setattr(one, inside, calls)
    with suppress(Closed):
        one.has(1)
        if inside == "on_partitions_lost":
            expire(one.store)
            eventually(lambda: [one.poll()] and refusals, 20, "they are lost")

    one.close()

    assert refusals
    assert all(text.startswith(f"{call} was called inside {inside}: poll is not reent") for text in refusals)
    nothing_is_left(world)


@pytest.mark.parametrize("polls_on", [True, False])
def test_the_group_is_told_the_exception_of_a_callback_that_keeps_raising(
    world: World, caplog: pytest.LogCaptureFixture, polls_on: bool
) -> None:
    one = consumer_of(world, max_poll_interval_ms=3000)
    one.is_at(5)
    one.revokes = fails
    another = world.consumer("g", "c2", {"t": 1})
    with pytest.raises(ValueError, match="no space"):
        eventually(one.poll, 10, "the callback is called")

    def is_told() -> bool:
        with suppress(ValueError):
            if polls_on:
                one.poll()
        return "on_partitions_revoked raised ValueError: no space" in caplog.text

    eventually(is_told, 10, "the reason is in the log")

    assert "left by itself: on_partitions_revoked raised ValueError: no space" in caplog.text
    assert "lower max_poll_records" not in caplog.text
    eventually(lambda: len(another.held) == 2 or polls_on, 10, "the other one has its partitions")
    with suppress(ValueError):
        one.close()


# ---- forked processes


def refused_in_a_child(calls: Sequence[Callable[[], object]]) -> list[str]:
    """What each call raises in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for call in calls:
                try:
                    call()
                    line = "nothing"
                except Inherited as error:
                    line = str(error)
                os.write(writing, line.encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        found = lines.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    return found


@pytest.mark.real_zookeeper("a forked process has no virtual time")
def test_every_call_of_an_inherited_consumer_says_so_and_the_parent_goes_on(world: World) -> None:
    consumer, member, operator = owning(world), member_of(world), operator_of(world, "r")
    calls: list[Callable[[], object]] = [
        *(partial(called, consumer, *call) for call in CALLS),
        consumer.close, lambda: member.poll(0), lambda: member.may_run, member.close,
        operator.start, operator.request_checkpoint, lambda: operator.wait(0), operator.stop, operator.close,
    ]  # fmt: skip

    found = refused_in_a_child(calls)

    assert found == [found[0]] * len(calls)
    assert f"made in process {os.getpid()}" in found[0]
    consumer.poll(0)
    consumer.commit({T0: 3})
    assert (consumer.committed(T0), consumer.member.registrations, member.may_run) == (3, 1, True)
    for each in (consumer, member, operator):
        each.close()
