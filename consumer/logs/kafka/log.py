"""Kafka as a log: librdkafka prefetches partitions, and records are returned once their topic id is confirmed.

librdkafka prefetches all assigned partitions, in its own threads, into one queue. A fetch polls that queue, sorts the
records by partition, and returns those of its own, from exactly the requested offset: if that is not where the last
fetch ended, the partition is reassigned from there. A revoked partition is forgotten (`released`). One that is not
fetched while others are, as it is paused, is unassigned; its records stay buffered until their memory is needed: a
slow application fetches them later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from coordinator.zk.errors import CoordinatorError

from ..base import Fetched, Log, OffsetAndTimestamp, TopicIdPartition
from ..errors import LogError
from .arrow_batches import Columns, runs
from .availability import Outage
from .broker_lookup import LOOKUP_S, BrokerLookup
from .client import (
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
from .fairness import StarvationDetector, competing, make_room, pack
from .offsets import OutOfRange, Questions
from .partition import BufferUsage, Partition
from .topics import KnownTopic, TopicLookup

log = logging.getLogger(__name__)

POLL_RECORDS = 1000
"""See `KafkaClient.consume`."""

BUFFER_BYTES = 32 << 20
"""Arrow memory of records polled from librdkafka's queue (16 MB) that wait for a fetch of their partition.

Larger than the queue, because unassigning a partition drops its records in the queue, which are requested again."""

IDLE_TIMEOUT_S = 60.0
"""Seconds with fetches of others after which an unfetched partition is unassigned."""

MAX_GAP_S = 1.0
"""Maximum length of a gap between two fetches that counts: longer gaps are the application's pauses."""

EVENT_POLL_S = 1.0
"""Seconds between polls of librdkafka's queue even without need: it has events, too."""

CONFIRM_TIMEOUT_S = 0.005
"""Seconds to wait for the brokers' confirmation of a topic: 1 to 2 ms on a near network."""

EMPTY_POLL_BACKOFF_S = 0.0005
RETRY_S = 1.0
SLOW_RETRY_S = 10.0
CREDENTIALS_RETRY_S = 30.0
"""Kafka throttles and counts failed authentications: frequent retries are of no use."""


