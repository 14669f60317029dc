"""A region of consumers in tests: an application that counts in memory only, and what must hold of its counts.

Most tests use a `RegionBench`, by the fixtures `r` (of members that the application polls) and `o` (of operators).
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Generic, TypeVar

from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Callbacks, Consumer
from zk_group.consumer.fetching.record_buffer import Record
from zk_group.consumer.metrics import ConsumerMetrics
from zk_group.consumer.operator.consumer_operator import ConsumerOperator, Processor
from zk_group.consumer.operator.states import State
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.store import Create
from zk_group.coordinator.zk.znodes.partitions import PartitionSet, TopicPartition
from zk_group.coordinator.zk.znodes.paths import RegionPaths
from zk_group.coordinator.zk.znodes.regions import ABORTED, COMPLETED, Contribution, Region, RegionRequest

PATHS = RegionPaths("r")


class Counts:
    """Counts the records of each partition twice: for the partition, and for the member as a whole.

    :ivar by_partition: partition -> records of it, the state of the partition.
    :ivar by_key: partition as text -> records, which this member keeps after the partition moves.
    :ivar has_ended: whether the test has closed it, or killed it.
    """

    consumer: Consumer

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_ended = False
        self.by_partition: dict[TopicPartition, int] = {}
        self.by_key: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.resets: list[int] = []
        self.fails_to_drain = False
        self.drain_s = 0.0
        self.padding = b""

    def count(self, partition: TopicPartition, records: int) -> None:
        with self.lock:
            self.by_partition[partition] = self.by_partition.get(partition, 0) + records
            self.by_key[str(partition)] += records

    def forget(self) -> None:
        with self.lock:
            self.by_partition.clear()
            self.by_key.clear()

    def on_checkpoint(self, checkpoint: int) -> State:
        if self.fails_to_drain:
            raise RuntimeError("the disk is full")
        held = self.consumer.assignment()
        partitions = {part: b"%d %s" % (self.by_partition.get(part, 0), self.padding) for part in held}
        return State(partitions, json.dumps(self.by_key).encode())

    def on_reset(self, checkpoint: int, state: State) -> None:
        with self.lock:
            self.resets.append(checkpoint)
            self.by_partition = {part: int(data.split(b" ")[0]) for part, data in state.partitions.items()}
            self.by_key = Counter()
            for data in (state.member, *state.inherited.values()):
                self.by_key.update(json.loads(data) if data else {})


class Counting(Counts, Callbacks):
    """Counts what it polls, in a thread of the test's.

    :ivar has_finished: its answer when a checkpoint is due.
    """

    def __init__(self, world: World, name: str, log: MemoryLog, **options: Any) -> None:
        super().__init__(name)
        self.errors: list[BaseException] = []
        self.has_finished = True
        config, subscription = member_config(world, name, options)
        self.consumer = Consumer(config, subscription, self, source=log)
        self._stop = ThreadRuntime().event()
        self.thread = ThreadRuntime().spawn(self._run, f"count-{name}")

    # ---- the application

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                found = self.consumer.poll(20)
            except Exception as error:  # noqa: BLE001  a test looks at it
                self.errors.append(error)
                self._stop.wait(0.05)
                continue
            for partition, records in found.items():
                self.count(partition, len(records))

    def on_drain(self) -> bool:
        self._stop.wait(self.drain_s)  # processing the polled records takes so long
        return self.has_finished

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self.forget()

    on_partitions_lost = on_partitions_revoked

    # ---- the test

    def stops(self) -> None:
        """Poll no more; its session goes on."""
        self._stop.set()
        self.thread.join(10)

    def close(self) -> None:
        self.has_ended = True
        self.stops()
        self.consumer.close()

    def vanish(self) -> None:
        """End without a word, as a killed process does: what it has counted is gone."""
        self.has_ended = True
        self.stops()
        store = self.consumer.member.store
        if store is not None:
            store.close()


class Operating(Counts, Processor):
    """Counts what a consumer operator's process thread gives it.

    :ivar gate: while it is clear, as from the beginning with `is_stuck`, `process` does not return.
    :ivar acts: called with each record before it is counted.
    :ivar seen: the records in the order of delivery.
    :ivar drains: called when its state was taken, before the multi.  :ivar restores: when it was given its state back.
    """

    def __init__(self, world: World, name: str, log: MemoryLog, **options: Any) -> None:
        super().__init__(name)
        self.gate = ThreadRuntime().event()
        if not options.pop("is_stuck", False):
            self.gate.set()
        self.acts: Callable[[Record], None] | None = None
        self.seen: list[Record] = []
        self.drains: Callable[[], None] | None = None
        self.restores: Callable[[], None] | None = None
        driven, opener = options.pop("operator_driven", False), options.pop("open_store", None)
        config, subscription = member_config(world, name, options)
        self.metrics = ConsumerMetrics()
        self.operator = ConsumerOperator(
            config, subscription, self, driven, source=log, open_store=opener, metrics=self.metrics
        )
        self.consumer = self.operator.consumer
        self.operator.start()

    def process(self, partition: TopicPartition, record: Record) -> None:
        self.seen.append(record)
        self.gate.wait()
        if self.acts is not None:
            self.acts(record)
        self.count(partition, 1)

    def on_checkpoint(self, checkpoint: int) -> State:
        state = super().on_checkpoint(checkpoint)
        if self.drains is not None:
            self.drains()
        return state

    def metric(self, name: str) -> float | None:
        """Of its consumer, by the end of its name."""
        labels = {"group": "g", "consumer": self.name}
        return self.metrics.registry.get_sample_value(f"zk_group_consumer_{name}", labels)

    def on_reset(self, checkpoint: int, state: State) -> None:
        super().on_reset(checkpoint, state)
        if self.restores is not None:
            self.restores()

    def close(self) -> None:
        self.has_ended = True
        self.operator.close()

    def vanish(self) -> None:
        """End as a killed process does: what it has counted is gone."""
        self.has_ended = True
        self.forget()
        self.acts = _unwinds
        self.gate.set()
        store = self.consumer.member.store
        if store is not None:
            store.close()
        with suppress(CoordinatorError, RuntimeError):
            self.operator.stop(RuntimeError("killed"))
            self.operator.wait(20)
        self.forget()


def _unwinds(record: Record) -> None:
    raise RuntimeError("killed")


def member_config(world: World, name: str, options: dict[str, Any]) -> tuple[ConsumerConfig, Subscription]:
    """A member of group `g` in region `r`, unless `options` say otherwise."""
    topics = options.pop("topics", {"t": 1})
    options = {"group": "g", "session_timeout_ms": SESSION_MS, "region": "r", **options}
    return ConsumerConfig(zk=world.zk, consumer=name, **options), Subscription(topics)


def region(world: World) -> Region:
    data = world.data(PATHS.root)
    return Region.parse(PATHS.root, data) if data is not None else Region()


def requested(world: World, what: str, **fields: Any) -> None:
    """An operator's request for the region."""
    world.store.commit([Create(PATHS.request, RegionRequest(what, "a test", **fields).to_bytes())])


