"""Kafka as a log: partitions are fetched by librdkafka ahead of what is asked for, and handed out once they are sure.

librdkafka fetches whatever is assigned, in its own threads, into one queue. A fetch looks into that queue, sorts what
has come to its partitions, and hands out what belongs to the one that it is about, from exactly the offset that is
asked for: when that is not where the last fetch ended, the partition is assigned anew from there. One that is given up
is forgotten (`released`). One that is asked for no more while others are, as it is paused, is unassigned. What has come
of it is kept until its memory is needed: an application that is slow asks again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from coordinator.zk.errors import CoordinatorError

from .base import Fetched, Log, OffsetAndTimestamp, Place
from .errors import LogError
from .kafka import (
    AWAY,
    CORRUPT,
    CREDENTIALS,
    DENIED,
    EARLIEST,
    END,
    LATEST,
    OTHER,
    OUT_OF_RANGE,
    UNKNOWN,
    KafkaClient,
    Signal,
    refused,
    unreadable,
)
from .kafka_batches import Columns, runs
from .kafka_finder import LOOKUP_S, Finder
from .kafka_offsets import OutOfRange, Questions
from .kafka_outage import Outage
from .kafka_partition import Partition, Room
from .kafka_room import Starved, before, make_room, pack
from .kafka_topics import KnownTopic, Topics

log = logging.getLogger(__name__)

RECORDS_A_LOOK = 1000
"""See `KafkaClient.consume`."""

BUFFER_BYTES = 32 << 20
"""Arrow memory of what has been taken out of librdkafka's queue (16 MB) and waits for its partition to be asked for.

It is the larger of the two, because what is in the queue is lost, and fetched again, when a partition is unassigned."""

UNASKED_S = 60.0
"""A partition that was not asked for in so long a time in which others were is fetched no more."""

AT_ONCE_S = 1.0
"""A pause between two fetches counts for so long at most: then it was the application that asked for nothing."""

LISTEN_S = 1.0
"""librdkafka's queue is looked into so often even where nothing is needed of it: events stand in it, too."""

ANSWER_S = 0.005
"""A fetch waits so long for the brokers to confirm a topic: on a near network they do in 1 to 2 ms."""

LOOKED_S = 0.0005
RETRY_S = 1.0
SLOW_RETRY_S = 10.0
CREDENTIALS_RETRY_S = 30.0
"""Kafka slows down and counts whoever comes with wrong credentials: that is no use to try often."""


