"""A group on real executors, sealed by pools that come and go, and its queries over all their runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.cli import run, run_json, run_ok
from tests.support.spark import Delivered, pool, query, read
from tests.support.wait import eventually
from tests.support.world import World
from zk_group.consumer.logs.embedded.log import file_name
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.consumer.spark import register
from zk_group.consumer.streaming.fetchers.pool import FetcherPool
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.segments import Query, Segment

AVAILABLE_NOW = {"availableNow": True}
Offsets = dict[int, list[int]]


class Stage:
    """A group that pools of one slot seal, one after the other, and its queries."""

    def __init__(self, spark: SparkSession, world: World, folder: Path, group: str = "g") -> None:
        self.spark = spark
        self.world = world
        self.folder = folder
        self.group = group
        self.paths = GroupPaths(group)
        self.log = folder / "log"

    def write(self, records: int, partition: int = 0) -> None:
        """Add one file of records to a partition of topic `t` in the embedded log."""
        values = [f"{number:06d}".encode() for number in range(records)]
        with Producer.for_store(self.world.store, self.log, self.world.brokers) as producer:
            producer.send_batch("t", partition, values, timestamps_ms=1_700_000_000_000)

    def pool(self, topic: str = "t", **options: Any) -> FetcherPool:
        options = {"slots": 1, "seal_interval_ms": 10} | options
        return pool(self.spark, self.world, self.group, self.folder, {topic: 1}, **options)

    def segments(self) -> dict[str, Segment]:
        """Name -> segment, in the order of the seals."""
        names = self.world.names(self.paths.segments)
        data = {name: self.world.data(self.paths.segment(name)) for name in names}
        return {name: Segment.parse(name, each) for name, each in data.items() if each is not None}

    def sealed(self, rows: int) -> None:
        """Wait until the group has sealed so many records in all."""

        def is_sealed() -> bool:
            found = sum(segment.rows for segment in self.segments().values())
            assert found == rows, found
            return True

        eventually(is_sealed, 90, f"{rows} records are sealed")

    def operate(self, command: str, *options: str) -> None:
        """Change the group's offsets as an operator does: no slot of a pool that has stopped is expected back."""
        for slot in self.world.names(self.paths.seats):
            run(self.world.zk, "groups", "remove-members", self.group, slot)  # it may have ended by now

        def is_empty() -> bool:
            return self.world.state(self.group).state == "Empty" and not self.world.names(self.paths.seats)

        eventually(is_empty, 30, "the group has no members")
        run_ok(self.world.zk, "groups", command, self.group, *options)

    def reset(self, *options: str) -> None:
        self.operate("reset-offsets", *options, "--log-dir", str(self.log), "--execute")

    def lose_the_first_file_of_partition_2(self) -> None:
        """Topic `t` gets a partition with 100 records, of which the log loses the first 50."""
        self.world.more_partitions("t", 3)
        for _ in range(2):
            self.write(50, partition=2)
        (first,) = self.log.glob(f"t/*/2/{file_name(0)}")
        first.unlink()

    def query(self, name: str, shape: Callable[[DataFrame], DataFrame] = lambda frame: frame) -> Runs:
        return Runs(self, name, shape)

    def batch_read(self) -> DataFrame:
        register(self.spark)
        reader = self.spark.read.format("zk_group").option("zk", self.world.zk).option("group", self.group)
        return reader.load()


