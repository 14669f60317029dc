"""A region of consumers in tests: an application that counts in memory only, and what must hold of its counts."""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Callbacks, Consumer
from consumer.operator.states import State
from coordinator.zk.partitions import PartitionSet, TopicPartition
from coordinator.zk.paths import RegionPaths
from coordinator.zk.region_requests import RegionRequest
from coordinator.zk.regions import COMPLETED, Contribution, Region
from coordinator.zk.store import Create
from tests.support.memlog import MemoryLog
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World

PATHS = RegionPaths("r")


class Counting(Callbacks):
    """Counts the records of each partition twice: for the partition, and for the member as a whole.

    :ivar by_partition: partition -> records of it, the state of the partition.
    :ivar by_key: partition as text -> records, which this member keeps whoever has the partition later.
    """

    def __init__(self, world: World, name: str, log: MemoryLog, **options: Any) -> None:
        self.name = name
        self.by_partition: dict[TopicPartition, int] = {}
        self.by_key: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.errors: list[BaseException] = []
        self.states: list[str] = []
        self.resets: list[int] = []
        self.fails_to_drain = False
        self.drain_s = 0.0
        self.padding = b""
        group = options.pop("group", "g")
        topics = options.pop("topics", {"t": 1})
        options = {"session_timeout_ms": SESSION_MS, "region": "r", **options}
        config = ConsumerConfig(zk=world.zk, group=group, consumer=name, **options)
        self.consumer = Consumer(config, Subscription(topics), self, log)
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"count-{name}", daemon=True)
        self.thread.start()

    # ---- the application

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                found = self.consumer.poll(20)
            except Exception as error:  # noqa: BLE001  a test looks at it
                self.errors.append(error)
                self._stop.wait(0.05)
                continue
            with self.lock:
                for partition, records in found.items():
                    self.by_partition[partition] = self.by_partition.get(partition, 0) + len(records)
                    self.by_key[str(partition)] += len(records)

    def on_partitions_revoked(self, partitions: PartitionSet) -> None:
        self._forget()

    def on_partitions_lost(self, partitions: PartitionSet) -> None:
        self._forget()

    def _forget(self) -> None:
        with self.lock:
            self.by_partition.clear()
            self.by_key.clear()

    def on_drain(self) -> None:
        self._stop.wait(self.drain_s)  # what `poll` has returned takes so long

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

    # ---- the test

    def close(self) -> None:
        self._stop.set()
        self.thread.join(10)
        self.consumer.close()

    def vanish(self) -> None:
        """End without a word, as a killed process does: what it has counted is gone."""
        self._stop.set()
        self.thread.join(10)
        store = self.consumer.member.store
        if store is not None:
            store.close()


def region(world: World) -> Region:
    data = world.data(PATHS.root)
    return Region.parse(PATHS.root, data) if data is not None else Region()


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
    world.store.commit([Create(PATHS.request, RegionRequest("checkpoint", "a test").to_bytes())])
    return eventually(lambda: (now := region(world).sequence) > before and now, 20, "a checkpoint is complete")


def contributions(world: World, sequence: int) -> dict[str, Contribution]:
    names = [name for name in world.names(PATHS.checkpoint(sequence)) if "~" in name]
    assert COMPLETED in world.names(PATHS.checkpoint(sequence))
    found = {name: world.data(f"{PATHS.checkpoint(sequence)}/{name}") for name in names}
    return {name: Contribution.parse(name, data) for name, data in found.items() if data is not None}


def exact(log: MemoryLog, partitions: int, *members: Counting) -> None:
    """All that was counted is what one uninterrupted run counts: each record once."""
    wanted = {f"t-{number}": log.end for number in range(partitions)}

    def look() -> None:
        by_partition: dict[str, int] = {}
        by_key: Counter[str] = Counter()
        for member in members:
            with member.lock:
                by_partition |= {str(part): count for part, count in member.by_partition.items()}
                by_key.update(member.by_key)
        assert by_partition == wanted, (by_partition, wanted)
        assert dict(by_key) == wanted, (by_key, wanted)

    eventually(lambda: look() or True, 20, "every record is counted once")
