"""Kafka's brokers in memory, in place of `KafkaClient`, in a time that the test sets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from zk_group.consumer.logs.base import Fetch, LogError, OffsetAndTimestamp, Position
from zk_group.consumer.logs.kafka.client import END, OUT_OF_RANGE, BrokerStats, Columns, Signal
from zk_group.consumer.logs.kafka.requests import EARLIEST, NO_TOPIC, Described, Unanswered, refused
from zk_group.consumer.logs.kafka.source import KafkaLog
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

Place = tuple[str, int]

MB = 1 << 20
RECORD_OVERHEAD = 100
"""Arrow memory of a record besides its value, at most."""
STATS_S = 5.0
ROUND_BYTES = 20_000
"""The brokers' `fetch.max.bytes`."""


class Brokers:
    """Brokers, and what clients have done. Every topic has the id `id` and 20 partitions.

    :ivar lookup_wait_s: seconds for which a lookup of the servers is waited for.
    :ivar ends: place -> its end offset.  :ivar begins: its earliest offset.  :ivar markers: offsets without
        a record, of (topic, id, partition).
    :ivar ids: topic -> its id; empty while it does not exist.
    :ivar leaders: place -> the address of its leader; `a:1` by default.
    :ivar down: addresses that refuse connections.  :ivar refusing: those that refuse the credentials.
    :ivar servers: where the brokers are found; an error when empty.  :ivar looked: when they were looked up.
    :ivar is_mute: whether requests for topics fail.  :ivar denied: topics that may not be described.
    :ivar is_holding: whether they are not answered yet, except the first `answered` ones.
    :ivar signals: place -> what a client says of it behind the records that it has fetched.
    :ivar size: bytes of a record.  :ivar ahead: records that a client prefetches.
    :ivar is_unfair: whether each response begins with the same partitions, ten records each, until it is full.
    :ivar rewind: offsets by which the first response is before what was asked for.
    :ivar spoil: called when records have left a client's queue.
    :ivar asked: the places of each request for offsets.  :ivar described: the topics of each request for topics.
    :ivar fetched: records that clients have fetched.
    :ivar patched: undone at the end.
    """

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.patched = patched
        self.servers = "a:1"
        self.looked: list[float] = []
        self.ends: dict[Place, int] = {}
        self.begins: dict[Place, int] = {}
        self.markers: dict[tuple[str, str, int], set[int]] = {}
        self.ids: dict[str, str] = {}
        self.leaders: dict[Place, str] = {}
        self.down: set[str] = set()
        self.refusing: set[str] = set()
        self.denied: set[str] = set()
        self.is_mute = self.is_holding = self.is_unfair = False
        self.signals: dict[Place, Signal] = {}
        self.answered = 0
        self.lookup_wait_s = 60.0
        self.size = 100
        self.ahead = 100
        self.rewind = 0
        self.spoil: Callable[[], None] = lambda: None
        self.asked: list[set[Place]] = []
        self.described: list[set[str]] = []
        self.fetched = 0
        self.clients: list[Client] = []
        self.logs: list[KafkaLog] = []

    def client(self, servers: str, options: object, registry: object) -> Client:
        self.clients.append(Client(self, servers))
        return self.clients[-1]

    def find(self) -> str:
        self.looked.append(self.now)
        if not self.servers:
            raise LogError("ZooKeeper does not answer")
        return self.servers

    def log(self) -> KafkaLog:
        self.logs.append(KafkaLog(self.find, {}))
        return self.logs[-1]

    def leader(self, place: Place) -> str:
        return self.leaders.get(place, "a:1")

    def is_up(self, address: str) -> bool:
        return address not in self.down | self.refusing

    @property
    def addresses(self) -> list[str]:
        return sorted({"a:1", *self.leaders.values()})


class Answer:
    """A `Pending` whose results are those of the time of the request."""

    def __init__(self, brokers: Brokers, results: Mapping[object, object]) -> None:
        self._brokers = brokers
        self._results = results
        self._number = len(brokers.described)

    @property
    def is_done(self) -> bool:
        return not self._brokers.is_holding or self._number <= self._brokers.answered

    def wait(self, timeout_s: float) -> bool:
        return self.is_done

    def results(self) -> dict[object, object]:
        return dict(self._results)


