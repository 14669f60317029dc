"""Kafka as a log: partitions are fetched by librdkafka ahead of what is asked for, and handed out once they are sure.

librdkafka fetches whatever is assigned, in its own threads, into one queue. A fetch looks into that queue, sorts what
has come to its partitions, and hands out what belongs to the one that it is about, from exactly the offset that is
asked for: when that is not where the last fetch ended, the partition is assigned anew from there. Nobody says when a
partition is given up; one that is asked for no more while others are is unassigned.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from coordinator.zk.errors import CoordinatorError

from .base import Fetched, Log, Place
from .errors import LogError, OffsetOutOfRange
from .kafka import (
    AWAY,
    CORRUPT,
    CREDENTIALS,
    DENIED,
    EARLIEST,
    END,
    LATEST,
    OUT_OF_RANGE,
    UNKNOWN,
    KafkaClient,
    Pending,
    Signal,
)
from .kafka_batches import Columns, runs
from .kafka_offsets import Offsets
from .kafka_partition import Partition
from .kafka_topics import KnownTopic, Topics

log = logging.getLogger(__name__)

RECORDS_A_LOOK = 500
"""See `KafkaClient.consume`."""

BUFFER_BYTES = 16 << 20
"""Arrow memory of what has been taken out of librdkafka's queue (64 MB) and waits for its partition to be asked for."""

ANSWER_S = 0.005
"""A fetch waits so long for the brokers to confirm a topic: on a near network they do in 1 to 2 ms."""

LOOKED_S = 0.0005
RETRY_S = 1.0
SLOW_RETRY_S = 10.0
CREDENTIALS_RETRY_S = 30.0
"""Kafka slows down and counts whoever comes with wrong credentials: that is no use to try often."""

FIND_AGAIN_S = 10.0


class _OutOfRange(NamedTuple):
    """An offset that the broker does not have, until the brokers have said what they do have, of which topic."""

    look: int
    earliest: Pending[tuple[str, int], int | LogError]
    latest: Pending[tuple[str, int], int | LogError]