def running(world: World, above: int = 0) -> Region:
    """The region, once it is Running in a reset above `above`."""

    def look() -> Region:
        found = region(world)
        assert found.state == "Running" and found.reset > above, found
        return found

    return eventually(look, 20, "the region is Running")


def checkpoint(world: World) -> int:
    """A checkpoint, once it is complete."""
    before = region(world).sequence
    requested(world, "checkpoint")
    return eventually(lambda: (now := region(world).sequence) > before and now, 20, "a checkpoint is complete")


def contributions(world: World, sequence: int) -> dict[str, Contribution]:
    names = [name for name in world.names(PATHS.checkpoint(sequence)) if "~" in name]
    assert COMPLETED in world.names(PATHS.checkpoint(sequence))
    found = {name: world.data(f"{PATHS.checkpoint(sequence)}/{name}") for name in names}
    return {name: Contribution.parse(name, data) for name, data in found.items() if data is not None}


def exact(log: MemoryLog, partitions: int | Mapping[str, int], *members: Counts) -> None:
    """All that was counted is what one uninterrupted run counts: each record once.

    :param partitions: those of topic `t`, or topic -> its partitions.
    """
    topics = {"t": partitions} if isinstance(partitions, int) else partitions
    wanted = {f"{topic}-{number}": log.end for topic, count in topics.items() for number in range(count)}

    def look() -> bool:
        by_partition: dict[str, int] = {}
        by_key: Counter[str] = Counter()
        for member in members:
            with member.lock:
                by_partition |= {str(part): count for part, count in member.by_partition.items()}
                by_key.update(member.by_key)
        assert by_partition == wanted, (by_partition, wanted)
        assert dict(by_key) == wanted, (by_key, wanted)
        return True

    eventually(look, 20, "every record is counted once")


M = TypeVar("M", Counting, Operating)


