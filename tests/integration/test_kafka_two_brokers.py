"""Groups on two real brokers, one of which dies, hangs or refuses the credentials: only its partitions wait."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.clients import fresh_chroot
from tests.support.kafka import USERS
from tests.support.kafka_cluster import BROKERS, PASSWORDS, TwoBrokers, sasl, two_brokers
from tests.support.kafka_group import Writing, all_delivered, joins, numbered, rows_of, segments, two_slots
from tests.support.wait import eventually, within
from tests.support.world import World, a_world
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.coordinator.zk.embedded.ensemble import Ensemble
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

pytestmark = pytest.mark.timeout(240)

CALM_MS = 20_000
"""ZooKeeper sessions of consumers and coordinator: a machine that stalls for seconds ends none."""

LEADERS = (0, 2, 0, 2)
"""Partition -> its only replica: each of two consumers has a partition of either broker."""

GAP_S = 8.0
"""The longest gap of a partition whose leader is well: that of a reader of 33 partitions. A request to a broker that
hangs, which others wait for, would take 60 s (`socket.timeout.ms`), and a described topic 5 s."""

FAULT_S = 15.0
"""How long a broker is ill: a gap that is too long shows, and so does the log line, after the ten seconds that a quick
restart may take."""

UNDER_WAY_S = 2.0
"""After so long nothing comes any more that the ill broker had sent before."""

RESUMED_S = 10.0
"""From the moment at which the broker serves again: its partitions have leaders after some seconds, and librdkafka
connects, and refreshes metadata of partitions without a leader, within two."""

REFUSED_S = 40.0
"""The same after refused credentials: brokers throttle, and a client may retry as rarely as every 30 s."""

UNAVAILABLE, AVAILABLE, ALL_DOWN = "Kafka broker unavailable", "Kafka broker available", "all Kafka brokers down"

either = pytest.mark.parametrize("is_controller", [False, True], ids=["not-controller", "controller"])
"""Which of the two is ill: the controller answers what other brokers do not."""


@pytest.fixture(scope="module")
def brokers(zookeeper: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoBrokers]:
    """Two brokers in ZooKeeper mode, in a chroot of their own."""
    with two_brokers(tmp_path_factory.mktemp("brokers"), fresh_chroot(zookeeper.hosts)) as brokers:
        yield brokers


@pytest.fixture
def world(brokers: TwoBrokers) -> Iterator[World]:
    """A coordinator in the chroot in which the brokers register."""
    with a_world(brokers.zk) as world:
        world.elected(world.coordinator(session_timeout_ms=CALM_MS))
        yield world


def led_by(broker: int) -> list[int]:
    return [number for number, leader in enumerate(LEADERS) if leader == broker]


def the_victim(brokers: TwoBrokers, is_controller: bool) -> int:
    """The controller, or the other one: after a fault of the controller that is another broker than before."""
    controller = brokers.controller()
    return next(number for number in BROKERS if (number == controller) == is_controller)


def offsets_of(world: World, group: str, topic: str, partitions: Collection[int]) -> dict[int, int]:
    """The committed offsets of these partitions; -1 for one without."""
    found = world.offsets(group)
    return {number: found.get(TopicPartition(topic, number), -1) for number in partitions}


def are_above(world: World, group: str, topic: str, offsets: Mapping[int, int]) -> bool:
    """Whether more is committed of each of these partitions than its offset."""
    found = offsets_of(world, group, topic, offsets.keys())
    return all(found[number] > offset for number, offset in offsets.items())


def flow(world: World, group: str, writing: Writing, partitions: Collection[int], seconds: float) -> None:
    """For so long what is written to these partitions is delivered, and committed, within `GAP_S`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        are_delivered(world, group, writing, partitions, GAP_S, "their leader is well")