class KafkaLog(Log):
    """Reads Kafka. Its own threads are librdkafka's.

    :param find: the servers to begin with, `host:port,host:port`; called again while none of them answers.
    :param options: librdkafka's; see `kafka_options`.
    :raises UsageError: when librdkafka does not take them.
    """

    knows_topics = True

    def __init__(self, find: Callable[[], str], options: Mapping[str, str]) -> None:
        self._find = find
        self._options = options
        self._lock = threading.Lock()
        self._client: KafkaClient | None = None
        self._topics: Topics
        self._servers = ""
        self._parts: dict[tuple[str, int], Partition] = {}
        self._ranges: dict[tuple[str, int], _OutOfRange] = {}
        self._newest: dict[str, int] = {}
        self._fetches = self._looks = self._size = 0
        self._empty_at = self._find_at = float("-inf")
        self._away_since: float | None = None
        self._refused: tuple[float, LogError] | None = None
        self._closed = False
        self._singles, self._many = (_Questions(self._questioned) for _ in range(2))
        self.outages = 0
        pa.array(
            [b""], pa.binary()
        )  # the first one loads pandas, where it is installed: not when partitions wait for it
        self._open(time.monotonic())

    # ---- offsets

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return self._singles.one(topic, topic_id, partition, EARLIEST)

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        """As `Log` says; with transactions, the offset up to which all of them have ended."""
        return self._singles.one(topic, topic_id, partition, LATEST)

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        return self._singles.one(topic, topic_id, partition, max(0, timestamp_ms))

    def latest_of(self, places: Iterable[Place]) -> dict[Place, int | CoordinatorError]:
        """See `AnswersForMany`: one request for each broker that leads some."""
        wanted = list(places)
        try:
            return dict(self._many.ends(wanted))
        except CoordinatorError as error:
            return dict.fromkeys(wanted, error)

    # ---- records

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        """As `Log` says. What has no record (markers of transactions, what was aborted or compacted) is gone over."""
        with self._lock:
            now = time.monotonic()
            self._fetches += 1
            client = self._usable(now)
            if client is None:
                return Fetched([], offset)  # waits, and that is said
            known = self._topics.of(topic, topic_id)
            part = self._asked(client, known, partition, offset, now)
            if not part.has(known.verified):
                self._look(client, part, known, max_bytes, now)
            if part.has(known.verified):
                self._size -= part.size
                try:
                    return part.take(max_bytes, max_records, known.verified)
                finally:
                    self._size += part.size
            if known.missing is not None:
                raise known.missing
            if part.problem is not None and part.newest < 0:  # what came before it goes out first
                raise part.problem
            return Fetched([], offset)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._parts.clear()
            if self._client is not None:
                self._client.close()
                self._client = None

    # ---- the client

    def _open(self, now: float) -> None:
        """Make the client, if it is known where the brokers are."""
        try:
            servers = self._find()
        except CoordinatorError as error:
            self._note_away(str(error), now)
            return
        finally:
            self._find_at = now + FIND_AGAIN_S
        if self._client is not None:
            if servers == self._servers:
                return
            self._client.close()
        self._client, self._servers = KafkaClient(servers, self._options), servers
        self._topics = Topics(self._client)
        self._ranges.clear()
        for part in self._parts.values():
            part.drop_after(-1)
            part.is_assigned = False
        self._size = 0

    def _usable(self, now: float) -> KafkaClient | None:
        """The client; None while nobody knows where the brokers are."""
        if self._closed:
            raise LogError("this log was closed")
        if self._refused is not None:
            if now < self._refused[0]:
                raise self._refused[1]
            self._refused = None
            self._open(now)
        if (self._client is None or self._away_since is not None) and now >= self._find_at:
            self._open(now)
        return self._client

    def _questioned(self) -> KafkaClient:
        with self._lock:
            client = self._usable(time.monotonic())
            if client is None:
                raise LogError("no broker of Kafka is known yet")
            self._hear_events(client, time.monotonic(), is_answering=True)  # that questions fail is no outage
            return client

    def _hear_events(self, client: KafkaClient, now: float, is_answering: bool) -> None:
        for event in client.events():
            if event.kind == AWAY and not is_answering:  # else it was, and that has been said
                self._note_away(event.text, now)
            elif event.kind == UNKNOWN:
                self._topics.want()
            elif event.kind == CREDENTIALS:
                self._refuse(event.text, now)

    def _refuse(self, text: str, now: float) -> None:
        """Wrong credentials: the client ends, and with it its tries."""
        problem = LogError(
            f"Kafka at {self._servers} refuses the credentials: {text}; set security.protocol, sasl.mechanism, "
            "sasl.username and sasl.password, or ssl.*, of the options for Kafka as the brokers want them"
        )
        self._refused = (now + CREDENTIALS_RETRY_S, problem)
        if self._client is not None:
            self._client.close()
            self._client = None
        raise problem

    def _note_away(self, text: str, now: float) -> None:
        if self._away_since is None:
            self._away_since = now
            self.outages += 1
            log.warning("kafka is away, waiting: servers=%s outages=%d reason=%s", self._servers, self.outages, text)

    def _note_back(self) -> None:
        """By an answer: records may have come before the brokers went, and been waiting in librdkafka since."""
        if self._away_since is not None and self._topics.answered >= self._away_since:
            away_s, self._away_since = time.monotonic() - self._away_since, None
            log.info("kafka is back: servers=%s away_s=%.1f", self._servers, away_s)

    # ---- partitions

    def _asked(self, client: KafkaClient, known: KnownTopic, number: int, offset: int, now: float) -> Partition:
        """The partition, which goes on at `offset`, and is assigned unless something stands against it."""
        key = (known.name, number)
        part = self._parts.get(key)
        if part is None or part.topic_id != known.id:
            self._drop(client, part)
            part = self._parts[key] = Partition(known.name, number, known.id, offset)
        elif part.position != offset:
            self._unassign(client, part)
            self._size -= part.size
            part.restart(offset)
            part.problem = None
        part.asked = self._fetches
        if part.problem is not None and now >= part.retry_at:
            part.problem = None
        may_be = known.missing is None and part.problem is None and key not in self._ranges
        if may_be and not part.is_assigned:
            client.assign(part.topic, part.number, part.tail)
            part.is_assigned = known.is_wanted = True
        return part

    def _unassign(self, client: KafkaClient, part: Partition) -> None:
        self._ranges.pop((part.topic, part.number), None)
        if part.is_assigned:
            client.unassign(part.topic, part.number)
            part.is_assigned = False

    def _drop(self, client: KafkaClient, part: Partition | None) -> None:
        if part is not None:
            self._unassign(client, part)
            self._size -= part.size
            self._parts.pop((part.topic, part.number), None)

    def _set_aside(self, client: KafkaClient, part: Partition, problem: LogError, retry_at: float) -> None:
        """Fetch a partition no more until `retry_at`; what came before goes out first."""
        self._unassign(client, part)
        part.problem, part.retry_at = problem, retry_at

    def _forget_unasked(self, client: KafkaClient, fetches: int) -> None:
        """Unassign what was not asked for in the last so many fetches."""
        for part in [part for part in self._parts.values() if self._fetches - part.asked > fetches]:
            self._drop(client, part)
        held = {part.topic for part in self._parts.values()}
        self._topics.forget(set(self._newest) - held)
        self._newest = {topic: look for topic, look in self._newest.items() if topic in held}

    # ---- looking

    def _look(self, client: KafkaClient, part: Partition, known: KnownTopic, max_bytes: int, now: float) -> None:
        """Take in what has come, and have it confirmed."""
        self._drain(client, part, max_bytes, now)
        self._apply(client, self._topics.hear(now), now)
        self._topics.ask(self._newest, self._looks, now)
        if part.newest > known.verified or (part.topic, part.number) in self._ranges:
            self._apply(client, self._topics.hear(now, ANSWER_S), now)
        self._judge_range(client, part, known, now)

    def _drain(self, client: KafkaClient, part: Partition, max_bytes: int, now: float) -> None:
        if now - self._empty_at < LOOKED_S:
            return  # so that a thousand idle partitions do not ask a thousand times
        is_full = self._size >= BUFFER_BYTES
        if is_full or self._fetches % 256 == 0:
            self._forget_unasked(client, 3 * len(self._parts) if is_full else 10 * len(self._parts) + 100)
        while part.size < max_bytes and self._size < BUFFER_BYTES:
            try:
                if not self._take_in(client, now):
                    self._empty_at = now
                    return
            except BaseException:
                # What is out of librdkafka's queue and not in a partition is gone: ask for it again.
                for part in self._parts.values() if self._client is client else ():
                    self._unassign(client, part)
                raise

    def _take_in(self, client: KafkaClient, now: float) -> bool:
        """One look at what has come; whether something has."""
        pieces = client.consume(RECORDS_A_LOOK)
        self._hear_events(client, now, is_answering=bool(pieces))
        if not pieces:
            return False
        self._looks += 1
        for piece in pieces:
            if isinstance(piece, Columns):
                self._sort(piece)
            else:
                self._heed(client, piece, now)
        return True

    def _sort(self, columns: Columns) -> None:
        for run in runs(columns):
            part = self._parts.get((run.topic, run.partition))
            if part is None or not part.is_assigned:
                continue  # of one that was given up
            self._size -= part.size
            part.add(run, self._looks)
            self._size += part.size
            self._newest[run.topic] = self._looks

    def _heed(self, client: KafkaClient, signal: Signal, now: float) -> None:
        part = self._parts.get((signal.topic, signal.partition))
        if signal.kind == UNKNOWN:
            self._topics.want()
        if part is None or not part.is_assigned:
            return
        if signal.kind == END:
            part.end_at(signal.offset, self._looks)
            self._newest[part.topic] = self._looks
        elif signal.kind == OUT_OF_RANGE:
            self._unassign(client, part)
            place = (part.topic, part.number)
            earliest, latest = client.offsets({place: EARLIEST}), client.offsets({place: LATEST})
            self._ranges[place] = _OutOfRange(self._looks, earliest, latest)
            self._newest[part.topic] = self._looks
        elif signal.kind == CORRUPT:
            text = f"the records of {part} from offset {signal.offset} on are damaged, asked for again: {signal.text}"
            self._set_aside(client, part, LogError(text), now + SLOW_RETRY_S)
        elif signal.kind == DENIED:
            text = f"Kafka does not let this user read topic {part.topic}: {signal.text}"
            self._set_aside(client, part, LogError(text), now + SLOW_RETRY_S)

    def _apply(self, client: KafkaClient, heard: Iterable[KnownTopic], now: float) -> None:
        """What the brokers have said of topics, for their partitions."""
        self._note_back()
        for known in heard:
            for part in [part for part in self._parts.values() if part.topic == known.name]:
                if known.missing is not None:
                    self._unassign(client, part)
                    self._size -= part.size
                    part.drop_after(known.verified)
                    self._size += part.size
                elif known.partitions is not None and part.number not in known.partitions:
                    text = (
                        f"ZooKeeper has a partition {part}, and Kafka has {len(known.partitions)} of this topic, and "
                        "not this one; the others are fetched"
                    )
                    self._set_aside(client, part, LogError(text), now + RETRY_S)

    def _judge_range(self, client: KafkaClient, part: Partition, known: KnownTopic, now: float) -> None:
        """An offset is out of range when the topic is still the same; of another one it means nothing."""
        place = (part.topic, part.number)
        asked = self._ranges.get(place)
        if asked is None or not (asked.earliest.is_done and asked.latest.is_done):
            return
        if known.missing is not None:
            del self._ranges[place]
        elif known.verified >= asked.look:
            del self._ranges[place]
            first, end = asked.earliest.results()[place], asked.latest.results()[place]
            problem = LogError(f"offset {part.tail} of {part} is out of range in Kafka")
            if isinstance(first, int) and isinstance(end, int) and not first <= part.tail <= end:
                problem = OffsetOutOfRange(
                    f"offset {part.tail} of {part} is out of range: Kafka holds {first} to {end}"
                )
            self._set_aside(client, part, problem, now + RETRY_S)


class _Questions:
    """`Offsets` for several threads, and for whichever client there is."""

    def __init__(self, client: Callable[[], KafkaClient]) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._asked: tuple[KafkaClient, Offsets] | None = None

    def one(self, topic: str, topic_id: str, partition: int, what: int) -> int:
        with self._lock:
            try:
                return self._offsets().one(topic, topic_id, partition, what)
            except LogError:
                self._client()  # raises what is wrong with the connection, as its credentials
                raise

    def ends(self, places: Iterable[Place]) -> Mapping[Place, int | LogError]:
        with self._lock:
            return self._offsets().ends(places)

    def _offsets(self) -> Offsets:
        client = self._client()
        if self._asked is None or self._asked[0] is not client:
            self._asked = (client, Offsets(client))
        return self._asked[1]