class RegionBench(Generic[M]):
    """Region `r`, whose members count one log in memory. `h~o1` is consumer o1 of group `h`, and `c1` one of group `g`.

    :ivar topics: topic -> its partitions: `t` has 4 unless the test has said otherwise before its first member.
    :ivar members: name -> the newest member of that name.

    A coordinator is started with the first member, with the default options, unless the test has started one.
    """

    def __init__(self, world: World, kind: Callable[..., M]) -> None:
        self.world = world
        self.zk = world.zk
        self.log = MemoryLog(end=40)
        self.topics: dict[str, int] = {}
        self.members: dict[str, M] = {}
        self._kind: Callable[..., M] = kind
        self._lives = ExitStack()

    def close(self) -> None:
        self._lives.close()

    # ---- what runs

    def topic(self, partitions: int, name: str = "t") -> None:
        """It has so many partitions from now on."""
        make = self.world.more_partitions if name in self.topics else self.world.topic
        make(name, partitions)
        self.topics[name] = partitions

    def member(self, name: str, **options: Any) -> M:
        """Start a member; the newest one of a name takes the place of the one before."""
        if not self.world.has_coordinator:
            self.world.coordinator()
        if not self.topics:
            self.topic(4)
        group, _, consumer = name.rpartition("~")
        made = self._kind(self.world, consumer, self.log, **{"group": group or "g", **options})
        self._lives.callback(made.vanish)
        self.members[name] = made
        return made

    def starts(self, *names: str, **options: Any) -> list[M]:
        """Start members at once; they are settled."""
        before = self.now.reset
        made = [self.member(name, **options) for name in names]
        self.settles(before)
        return made

    def joins(self, name: str, **options: Any) -> M:
        """Start one more member; with the others it is settled, after a reset."""
        return self.starts(name, **options)[0]

    def settles(self, above: int = 0) -> Region:
        """Exactly these members have partitions, the region is Running, and each record is counted once."""
        for group, members in self.groups().items():
            self.world.stable(group, len(members))
        found = running(self.world, above)
        assert set(self.groups()) <= set(found.groups), found
        self.exact()
        return found

    def groups(self) -> dict[str, list[M]]:
        """Group -> its members that have not ended."""
        found: dict[str, list[M]] = {}
        for name, member in self.members.items():
            if not member.has_ended:
                found.setdefault(name.rpartition("~")[0] or "g", []).append(member)
        return found

    # ---- what it counts

    def exact(self, *members: M) -> None:
        """Each group has counted every record once.

        :param members: those of one group, where not all of its members count.
        """
        counting = [members] if members else list(self.groups().values())
        assert counting, "no member is left"
        for some in counting:
            exact(self.log, self.topics, *some)

    def counts_on(self, more: int = 20) -> None:
        """There are more records in each partition, and they are counted."""
        self.log.end += more
        self.exact()

    # ---- the region

    @property
    def now(self) -> Region:
        return region(self.world)

    def asks(self, what: str, **fields: Any) -> None:
        """An operator's request."""
        requested(self.world, what, **fields)

    def checkpoint(self) -> int:
        """One more, which is complete; its number."""
        return checkpoint(self.world)

    def given(self, sequence: int) -> dict[str, Contribution]:
        """The contributions to a complete checkpoint."""
        return contributions(self.world, sequence)

    def aborted(self, sequence: int) -> None:
        """A checkpoint is aborted in the end."""
        path = PATHS.checkpoint(sequence)
        eventually(lambda: ABORTED in self.world.names(path), 15, f"checkpoint {sequence} is aborted")

    def reset_by(self, act: Callable[[], object]) -> Region:
        """The region after the reset that `act` begins, once it is Running; each record is counted once."""
        before = self.now.reset
        act()
        found = running(self.world, above=before)
        self.exact()
        return found

    def reset(self, to: int | None = None) -> Region:
        """The same, of an operator's request."""
        return self.reset_by(lambda: self.asks("reset", sequence=to))

    def fails(self) -> str:
        """The reason for which the region has failed in the end."""

        def look() -> Region:
            found = self.now
            assert found.state == "Failed", found
            return found

        return str(eventually(look, 30, "the region has failed").reason)

    def emptied(self, group: str = "g") -> None:
        """Its members have ended, and the coordinator knows."""
        eventually(lambda: self.world.state(group).state == "Empty", 20, f"{group} is Empty")


CountingRegion = RegionBench[Counting]
OperatingRegion = RegionBench[Operating]