def are_delivered(
    world: World, group: str, writing: Writing, partitions: Collection[int], timeout_s: float, what: str
) -> None:
    """Something more is written to each of these partitions, and is then delivered within `timeout_s`."""
    before = writing.ends.copy()
    what_before = f"something is written to {sorted(partitions)}"
    eventually(lambda: all(writing.ends[n] > before[n] for n in partitions), 30, what_before, pause_s=0.05)
    last = {number: writing.ends[number] - 1 for number in partitions}

    def are() -> bool:
        found = offsets_of(world, group, writing.topic, partitions)
        assert all(found[number] > offset for number, offset in last.items()), (found, last)
        return True

    within(are, timeout_s, f"what is written to {sorted(partitions)} is delivered: {what}", pause_s=0.05)


class Said:
    """What the consumers' logs say of one broker and of all, of `clients` consumers."""

    def __init__(self, caplog: pytest.LogCaptureFixture, address: str) -> None:
        self._caplog = caplog
        self._address = address

    def lines(self, what: str) -> list[str]:
        """The messages about the broker that begin with `what`."""
        return [line for line in self._caplog.messages if line.startswith(what) and self._address in line]

    def check(self, clients: int) -> None:
        """Each client said once that the broker was unavailable and why, and once that it is back, within 5 s."""
        with suppress(AssertionError):
            eventually(lambda: len(self.lines(AVAILABLE)) >= clients, 5, "it is said")
        about = [line for line in self._caplog.messages if line.startswith((UNAVAILABLE, AVAILABLE, ALL_DOWN))]
        gone, back = self.lines(UNAVAILABLE), self.lines(AVAILABLE)
        assert [line for line in about if line.startswith(ALL_DOWN)] == []
        assert (len(gone), len(back), len(about)) == (clients, clients, 2 * clients), about
        assert all(re.search(r" reason=\S", line) for line in gone), gone