# Large: all the state of one librdkafka client, which one lock guards.
class KafkaLog(Log):
    """Reads Kafka. Its own threads are librdkafka's.

    :param find: returns the bootstrap servers, `host:port,host:port`; called again during an outage.
    :param options: librdkafka's; see `kafka_options`.
    :raises UsageError: when librdkafka refuses them.
    """

    knows_topics = True

    def __init__(self, find: Callable[[], str], options: Mapping[str, str]) -> None:
        self._broker_lookup = BrokerLookup(find)
        self._options = options
        self._lock = threading.Lock()
        self._client: KafkaClient | None = None
        self._topics: TopicLookup
        self._servers = ""
        self._parts: dict[tuple[str, int], Partition] = {}
        self._ranges: dict[tuple[str, int], OutOfRange] = {}
        self._newest: dict[str, int] = {}
        self._room = BufferUsage()
        self._starved = StarvationDetector(self._room, BUFFER_BYTES)
        self._polls = 0
        self._busy_s = 0.0
        self._fetched_at = self._polled_at = self._sweep_at = self._empty_at = float("-inf")
        self._outage = Outage()
        self._refused: tuple[float, LogError] | None = None
        self._closed = False
        self._lookups, self._bulk_lookups = (Questions(self._request_client) for _ in range(2))
        pa.array([b""], pa.binary())  # the first conversion loads pandas, if installed: do it before fetching
        self._open(time.monotonic(), None)

    @property
    def outages(self) -> int:
        """Number of outages of all brokers."""
        return self._outage.count

    # ---- offsets

    def earliest(self, topic: str, topic_id: str, partition: int) -> int:
        return self._lookups.one(topic, topic_id, partition, EARLIEST)

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        """As in `Log`; with transactions, the last stable offset."""
        return self._lookups.one(topic, topic_id, partition, LATEST)

    def offset_for_timestamp(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> int:
        return self._lookups.one(topic, topic_id, partition, max(0, timestamp_ms))

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        return self._lookups.record_of_time(topic, topic_id, partition, max(0, timestamp_ms))

    def latest_of(self, places: Iterable[TopicIdPartition]) -> dict[TopicIdPartition, int | CoordinatorError]:
        """See `AnswersForMany`: one request for each broker that leads some."""
        return self._bulk_lookups.ends(places)

    # ---- records

    def fetch(
        self, topic: str, topic_id: str, partition: int, offset: int, max_bytes: int, max_records: int
    ) -> Fetched:
        """As in `Log`. Offsets without a record (transaction markers, aborted or compacted records) are skipped."""
        with self._lock:
            now = time.monotonic()
            self._busy_s += min(MAX_GAP_S, now - self._fetched_at)
            self._fetched_at = now
            client = self._usable(now)
            if client is None:
                return Fetched([], offset)  # the outage is logged
            self._starved.inquire(client, self._busy_s)
            known = self._topics.of(topic, topic_id)
            part = self._positioned(client, known, partition, offset, now)
            if not part.has(known.verified):
                self._poll(client, part, known, max_bytes, now)
            if part.newest >= 0 and now - self._polled_at >= EVENT_POLL_S:
                is_full = self._room.size >= BUFFER_BYTES  # then poll no more than is returned
                self._receive(client, now, int(part.has(known.verified)) if is_full else POLL_RECORDS)
                self._inquire(client, part, known, now)
            if part.has(known.verified):
                self._starved.forget(part)
                return part.take(max_bytes, max_records, known.verified)
            if known.missing is not None:
                raise known.missing
            if known.unconfirmed is not None and self._outage.since is None:
                self._open(now)  # they may be down: queued events behind a full buffer would report it
                raise known.unconfirmed
            if part.problem is not None and part.newest < 0:  # earlier records are returned first
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
        """Open the client, once the brokers' addresses are known."""
        try:
            servers = self._broker_lookup.found(now, wait_s)
        except CoordinatorError as error:
            if self._client is None:
                self._outage.begin(self._servers, str(error), now)
            return
        if servers is None or (self._client is not None and servers == self._servers):
            return
        self._end_client()
        self._client, self._servers = KafkaClient(servers, self._options), servers
        self._topics = TopicLookup(self._client)
        self._starved = StarvationDetector(self._room, BUFFER_BYTES)
        self._ranges.clear()
        for part in self._parts.values():
            part.drop_after(-1)
            part.is_assigned = False

    def _end_client(self) -> None:
        """Discard the client, even if its close fails, and no other can be opened."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _usable(self, now: float) -> KafkaClient | None:
        """The client; None while the brokers' addresses are unknown."""
        if self._closed:
            raise LogError("this log was closed")
        if self._refused is not None:
            if now < self._refused[0]:
                raise self._refused[1]
            self._refused = None
            self._broker_lookup.at_once()
        if self._client is None or self._outage.since is not None:
            self._open(now)
        return self._client

    def _request_client(self) -> KafkaClient:
        with self._lock:
            client = self._usable(time.monotonic())
            if client is None:
                raise LogError("no broker of Kafka is known yet")
            self._handle_events(client, time.monotonic(), is_answering=True)  # a failed request is no outage
            return client

    def _handle_events(self, client: KafkaClient, now: float, is_answering: bool) -> None:
        for event in client.events():
            if event.kind == AWAY and not is_answering:
                self._outage.begin(self._servers, event.text, now)
                self._topics.request_all()
            elif event.kind == AWAY:
                self._outage.suspect_outage(event.text, now)
                self._topics.request_all()  # the answer decides
            elif event.kind == UNKNOWN:
                self._topics.request_all()
            elif event.kind == OTHER:
                self._outage.connection_failed(self._servers, event.text, now)
            elif event.kind == CREDENTIALS:
                self._refuse(event.text, now)

    def _refuse(self, text: str, now: float) -> None:
        """Wrong credentials, of the client or of a broker: close the client, which ends its retries."""
        problem = refused(self._servers, text)
        self._refused = (now + CREDENTIALS_RETRY_S, problem)
        self._end_client()
        raise problem

    # ---- partitions

    def _positioned(self, client: KafkaClient, known: KnownTopic, number: int, offset: int, now: float) -> Partition:
        """The partition, positioned at `offset`, and assigned unless something prevents it."""
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
        if may_be and not part.is_assigned and part.newest < 0:  # else buffered records are returned first
            client.assign(part.topic, part.number, part.tail)
            part.is_assigned = known.is_requested = True
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

    def _suspend(self, client: KafkaClient, part: Partition, problem: LogError, retry_at: float) -> None:
        """Unassign a partition until `retry_at`; earlier records are returned first."""
        self._unassign(client, part)
        self._starved.forget(part)
        part.problem, part.retry_at = problem, retry_at

    def _unassign_buffered(self, client: KafkaClient, part: Partition) -> None:
        """Unassign a partition until all its buffered records are fetched."""
        if part.is_assigned:
            self._unassign(client, part)
            part.pack()

    def _sweep(self, client: KafkaClient, now: float) -> None:
        """Unassign idle partitions; forget those without buffered records, or when memory is needed."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + MAX_GAP_S
        for part in [part for part in self._parts.values() if self._busy_s - part.asked > IDLE_TIMEOUT_S]:
            self._unassign_buffered(client, part)
            is_needed = self._room.size >= BUFFER_BYTES // 2
            if part.newest < 0 or is_needed or not self._topics.has(part.topic, part.topic_id):
                self._drop(client, part)
        held = {part.topic for part in self._parts.values()}
        self._topics.keep(held)
        self._newest = {topic: poll for topic, poll in self._newest.items() if topic in held}

    # ---- polling

    def _poll(self, client: KafkaClient, part: Partition, known: KnownTopic, max_bytes: int, now: float) -> None:
        """Poll for records, and have their topic confirmed."""
        self._drain(client, part, max_bytes, now)
        if part.is_assigned and part.newest < 0:
            self._relieve_starvation(client, part, now)
        self._inquire(client, part, known, now)
        self._check_range(client, part, known, now)

    def _inquire(self, client: KafkaClient, part: Partition, known: KnownTopic, now: float) -> None:
        """Request topics' metadata, apply the results, and with them the brokers' availability."""
        self._apply(client, self._topics.collect(now), now)
        self._topics.ask(self._newest, self._polls, now)
        if part.newest > known.verified or (part.topic, part.number) in self._ranges:
            self._apply(client, self._topics.collect(now, CONFIRM_TIMEOUT_S), now)
        self._outage.judge(self._servers, self._topics.answered, now)

    def _drain(self, client: KafkaClient, part: Partition, max_bytes: int, now: float) -> None:
        if now - self._empty_at < EMPTY_POLL_BACKOFF_S:
            return  # so that a thousand idle partitions do not poll a thousand times
        self._sweep(client, now)
        while part.size < max_bytes and self._room.size < BUFFER_BYTES:
            if not self._receive(client, now, POLL_RECORDS):
                self._empty_at = now
                return
            if part.is_at_end:
                return  # rarely more: do not drain the others' records for it

    def _relieve_starvation(self, client: KafkaClient, part: Partition, now: float) -> None:
        """Get records of a starved partition: unassign those that compete with it, if necessary."""
        since = self._starved.note(part, self._busy_s)
        while since is not None and part.newest < 0 and part.is_assigned:
            for other in competing(self._parts.values(), part, since):
                self._unassign_buffered(client, other)
            for other in make_room(self._parts.values(), self._room, BUFFER_BYTES):
                self._drop(client, other)
            if not self._receive(client, now, POLL_RECORDS):
                return

    def _receive(self, client: KafkaClient, now: float, limit: int) -> bool:
        """One poll; returns whether anything was received."""
        self._polled_at = now
        try:
            pieces = client.consume(limit)
            self._handle_events(client, now, is_answering=bool(pieces))
            if not pieces:
                return False
            self._polls += 1
            for piece in pieces:
                if isinstance(piece, Columns):
                    self._sort(piece)
                else:
                    self._handle_signal(client, piece, now)
            pack(self._parts.values(), self._room, BUFFER_BYTES)
            return True
        except BaseException:
            # Records out of librdkafka's queue and not in a partition are lost: the next client requests them again.
            if self._client is client:
                self._broker_lookup.at_once()
                self._end_client()
            raise

    def _sort(self, columns: Columns) -> None:
        for run in runs(columns):
            part = self._parts.get((run.topic, run.partition))
            if part is None or not part.is_assigned:
                continue  # of a revoked partition
            part.add(run, self._polls)
            self._newest[run.topic] = self._polls

    def _handle_signal(self, client: KafkaClient, signal: Signal, now: float) -> None:
        part = self._parts.get((signal.topic, signal.partition))
        if signal.kind == UNKNOWN:
            self._topics.request_all()
        if part is None or not part.is_assigned:
            return
        if signal.kind == END:
            part.end_at(signal.offset, self._polls)
            self._newest[part.topic] = self._polls
        elif signal.kind == OUT_OF_RANGE:
            self._unassign(client, part)
            place = (part.topic, part.number)
            earliest, latest = client.offsets({place: EARLIEST}), client.offsets({place: LATEST})
            self._ranges[place] = OutOfRange(self._polls, part.tail, earliest, latest)
            self._newest[part.topic] = self._polls
        elif signal.kind in (CORRUPT, DENIED):
            self._suspend(client, part, unreadable(signal), now + SLOW_RETRY_S)
        elif signal.kind != UNKNOWN:  # librdkafka retries by itself
            part.problem, part.retry_at = unreadable(signal), now + SLOW_RETRY_S

    def _apply(self, client: KafkaClient, updated: Iterable[KnownTopic], now: float) -> None:
        """Apply topics' metadata to their partitions."""
        for known in updated:
            for part in [p for p in self._parts.values() if (p.topic, p.topic_id) == (known.name, known.id)]:
                if known.missing is not None:
                    self._unassign(client, part)
                    part.drop_after(known.verified)
                elif (problem := known.lacks(part.number)) is not None:
                    self._suspend(client, part, problem, now + RETRY_S)

    def _check_range(self, client: KafkaClient, part: Partition, known: KnownTopic, now: float) -> None:
        """An offset is out of range when the topic still has its id; in a recreated topic it is void."""
        place = (part.topic, part.number)
        lookup = self._ranges.get(place)
        if lookup is None or not lookup.is_done:
            return
        if known.missing is not None or part.tail != lookup.offset:  # superseded, or buffered records were dropped
            del self._ranges[place]
        elif known.verified >= lookup.poll:
            del self._ranges[place]
            self._suspend(client, part, lookup.problem(place), now + RETRY_S)