class Client:
    """In place of `KafkaClient`: one queue, into which it fetches ahead. Like librdkafka it goes on in another topic of
    the same name, drops queued records of an unassigned partition, and reports the end of a partition once."""

    is_mute = is_accepted = has_registry = False
    failed = 0

    def __init__(self, brokers: Brokers, servers: str) -> None:
        self.response_bytes = ROUND_BYTES
        self.servers = servers
        self.brokers: list[BrokerStats] | None = None
        self.reasons: dict[str, str] = {}
        self.assigned: dict[Place, int] = {}
        self.is_reading = self.is_closed = False
        self._kafka = brokers
        self._queue: deque[tuple[Place, str, range] | Signal] = deque()
        self._unreported: set[Place] = set()
        self._answers_at = self._stats_at = 0.0

    def assign(self, starts: Mapping[Place, int]) -> None:
        assert not self.is_closed and not starts.keys() & self.assigned.keys(), "librdkafka refuses it"
        self.is_reading = True
        self._stats_at = self._stats_at or self._kafka.now + STATS_S
        begins, rewind = self._kafka.begins, self._kafka.rewind
        self.assigned |= {place: max(min(at, begins.get(place, 0)), at - rewind) for place, at in starts.items()}
        self._unreported |= starts.keys()

    def unassign(self, places: Iterable[Place]) -> None:
        gone = set(places)
        assert not self.is_closed and gone <= self.assigned.keys(), "librdkafka refuses it"
        self.assigned = {place: offset for place, offset in self.assigned.items() if place not in gone}
        self._queue = deque(item for item in self._queue if _place(item) not in gone)
        self._answers_at = self._kafka.now + 0.1  # records on their way, useless now, are returned first

    def consume(self, most: int) -> list[Columns | Signal]:
        assert not self.is_closed
        self._note_stats()
        while self._fetch():
            pass
        found: list[Columns | Signal] = []
        while self._queue and most > 0:
            item = self._queue.popleft()
            if isinstance(item, Signal):
                found.append(item)
                most -= 1
                continue
            place, topic_id, offsets = item
            if len(offsets) > most:
                self._queue.appendleft((place, topic_id, offsets[most:]))
            if columns := self._columns(place, topic_id, offsets[:most]):
                found.append(columns)
            most -= len(offsets)
        if found:
            self._kafka.spoil()
        return found

    def look_for_controller(self) -> None: ...

    def reports_again(self, place: Place) -> None:
        """The next response has another end of the partition, or an error."""
        self._unreported.add(place)

    def describe(self, topics: Iterable[str]) -> Answer:
        names = set(topics)
        self._kafka.described.append(names)
        return Answer(self._kafka, {name: self._described(name) for name in names})

    def offsets(self, requested: Mapping[Place, int]) -> Answer:
        self._kafka.asked.append(set(requested))
        return Answer(self._kafka, {place: self._offset(place, what) for place, what in requested.items()})

    @property
    def refusal(self) -> str:
        return "Invalid password" if self._kafka.refusing else ""

    def unavailable(self, address: str) -> LogError:
        return refused(address, "Invalid password") if address in self._kafka.refusing else LogError(f"{address} down")

    def close(self) -> None:
        self.is_closed = True

    # ---- internals

    def _described(self, name: str) -> Described | LogError:
        if self._kafka.is_mute or not any(map(self._kafka.is_up, self._kafka.addresses)):
            return Unanswered("no answer")
        if name in self._kafka.denied:
            return LogError("not authorized")
        topic_id = self._kafka.ids.get(name, "id")
        return Described(topic_id, frozenset(range(20))) if topic_id else NO_TOPIC

    def _offset(self, place: Place, what: int) -> OffsetAndTimestamp | LogError:
        if not self._kafka.is_up(self._kafka.leader(place)):
            return LogError("no leader")
        return OffsetAndTimestamp((self._kafka.begins if what == EARLIEST else self._kafka.ends).get(place, 0), -1)

    def _note_stats(self) -> None:
        if self._kafka.now >= self._stats_at:
            self._stats_at = self._kafka.now + STATS_S
            self.brokers = [self._stats(address) for address in self._kafka.addresses]

    def _stats(self, address: str) -> BrokerStats:
        leads = frozenset(place for place in self.assigned if self._kafka.leader(place) == address)
        return BrokerStats(address, self._kafka.is_up(address), 0.0, leads)

    def _fetch(self) -> int:
        """One response; the number of its records."""
        before, most, room = self._kafka.fetched, 5, self._kafka.ahead
        places = list(self.assigned)
        if self._kafka.is_unfair:
            is_due = self._queued() < room and self._kafka.now >= self._answers_at
            most, room, places = 10, room if is_due else 0, sorted(places)
        for place in places:
            if self._kafka.is_up(self._kafka.leader(place)) and self._kafka.ids.get(place[0], "id"):
                in_use = self._kafka.fetched - before if self._kafka.is_unfair else self._queued()
                self._fetch_partition(place, most if in_use < room else 0)
        return self._kafka.fetched - before

    def _fetch_partition(self, place: Place, most: int) -> None:
        first = self.assigned[place]
        begin, end = self._kafka.begins.get(place, 0), self._kafka.ends.get(place, 0)
        if first < end and first >= begin:
            if most:
                self.assigned[place] = min(end, first + most)
                offsets = range(first, self.assigned[place])
                self._queue.append((place, self._kafka.ids.get(place[0], "id"), offsets))
                self._kafka.fetched += len(offsets)
                self._unreported.add(place)
        elif place in self._unreported:
            self._unreported.remove(place)
            kind = END if begin <= first <= end else OUT_OF_RANGE
            self._queue.append(self._kafka.signals.get(place) or Signal(kind, *place, first, ""))

    def _queued(self) -> int:
        return sum(len(item[2]) for item in self._queue if not isinstance(item, Signal))

    def _columns(self, place: Place, topic_id: str, offsets: range) -> Columns | None:
        markers = self._kafka.markers.get((place[0], topic_id, place[1]), ())
        there = [offset for offset in offsets if offset not in markers]
        count = len(there)
        if not there:
            return None
        values: list[bytes | None] = [f"{topic_id} {offset}".encode().ljust(self._kafka.size) for offset in there]
        return columns([place[0]] * count, [place[1]] * count, there, values)