@contextmanager
def fault(begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """One broker is ill; it is well again afterwards whatever happens."""
    try:
        begin()
        yield
    finally:
        end()


def only_its_partitions_wait(
    world: World, brokers: TwoBrokers, names: Collection[str], victim: int, ill: Callable[[], None],
    well: Callable[[], None], said: Said, url: str = "kafka:", user: str = "",
) -> None:  # fmt: skip
    """Run a group before, during and after a fault of one broker."""
    topic, group = brokers.name("orders"), brokers.name("group")
    brokers.topic(topic, len(LEADERS), replicas=[[leader] for leader in LEADERS])
    options = sasl(user, USERS[user]) if user else {}
    consumers = [joins(world, group, name, topic, url, options, session_timeout_ms=CALM_MS) for name in names]
    world.stable(group, members=len(consumers), timeout_s=30)
    sick = led_by(victim)
    sound = [number for number in range(len(LEADERS)) if number not in sick]
    with Writing(brokers, topic, len(LEADERS), 1) as writing:
        eventually(lambda: len(world.offsets(group)) == len(LEADERS), 30, "every partition is delivered")
        are_delivered(world, group, writing, range(len(LEADERS)), 20, "before the fault")
        with fault(ill, well):
            flow(world, group, writing, sound, UNDER_WAY_S)
            stands = offsets_of(world, group, topic, sick)
            flow(world, group, writing, sound, FAULT_S - UNDER_WAY_S)
            assert offsets_of(world, group, topic, sick) == stands, "the broker was not ill"
        within(lambda: are_above(world, group, topic, stands), RESUMED_S, "its partitions go on", pause_s=0.05)
        flow(world, group, writing, range(len(LEADERS)), 1)
        writing.stop()
    all_delivered(brokers, consumers, topic, len(LEADERS))
    for consumer in consumers:
        for number in range(len(LEADERS)):
            offsets = [offset for part, offset in consumer.records if part == TopicPartition(topic, number)]
            assert offsets == sorted(offsets), f"{consumer.name}: {topic}-{number}"
    assert [consumer.error for consumer in consumers] == [None] * len(consumers)
    said.check(len(consumers))


@either
def test_only_the_partitions_of_a_killed_broker_wait_for_it(
    brokers: TwoBrokers, world: World, caplog: pytest.LogCaptureFixture, is_controller: bool
) -> None:
    victim = the_victim(brokers, is_controller)
    broker = brokers.brokers[victim]
    with caplog.at_level(logging.INFO, "zk_group.consumer"):
        said, restart = Said(caplog, broker.address), lambda: brokers.restart(victim)
        only_its_partitions_wait(world, brokers, ["c1", "c2"], victim, broker.kill, restart, said)


@pytest.mark.full("one of two brokers fails")
@either
def test_only_the_partitions_of_a_suspended_broker_wait_for_it(
    brokers: TwoBrokers, world: World, caplog: pytest.LogCaptureFixture, is_controller: bool
) -> None:
    """Its ZooKeeper session expires, so that its partitions have no leader; its connections stay open."""
    victim = the_victim(brokers, is_controller)
    broker = brokers.brokers[victim]

    def resume() -> None:
        broker.resume()
        brokers.wait_ready()

    with caplog.at_level(logging.INFO, "zk_group.consumer"):
        only_its_partitions_wait(world, brokers, ["c1"], victim, broker.pause, resume, Said(caplog, broker.address))


@pytest.mark.full("one of two brokers fails")
@pytest.mark.parametrize("is_cut", [False, True], ids=["open-connections", "new-connections"])
@either
def test_only_the_partitions_of_a_broker_that_never_answers_wait_for_it(
    brokers: TwoBrokers, world: World, caplog: pytest.LogCaptureFixture, is_controller: bool, is_cut: bool
) -> None:
    """It is well, and the leader, for everyone but the consumer, of whose requests it swallows every byte: on the
    connections that were good before, or, when those are cut, on new ones, which are accepted.
    """
    victim = the_victim(brokers, is_controller)
    proxy = brokers.proxies[victim]

    def black_hole() -> None:
        proxy.black_hole()
        if is_cut:
            proxy.cut()

    with caplog.at_level(logging.INFO, "zk_group.consumer"):
        said, user = Said(caplog, proxy.hosts), (brokers.sasl_url, "alice")
        only_its_partitions_wait(world, brokers, ["c1"], victim, black_hole, proxy.resume, said, *user)


@pytest.mark.full("one of two brokers fails")
@pytest.mark.parametrize("refuses", BROKERS)
def test_a_broker_that_refuses_credentials_is_named_and_only_its_partitions_wait(
    brokers: TwoBrokers, world: World, caplog: pytest.LogCaptureFixture, refuses: int
) -> None:
    (accepts,) = {*BROKERS} - {refuses}
    user = "bob" if refuses == 2 else "carol"
    password = PASSWORDS[accepts][user]
    topic, group = brokers.name("orders"), brokers.name("group")
    brokers.topic(topic, len(LEADERS), replicas=[[leader] for leader in LEADERS])
    with caplog.at_level(logging.INFO, "zk_group.consumer"), Writing(brokers, topic, len(LEADERS), 1) as writing:
        consumer = joins(world, group, "c1", topic, brokers.sasl_url, sasl(user, password), session_timeout_ms=CALM_MS)
        world.stable(group, members=1, timeout_s=30)
        what = "the other broker's partitions begin, after requests for topic and start offsets that were not answered"
        within(lambda: are_above(world, group, topic, dict.fromkeys(led_by(accepts), 0)), GAP_S + 10, what)
        flow(world, group, writing, led_by(accepts), FAULT_S)
        named = [line for line in caplog.messages if brokers.proxies[refuses].hosts in line]
        assert [line for line in named if "refuses the credentials" in line and "sasl.username" in line] != [], named
        assert [line for line in caplog.messages if password in line] == []
        brokers.set_password(refuses, user, password)
        what = "its partitions begin when it knows the password"
        within(lambda: are_above(world, group, topic, dict.fromkeys(led_by(refuses), 0)), REFUSED_S, what)
        writing.stop()
    all_delivered(brokers, [consumer], topic, len(LEADERS))
    assert consumer.error is None
    assert [line for line in caplog.messages if line.startswith(ALL_DOWN)] == []


@pytest.mark.full("one of two brokers fails")
@either
def test_consumer_that_joins_beside_a_hanging_broker(brokers: TwoBrokers, world: World, is_controller: bool) -> None:
    """Its bootstrap servers, its first request for metadata and those for start offsets include the one that hangs."""
    victim = the_victim(brokers, is_controller)
    topic, group = brokers.name("orders"), brokers.name("group")
    brokers.topic(topic, len(LEADERS), replicas=[[leader] for leader in LEADERS])
    sick = led_by(victim)
    sound = [number for number in range(len(LEADERS)) if number not in sick]
    for number in range(len(LEADERS)):
        brokers.write(topic, numbered(0, 10), partition=number)
    proxy = brokers.proxies[victim]
    with fault(proxy.black_hole, proxy.resume):
        consumer = joins(
            world, group, "c1", topic, brokers.sasl_url, sasl("alice", USERS["alice"]), session_timeout_ms=CALM_MS
        )
        world.stable(group, members=1, timeout_s=30)
        what = "the other broker's partitions begin, after a first request that was not answered"
        within(lambda: are_above(world, group, topic, dict.fromkeys(sound, 9)), GAP_S + 5, what)
    within(lambda: are_above(world, group, topic, dict.fromkeys(sick, 9)), RESUMED_S, "and then the others")
    all_delivered(brokers, [consumer], topic, len(LEADERS))


@pytest.mark.full("one of two brokers fails")
def test_replicated_partition_goes_on_at_its_next_leader_when_one_is_killed(brokers: TwoBrokers, world: World) -> None:
    topic, group = brokers.name("orders"), brokers.name("group")
    brokers.topic(topic, 2, replicas=[[2, 0], [0, 2]])
    consumer = joins(world, group, "c1", topic, session_timeout_ms=CALM_MS)
    with Writing(brokers, topic, 2, 1) as writing:
        eventually(lambda: len(world.offsets(group)) == 2, 30, "both are delivered")
        with fault(brokers.brokers[2].kill, lambda: brokers.restart(2)):
            flow(world, group, writing, range(2), FAULT_S)
        flow(world, group, writing, range(2), 2)
        writing.stop()
    all_delivered(brokers, [consumer], topic, 2)


@pytest.mark.full("one of two brokers fails")
def test_slots_seal_all_when_a_broker_and_a_slot_die(brokers: TwoBrokers, world: World, tmp_path: Path) -> None:
    topic, group = brokers.name("orders"), brokers.name("group")
    brokers.topic(topic, len(LEADERS), replicas=[[leader] for leader in LEADERS])
    folder = SegmentFolder(str(tmp_path / "segments"))

    def sealed_to() -> dict[int, int]:
        """Partition -> the offset after the last sealed one."""
        found = [each for segment in segments(world, group) for each in segment.ranges]
        return {number: max((r.next for r in found if r.partition == number), default=0) for number in range(4)}

    with (
        two_slots(tmp_path, world, group, topic, folder.url) as slots,
        Writing(brokers, topic, len(LEADERS), 1) as writing,
    ):
        eventually(lambda: all(sealed_to().values()), 30, "every partition is sealed")
        with fault(brokers.brokers[2].kill, lambda: brokers.restart(2)):
            until = time.monotonic() + FAULT_S
            while time.monotonic() < until:
                written = {number: writing.ends[number] for number in led_by(0)}
                are_sealed = lambda: all(sealed_to()[n] >= end for n, end in written.items())  # noqa: B023, E731
                within(are_sealed, GAP_S, f"what is written to {sorted(written)} is sealed", pause_s=0.1)
            slots[0].kill()
        writing.stop()
        rows_there = brokers.read_all(topic, len(LEADERS))
        there = {part: [(r.offset, r.value) for r in rows] for part, rows in rows_there.items()}

        def is_whole() -> bool:
            found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(len(LEADERS))}
            for row in rows_of(world, group, folder):
                found[row["partition"]].append((row["offset"], row["value"]))
            assert found == there, {number: len(rows) for number, rows in found.items()}
            return True

        eventually(is_whole, 60, "every record is sealed, once and in order", pause_s=0.1)