class Runs:
    """A query, over all its runs from one checkpoint.

    :ivar sink: what they have delivered: a batch that is delivered again replaces itself.
    """

    def __init__(self, stage: Stage, name: str, shape: Callable[[DataFrame], DataFrame]) -> None:
        self.sink = Delivered()
        self._expected: Offsets = {}
        self._stage = stage
        self._name = name
        self._shape = shape

    def start(self, trigger: dict[str, Any] | None = None, **options: str) -> StreamingQuery:
        frame = read(self._stage.spark, self._stage.world, self._stage.group, query=self._name, **options)
        return query(self._shape(frame), self.sink, self._stage.folder / self._name, **(trigger or {}))

    def run(self, **options: str) -> None:
        """Deliver what is available, and end."""
        assert self.start(AVAILABLE_NOW, **options).awaitTermination(120)
        self._expected = self.offsets

    @property
    def registered(self) -> str:
        """The run that is registered in ZooKeeper, empty while there is none."""
        path = self._stage.paths.query(self._name)
        data = self._stage.world.data(path)
        return Query.parse(path, data).run if data is not None else ""

    @property
    def offsets(self) -> Offsets:
        """Partition -> the offsets delivered, in order."""
        return {partition: offsets for (_, partition), offsets in self.sink.offsets.items()}

    def has(self, offsets: Offsets, stream: StreamingQuery) -> None:
        """Wait until exactly these were delivered."""

        def is_delivered() -> bool:
            assert self.offsets == offsets or not stream.isActive, summary(self.offsets)
            return True

        eventually(is_delivered, 60, f"{self._name} has delivered {summary(offsets)}")
        assert self.offsets == offsets, f"{summary(self.offsets)}; {stream.exception()}"
        self._expected = offsets

    def finish(self, offsets: Offsets, stream: StreamingQuery) -> None:
        """Wait until exactly these were delivered and no segment is unfinished, and stop, as an operator does."""
        self.has(offsets, stream)

        def is_finished() -> bool:
            listed = run_json(self._stage.world.zk, "queries", "list", self._stage.group)
            return [row["lag"] for row in listed if row["query"] == self._name] == [0]

        eventually(is_finished, 30, f"{self._name} has no lag")
        stream.stop()
        assert self.offsets == offsets, summary(self.offsets)

    def die_before_the_commit(self) -> None:
        """Leave the checkpoint as a driver does that was killed after its last batch was delivered."""
        commits = self._stage.folder / self._name / "commits"
        last = max((path for path in commits.glob("[0-9]*")), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink()

    def fails(self, stream: StreamingQuery, *words: str) -> str:
        """Wait until a run ends with an error, without having delivered any record; the records that it calls lost.

        :param words: they are there.
        """
        before = self._expected
        try:
            eventually(lambda: not stream.isActive or self.offsets != before, 60, f"{self._name} delivers or fails")
            more = {number: offsets[len(before.get(number, [])) :] for number, offsets in self.offsets.items()}
            assert self.offsets == before, f"{self._name} has delivered {summary(more)} after {summary(before)}"
            reason = stream.exception()
        finally:
            stream.stop()
        assert reason is not None, f"{self._name} has ended without an error, with {summary(before)}"
        lost = re.search(r"has lost records: (.*?) \(failOnDataLoss=false", str(reason), re.DOTALL)
        assert lost is not None, reason
        tells(lost[1], *words)
        return lost[1]

    def fails_at_every_start(self, *words: str) -> str:
        """With any trigger, and again after a failure."""
        self.fails(self.start(), *words)
        return self.fails(self.start(AVAILABLE_NOW), *words)


def summary(offsets: Offsets) -> str:
    """Runs of consecutive offsets."""
    found = []
    for partition, numbers in sorted(offsets.items()):
        begins = [i for i, number in enumerate(numbers) if not i or number != numbers[i - 1] + 1]
        runs = [f"{numbers[begin]}-{numbers[end - 1]}" for begin, end in pairwise([*begins, len(numbers)])]
        found += [f"{partition}: {', '.join(runs)}"] if runs else []
    return "; ".join(found) or "nothing"


def tells(text: str, *words: str) -> None:
    for word in words:
        assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), f"{word!r} is not in: {text[:2000]}"


def span(*pairs: tuple[int, int]) -> list[int]:
    """The offsets from each first up to, not including, each next one."""
    return [offset for first, following in pairs for offset in range(first, following)]