def columns(
    topics: list[str], partitions: list[int], offsets: list[int], values: list[bytes | None] | None = None
) -> Columns:
    """Records as they come from librdkafka, without keys and headers."""
    count = len(topics)
    numbers = np.array(partitions, np.int32), np.array(offsets, np.int64)
    stamps = np.array([(1, 5)] * count)
    return Columns(topics, *numbers, [None] * count, values or [b"v"] * count, stamps, [None] * count)


def _place(item: tuple[Place, str, range] | Signal) -> Place:
    return (item.topic, item.partition) if isinstance(item, Signal) else item[0]


class Reader:
    """The reader of a source. It checks what is true of every poll: each partition's records are the next ones, of the
    topic with its id; a partition has one fetch, and nothing was released; the bytes are within the limit."""

    def __init__(self, kafka: Brokers) -> None:
        self.kafka = kafka
        self.log = kafka.log()
        self.source = self.log.source()
        self.positions: dict[TopicPartition, Position] = {}
        self.most = 0

    def begin(self, starts: Mapping[TopicPartition, Position]) -> None:
        self.positions |= starts
        self.source.assign(starts)

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Also of some that it does not read."""
        keys = list(partitions)
        for key in keys:
            self.positions.pop(key, None)
        self.source.release(keys)

    def poll(
        self, max_bytes: int = MB, wanted: Collection[TopicPartition] | None = None, passes_s: float = 0.02
    ) -> dict[TopicPartition, list[int]]:
        """Partition -> the offsets of its returned records."""
        fetches = self.source.poll(max_bytes, wanted)
        found = {fetch.partition: self._checked(fetch) for fetch in fetches}
        assert len(found) == len(fetches)
        assert sum(fetch.nbytes for fetch in fetches) <= max(0, max_bytes) + self.kafka.size + RECORD_OVERHEAD
        self.most = max(self.most, self.source._queue.size)
        self.kafka.now += passes_s
        return {partition: offsets for partition, offsets in found.items() if offsets}

    def _checked(self, fetch: Fetch) -> list[int]:
        key, before = fetch.partition, self.positions[fetch.partition]
        assert (fetch.topic_id, fetch.first) == before
        self.positions[key] = before._replace(offset=fetch.next)
        rows = [row for batch in fetch.batches for row in batch.to_pylist()]
        markers = self.kafka.markers.get((key.topic, before.topic_id, key.partition), ())
        offsets = [row["offset"] for row in rows]
        assert offsets == [offset for offset in range(fetch.first, fetch.next) if offset not in markers]
        assert [row["value"].split() for row in rows] == [[before.topic_id.encode(), b"%d" % at] for at in offsets]
        return offsets

    def polls(self, seconds: float, passes_s: float = 0.02) -> int:
        """Polls for some time; the number of records."""
        until, count = self.kafka.now + seconds, 0
        while self.kafka.now < until:
            count += sum(map(len, self.poll(passes_s=passes_s).values()))
        return count


@contextmanager
def modelled_kafka() -> Iterator[Brokers]:
    """Brokers that every `KafkaLog` reads meanwhile, ten records a look."""
    with pytest.MonkeyPatch.context() as patched:
        kafka = Brokers(patched)
        for module in ("connection", "source", "topics"):
            patched.setattr(f"zk_group.consumer.logs.kafka.{module}.time", SimpleNamespace(monotonic=lambda: kafka.now))
        patched.setattr("zk_group.consumer.logs.kafka.connection.KafkaClient", kafka.client)
        # Time of the test passes without that of the lookup's thread.
        patched.setattr("zk_group.consumer.logs.kafka.connection.wait", lambda some, _: wait(some, kafka.lookup_wait_s))
        patched.setattr("zk_group.consumer.logs.kafka.source.POLL_RECORDS", 10)
        yield kafka
        for log in kafka.logs:
            log.close()