class KafkaLog(Log):
    """Reads Kafka. Its own threads are librdkafka's.

    :param find: the servers to begin with, `host:port,host:port`; called again, beside, while none of them answers.
    :param options: librdkafka's; see `kafka_options`.
    :raises UsageError: when librdkafka does not take them.
    """

    knows_topics = True

    def __init__(self, find: Callable[[], str], options: Mapping[str, str]) -> None:
        self._finder = Finder(find)
        self._options = options
        self._lock = threading.Lock()
        self._client: KafkaClient | None = None
        self._topics: Topics
        self._servers = ""
        self._parts: dict[tuple[str, int], Partition] = {}
        self._ranges: dict[tuple[str, int], OutOfRange] = {}
        self._newest: dict[str, int] = {}
        self._room = Room()
        self._starved = Starved(self._room, BUFFER_BYTES)
        self._looks = 0
        self._busy_s = 0.0
        self._fetched_at = self._looked_at = self._sweep_at = self._empty_at = float("-inf")
        self._outage = Outage()
        self._refused: tuple[float, LogError] | None = None
        self._closed = False
        self._singles, self._many = (Questions(self._questioned) for _ in range(2))
        pa.array([b""], pa.binary())  # the first one loads pandas, if it is there: not when partitions wait for it
        self._open(time.monotonic(), None)

    @property
    def outages(self) -> int:
        """How often no broker was there any more."""
        return self._outage.count

    # ---- offsets

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return self._singles.one(topic, topic_id, partition, EARLIEST)

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        """As `Log` says; with transactions, the offset up to which all of them have ended."""
        return self._singles.one(topic, topic_id, partition, LATEST)

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        return self._singles.one(topic, topic_id, partition, max(0, timestamp_ms))

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return self._singles.record_of_time(topic, topic_id, partition, max(0, timestamp_ms))

    def latest_of(self, places: Iterable[Place]) -> dict[Place, int | CoordinatorError]:
        """See `AnswersForMany`: one request for each broker that leads some."""
        return self._many.ends(places)

    # ---- records

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        """As `Log` says. What has no record (markers of transactions, what was aborted or compacted) is gone over."""
        with self._lock:
            now = time.monotonic()
            self._busy_s += min(AT_ONCE_S, now - self._fetched_at)
            self._fetched_at = now
            client = self._usable(now)
            if client is None:
                return Fetched([], offset)  # waits, and that is said
            self._starved.inquire(client, self._busy_s)
            known = self._topics.of(topic, topic_id)
            part = self._asked(client, known, partition, offset, now)
            if not part.has(known.verified):
                self._look(client, part, known, max_bytes, now)
            if part.newest >= 0 and now - self._looked_at >= LISTEN_S:
                is_full = self._room.size >= BUFFER_BYTES  # then no more comes in than goes out
                self._take_in(client, now, int(part.has(known.verified)) if is_full else RECORDS_A_LOOK)
                self._inquire(client, part, known, now)
            if part.has(known.verified):
                self._starved.forget(part)
                return part.take(max_bytes, max_records, known.verified)
            if known.missing is not None:
                raise known.missing
            if known.unconfirmed is not None and self._outage.since is None:
                self._open(now)  # they may have gone: that is said behind what there may be no room for
                raise known.unconfirmed
            if part.problem is not None and part.newest < 0:  # what came before it goes out first
                raise part.problem
            return Fetched([], offset)

    def released(self, topic: str, partition: int) -> None:
        with self._lock:
            if self._client is not None:
                self._drop(self._client, self._parts.get((topic, partition)))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._parts.clear()
            self._end_client()

    # ---- the client

    def _open(self, now: float, wait_s: float | None = LOOKUP_S) -> None:
        """Make the client, if it is known where the brokers are."""
        try:
            servers = self._finder.found(now, wait_s)
        except CoordinatorError as error:
            if self._client is None:
                self._outage.begin(self._servers, str(error), now)
            return
        if servers is None or (self._client is not None and servers == self._servers):
            return
        self._end_client()
        self._client, self._servers = KafkaClient(servers, self._options), servers
        self._topics = Topics(self._client)
        self._starved = Starved(self._room, BUFFER_BYTES)
        self._ranges.clear()
        for part in self._parts.values():
            part.drop_after(-1)
            part.is_assigned = False

    def _end_client(self) -> None:
        """It is used no more, though it cannot be closed, and though no other can be made."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _usable(self, now: float) -> KafkaClient | None:
        """The client; None while nobody knows where the brokers are."""
        if self._closed:
            raise LogError("this log was closed")
        if self._refused is not None:
            if now < self._refused[0]:
                raise self._refused[1]
            self._refused = None
            self._finder.at_once()
        if self._client is None or self._outage.since is not None:
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
            if event.kind == AWAY and not is_answering:
                self._outage.begin(self._servers, event.text, now)
                self._topics.want()
            elif event.kind == AWAY:
                self._outage.suspect(event.text, now)
                self._topics.want()  # the answer tells
            elif event.kind == UNKNOWN:
                self._topics.want()
            elif event.kind == OTHER:
                self._outage.trouble(self._servers, event.text, now)
            elif event.kind == CREDENTIALS:
                self._refuse(event.text, now)

    def _refuse(self, text: str, now: float) -> None:
        """Wrong credentials, of us or of a broker: the client ends, and with it its tries."""
        problem = refused(self._servers, text)
        self._refused = (now + CREDENTIALS_RETRY_S, problem)
        self._end_client()
        raise problem

    # ---- partitions

    def _asked(self, client: KafkaClient, known: KnownTopic, number: int, offset: int, now: float) -> Partition:
        """The partition, which goes on at `offset`, and is assigned unless something stands against it."""
        key = (known.name, number)
        part = self._parts.get(key)
        if part is None or part.topic_id != known.id:
            self._drop(client, part)
            part = self._parts[key] = Partition(known.name, number, known.id, offset, self._room)
        elif part.position != offset:
            self._unassign(client, part)
            part.restart(offset)
            part.problem = None
        part.asked = self._busy_s
        if part.problem is not None and now >= part.retry_at:
            part.problem = None
        may_be = known.missing is None and part.problem is None and key not in self._ranges
        if may_be and not part.is_assigned and part.newest < 0:  # else what was kept goes out first
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
            part.drop_after(-1)
            self._starved.forget(part)
            self._parts.pop((part.topic, part.number), None)

    def _set_aside(self, client: KafkaClient, part: Partition, problem: LogError, retry_at: float) -> None:
        """Fetch a partition no more until `retry_at`; what came before goes out first."""
        self._unassign(client, part)
        self._starved.forget(part)
        part.problem, part.retry_at = problem, retry_at

    def _keep(self, client: KafkaClient, part: Partition) -> None:
        """Fetch a partition no more until all is asked for that has come of it."""
        if part.is_assigned:
            self._unassign(client, part)
            part.pack()

    def _sweep(self, client: KafkaClient, now: float) -> None:
        """Fetch no more what was not asked for in a while; forget that of which nothing waits, or in want of room."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + AT_ONCE_S
        for part in [part for part in self._parts.values() if self._busy_s - part.asked > UNASKED_S]:
            self._keep(client, part)
            is_needed = self._room.size >= BUFFER_BYTES // 2
            if part.newest < 0 or is_needed or not self._topics.has(part.topic, part.topic_id):
                self._drop(client, part)
        held = {part.topic for part in self._parts.values()}
        self._topics.keep(held)
        self._newest = {topic: look for topic, look in self._newest.items() if topic in held}

    # ---- looking

    def _look(self, client: KafkaClient, part: Partition, known: KnownTopic, max_bytes: int, now: float) -> None:
        """Take in what has come, and have it confirmed."""
        self._drain(client, part, max_bytes, now)
        if part.is_assigned and part.newest < 0:
            self._look_past(client, part, now)
        self._inquire(client, part, known, now)
        self._judge_range(client, part, known, now)

    def _inquire(self, client: KafkaClient, part: Partition, known: KnownTopic, now: float) -> None:
        """Ask the brokers of topics, and hear what they say of them, and so that they are there."""
        self._apply(client, self._topics.hear(now), now)
        self._topics.ask(self._newest, self._looks, now)
        if part.newest > known.verified or (part.topic, part.number) in self._ranges:
            self._apply(client, self._topics.hear(now, ANSWER_S), now)
        self._outage.judge(self._servers, self._topics.answered, now)

    def _drain(self, client: KafkaClient, part: Partition, max_bytes: int, now: float) -> None:
        if now - self._empty_at < LOOKED_S:
            return  # so that a thousand idle partitions do not ask a thousand times
        self._sweep(client, now)
        while part.size < max_bytes and self._room.size < BUFFER_BYTES:
            if not self._take_in(client, now, RECORDS_A_LOOK):
                self._empty_at = now
                return
            if part.is_at_end:
                return  # it seldom has some: all that is there of others is not taken in for that

    def _look_past(self, client: KafkaClient, part: Partition, now: float) -> None:
        """Get the records of a partition that gets none: those that come before it give way, if they must."""
        since = self._starved.note(part, self._busy_s)
        while since is not None and part.newest < 0 and part.is_assigned:
            for other in before(self._parts.values(), part, since):
                self._keep(client, other)
            for other in make_room(self._parts.values(), self._room, BUFFER_BYTES):
                self._drop(client, other)
            if not self._take_in(client, now, RECORDS_A_LOOK):
                return

    def _take_in(self, client: KafkaClient, now: float, most: int) -> bool:
        """One look at what has come; whether something has."""
        self._looked_at = now
        try:
            pieces = client.consume(most)
            self._hear_events(client, now, is_answering=bool(pieces))
            if not pieces:
                return False
            self._looks += 1
            for piece in pieces:
                if isinstance(piece, Columns):
                    self._sort(piece)
                else:
                    self._heed(client, piece, now)
            pack(self._parts.values(), self._room, BUFFER_BYTES)
            return True
        except BaseException:
            # What is out of librdkafka's queue and not in a partition is gone: the next client is asked for it again.
            if self._client is client:
                self._finder.at_once()
                self._end_client()
            raise

    def _sort(self, columns: Columns) -> None:
        for run in runs(columns):
            part = self._parts.get((run.topic, run.partition))
            if part is None or not part.is_assigned:
                continue  # of one that was given up
            part.add(run, self._looks)
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
            self._ranges[place] = OutOfRange(self._looks, part.tail, earliest, latest)
            self._newest[part.topic] = self._looks
        elif signal.kind in (CORRUPT, DENIED):
            self._set_aside(client, part, unreadable(signal), now + SLOW_RETRY_S)
        elif signal.kind != UNKNOWN:  # librdkafka tries again by itself
            part.problem, part.retry_at = unreadable(signal), now + SLOW_RETRY_S

    def _apply(self, client: KafkaClient, heard: Iterable[KnownTopic], now: float) -> None:
        """What the brokers have said of topics, for their partitions."""
        for known in heard:
            for part in [p for p in self._parts.values() if (p.topic, p.topic_id) == (known.name, known.id)]:
                if known.missing is not None:
                    self._unassign(client, part)
                    part.drop_after(known.verified)
                elif (problem := known.lacks(part.number)) is not None:
                    self._set_aside(client, part, problem, now + RETRY_S)

    def _judge_range(self, client: KafkaClient, part: Partition, known: KnownTopic, now: float) -> None:
        """An offset is out of range when the topic is still the same; of another one it means nothing."""
        place = (part.topic, part.number)
        asked = self._ranges.get(place)
        if asked is None or not asked.is_done:
            return
        if known.missing is not None or part.tail != asked.offset:  # what came before that has given way
            del self._ranges[place]
        elif known.verified >= asked.look:
            del self._ranges[place]
            self._set_aside(client, part, asked.problem(place), now + RETRY_S)
