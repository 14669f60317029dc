"""Kafka as a log: librdkafka's queue, with each topic's id confirmed before its records are returned.

librdkafka prefetches all assigned partitions, in its own threads, into one queue. A poll takes what is in it, of any
partition, and returns what has been confirmed: records wait in a queue for each topic until the brokers have confirmed
the topic's id after they had arrived (`topics.py`). No other buffer is between librdkafka's and the reader's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.znodes.partitions import TopicPartition

from ..base import (
    NO_LIMITS,
    Fetch,
    FetchLimits,
    Log,
    LogError,
    OffsetAndTimestamp,
    OffsetOutOfRange,
    Position,
    Source,
    TopicIdPartition,
)
from .client import END, UNKNOWN, Columns, KafkaClient, Signal, runs
from .connection import Connection, TopicRegistry
from .partition import RETRY_S, STARVED_S, Failure, FairShare, FetchState, Partition, UnconfirmedQueue
from .requests import EARLIEST, LATEST
from .topics import KnownTopic, Questions, TopicLookup

POLL_RECORDS = 1000
"""See `KafkaClient.consume`."""

UNCONFIRMED_BYTES = 16 << 20
"""Arrow memory of records that wait for the confirmation of their topic."""

CONFIRM_TIMEOUT_S = 0.005
"""Seconds to wait for the brokers' confirmation of a topic: 1 to 2 ms on a near network."""

IDLE_S = 30.0
"""Seconds without a poll of a partition until the connection is closed: statistics would fill librdkafka's queue."""


# Large: the state of one librdkafka consumer, which one lock guards.
class KafkaSource(Source):
    """The source of one reader.

    :param lookups: the log's lookups of offsets.
    """

    def __init__(self, connection: Connection, lookups: Questions, limits: FetchLimits) -> None:
        self._connection = connection
        self._lookups = lookups
        self._limits = limits
        self._client: KafkaClient | None = None
        self._topics: TopicLookup
        self._share: FairShare
        self._parts: dict[tuple[str, int], Partition] = {}
        self._suspended: set[Partition] = set()
        self._failures: dict[Partition, LogError] = {}
        self._lost: set[Partition] = set()  # their range is looked up next
        self._problem: CoordinatorError | None = None
        self._queue = UnconfirmedQueue(self._verified)
        self._polls = 0
        self._stats: object = None
        self._polled_at = self._came_at = self._began_at = self._asked_at = float("-inf")
        self._is_watched = False
        self._is_relieved = False  # others yield to the wanted ones of a full reader: these get one record at a time

    # ---- partitions

    def assign(self, starts: Mapping[TopicPartition, Position]) -> None:
        with self._connection.lock:
            self.release(starts)
            for key, position in starts.items():
                self._parts[key] = part = Partition(key, position.topic_id, position.offset)
                self._suspended.add(part)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        with self._connection.lock:
            gone = [self._parts.pop(key) for key in partitions if key in self._parts]
            self._drop(gone)
            self._suspend(gone, FetchState.RELEASED)
            self._suspended.difference_update(gone)

    # ---- records

    def poll(self, max_bytes: int, wanted: Collection[TopicPartition] | None = None) -> list[Fetch]:
        """See `Source`. Offsets without a record (transaction markers, aborted or compacted records) are skipped."""
        if self._lost:  # before fetching, because it may fail, and not in `_polled`, because it blocks
            self._failures |= self._range_problems(list(self._lost))
            self._lost.clear()
        with self._connection.lock:
            return self._polled(max_bytes, wanted)

    def _polled(self, max_bytes: int, wanted: Collection[TopicPartition] | None) -> list[Fetch]:
        now = time.monotonic()
        is_away = self._client is not None and any(topic.unconfirmed for topic in self._topics.troubled)
        try:
            client = self._connection.client(now, is_away)
            self._problem = None
            if client is None or not self._parts:
                return []  # an outage is logged
            self._polled_at = now
            self._begin(client, now)
            self._read_health(client, now)
        except LogError as error:
            self._problem = error
            return []
        try:
            self._assign(client, wanted, now)
            self._receive(client, max_bytes, now)
            self._relieve(max_bytes, wanted, now)
            return self._taken(max(max_bytes, self._is_relieved), now)
        except BaseException:
            # Records out of librdkafka's queue and not returned are lost: the next client requests them again. And what
            # is assigned may not be known.
            self._connection.discard()
            raise

    @property
    def is_pending(self) -> bool:
        return self._queue.size > 0

    @property
    def problems(self) -> Mapping[TopicPartition, CoordinatorError | OSError]:
        with self._connection.lock:
            if self._problem is not None:
                return {part.key: self._problem for part in self._parts.values()}
            failures = {part.key: failure for part, failure in self._failures.items()}
            if self._client is None:
                return failures
            health, found = self._connection.health, dict[TopicPartition, LogError]()
            for place, address in health.unavailable.items():
                if (part := self._parts.get(place)) is not None:
                    found[part.key] = self._client.unavailable(address)
            found |= failures
            for topic, problem in self._topics.troubled.items():
                if topic.missing or health.since is None:
                    found |= {part.key: problem for part in self._parts_of(topic)}
            return found

    # ---- the client

    def _begin(self, client: KafkaClient, now: float) -> None:
        """Start over with another client: what the last one has fetched is fetched again."""
        if client is self._client:
            return
        self._client, self._stats = client, None
        self._topics = TopicLookup(client)
        self._connection.health.restart()
        self._share = FairShare(client, now)
        self._queue = UnconfirmedQueue(self._verified)
        self._failures.clear()
        self._lost.clear()
        for part in self._parts.values():
            part.state, part.tail = FetchState.WAITING, part.position
        self._suspended = set(self._parts.values())
        self._came_at = self._began_at = now
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._close_when_idle, name="kafka-idle", daemon=True).start()

    def _close_when_idle(self) -> None:
        """Close the connection of an application that does not poll; the next poll opens another one."""
        while not self._connection.closed.wait(IDLE_S / 4):
            with self._connection.lock:
                if self._client is not None and time.monotonic() - self._polled_at > IDLE_S:
                    self._connection.discard()
                    self._client = None
                    self._topics.forget()

    def _read_health(self, client: KafkaClient, now: float) -> None:
        health = self._connection.health
        if client.brokers is not None and client.brokers is not self._stats:
            self._stats = client.brokers
            assigned = {place for place, part in self._parts.items() if part.is_assigned}
            health.update(client.servers, client.brokers, assigned, client.reasons, now)
        if health.since is not None and now - self._asked_at >= RETRY_S:
            self._asked_at = now
            self._topics.request_all()  # the first answer ends the outage
        if client.refusal and not self._is_accepted(client, now):
            raise self._connection.refuse(client, now)

    def _is_accepted(self, client: KafkaClient, now: float) -> bool:
        """Whether some broker accepts the credentials; before the first statistics, whether one may yet."""
        if client.brokers is None:
            return client.is_accepted or self._came_at > self._began_at or now - self._began_at < RETRY_S
        return any(broker.is_up for broker in client.brokers)

    # ---- assignment

    def _assign(self, client: KafkaClient, wanted: Collection[TopicPartition] | None, now: float) -> None:
        """Assign the suspended partitions whose time has come."""
        due = [part for part in self._suspended if self._is_due(part, wanted, now)] if self._suspended else []
        if due:
            client.assign({part.key: part.tail for part in due})
            for part in due:
                part.state = FetchState.ASSIGNED
                self._topics.of(part.topic, part.topic_id).is_requested = True
            self._suspended.difference_update(due)
        if self._suspended or due:
            self._topics.keep({(part.topic, part.topic_id) for part in self._parts.values()})

    def _is_due(self, part: Partition, wanted: Collection[TopicPartition] | None, now: float) -> bool:
        if self._topics.of(part.topic, part.topic_id).missing is not None:
            return False
        is_wanted = wanted is None or part.key in wanted or part.state is not FetchState.YIELDING
        return is_wanted and (part.state is FetchState.WAITING or now >= part.retry_at)

    def _suspend(self, parts: Collection[Partition], state: FetchState, retry_at: float = float("inf")) -> None:
        """Stop fetching these; their received records are returned first."""
        assigned = [part for part in parts if part.is_assigned]
        if assigned and self._client is not None and self._client is self._connection.current:
            try:
                self._client.unassign(part.key for part in assigned)
            except BaseException:
                self._connection.discard()
                raise
        for part in parts:
            part.state, part.retry_at = state, retry_at
        self._suspended.update(parts)

    def _drop(self, parts: Collection[Partition], after: int = -1) -> None:
        """Drop received records of these, those of polls after `after`: they are fetched again."""
        for part in parts:
            self._failures.pop(part, None)
            self._lost.discard(part)
        self._queue.drop(parts, after)

    # ---- librdkafka's queue

    def _receive(self, client: KafkaClient, max_bytes: int, now: float) -> None:
        """Take records out of the queue, while the brokers confirm the topics of earlier ones."""
        until = now + self._limits.max_s
        room = min(max(max_bytes, self._is_relieved), UNCONFIRMED_BYTES)
        while self._queue.size < room and self._consume(client):
            self._confirm(0.0)
            if time.monotonic() >= until:
                break
        if not self._queue.has_confirmed:
            self._confirm(CONFIRM_TIMEOUT_S if self._queue.newest else 0.0)

    def _consume(self, client: KafkaClient) -> bool:
        """One look; whether there was anything."""
        pieces = client.consume(POLL_RECORDS)
        if not pieces:
            return False
        self._polls += 1
        self._came_at = time.monotonic()
        for piece in pieces:
            if isinstance(piece, Columns):
                for run in runs(piece):
                    part = self._parts.get((run.topic, run.partition))
                    if part is not None and part.is_assigned:  # and not released
                        self._enqueue(part, part.received(run))
            elif piece.kind == UNKNOWN:
                self._topics.request_all()
            else:
                self._add_signal(piece)
        return True

    def _add_signal(self, signal: Signal) -> None:
        part = self._parts.get((signal.topic, signal.partition))
        if part is None or not part.is_assigned:
            return
        if signal.kind == END:
            self._failures.pop(part, None)
            self._enqueue(part, part.ended(signal.offset))
            return
        failure = Failure.of(signal)
        if failure.retry_s is not None:
            self._suspend([part], FetchState.FAILED)
        self._enqueue(part, failure)

    def _enqueue(self, part: Partition, found: Fetch | Failure | None) -> None:
        if found is not None:
            self._share.count(part, self._queue.add(self._polls, part, found))

    # ---- confirmation

    def _confirm(self, wait_s: float) -> None:
        """Request the ids of topics with unconfirmed records, and apply the answers."""
        now = time.monotonic()
        self._apply(self._topics.collect(now), now)
        self._topics.ask(self._queue.newest, self._polls, now, is_busy=not wait_s)
        if wait_s:
            self._apply(self._topics.collect(now, wait_s), now)

    def _apply(self, updated: Iterable[KnownTopic], now: float) -> None:
        health = self._connection.health
        if health.since is not None and self._topics.answered >= health.since and self._client is not None:
            health.end_outage(self._client.servers, now)
        for known in updated:
            parts = self._parts_of(known)
            if known.missing is not None:
                self._suspend(parts, FetchState.WAITING)
                self._drop(parts, known.verified)
                continue
            leaders = known.described.leaders if known.described else {}
            for part in parts:
                if part.number in leaders:
                    health.leaders[part.key] = leaders[part.number]
                if (problem := known.lacks(part.number)) is not None:
                    self._suspend([part], FetchState.FAILED, now + RETRY_S)
                    self._failures[part] = problem

    def _parts_of(self, known: KnownTopic) -> list[Partition]:
        return [part for part in self._parts.values() if (part.topic, part.topic_id) == (known.name, known.id)]

    def _verified(self, part: Partition) -> int:
        return self._topics.of(part.topic, part.topic_id).verified

    # ---- fairness

    def _relieve(self, max_bytes: int, wanted: Collection[TopicPartition] | None, now: float) -> None:
        """Let partitions above their share yield to starved ones, and end that."""
        is_full = max_bytes <= 0 and wanted is not None
        self._is_relieved &= is_full
        if not is_full and now - self._came_at >= STARVED_S:
            self._end_yielding()
        if not is_full and not self._share.is_round(now):
            return
        assigned = [part for part in self._parts.values() if part.is_assigned]
        if is_full:
            others = [part for part in assigned if part.key not in (wanted or ())]
            hungry = [part for part in assigned if part.key in (wanted or ())] if others else []
        else:
            others, hungry = self._share.compared(assigned)
        starved = self._share.starved(hungry, now)
        if starved is None:
            return
        self._share.start_round(now)
        starved = [part for part in starved if part in hungry]  # by now, the reader may want others
        if starved:
            self._is_relieved = is_full
            self._suspend(others, FetchState.YIELDING, now if is_full else float("inf"))
            self._drop(others if is_full else ())
        elif not is_full:
            self._end_yielding()

    def _end_yielding(self) -> None:
        for part in self._suspended:
            if part.state is FetchState.YIELDING:
                part.state = FetchState.WAITING

    # ---- returned records

    def _taken(self, room: int, now: float) -> list[Fetch]:
        """Confirmed records up to `room` bytes, one record at least, as one fetch of each partition."""
        taken: dict[Partition, list[Fetch]] = {}
        for _, part, found, _ in self._queue.take(room):
            if isinstance(found, Fetch):
                taken.setdefault(part, []).append(found)
                if found.rows:
                    self._failures.pop(part, None)
                continue
            # All records before a failure are returned: it is the partition's problem now.
            if found.error is None:
                self._lost.add(part)
            else:
                self._failures[part] = found.error
            if found.retry_s is not None:
                part.retry_at = now + found.retry_s
        fetches = [_joined(each) for each in taken.values()]
        for part, fetch in zip(taken, fetches, strict=True):  # nothing fails from here on: these are returned
            part.position = fetch.next
        return fetches

    def _range_problems(self, parts: list[Partition]) -> dict[Partition, LogError]:
        """Whether each position is out of range, or has only been so."""
        places = {part: TopicIdPartition(part.topic, part.topic_id, part.number) for part in parts}
        begins = self._lookups.many(places.values(), EARLIEST)
        answered = [place for place, begin in begins.items() if not isinstance(begin, CoordinatorError)]
        ends = begins | self._lookups.many(answered, LATEST)
        return {part: _range_problem(part, begins[place], ends[place]) for part, place in places.items()}


def _range_problem(part: Partition, first: int | CoordinatorError, end: int | CoordinatorError) -> LogError:
    what = f"offset {part.tail} of {part.topic}-{part.number} is out of range"
    if isinstance(first, CoordinatorError) or isinstance(end, CoordinatorError):
        return LogError(f"{what} in Kafka: {first if isinstance(first, CoordinatorError) else end}")
    if first <= part.tail <= end:
        return LogError(f"{what} in Kafka")
    return OffsetOutOfRange(f"{what}: Kafka holds {first} to {end}")


def _joined(fetches: list[Fetch]) -> Fetch:
    """Consecutive fetches of one partition as one."""
    if len(fetches) == 1:
        return fetches[0]
    batches = [batch for fetch in fetches for batch in fetch.batches]
    return Fetch(fetches[0].partition, fetches[0].topic_id, fetches[0].first, fetches[-1].next, batches)


class KafkaLog(Log):
    """Reads Kafka. Its own threads are librdkafka's, and one that closes an idle connection.

    :param find: returns the bootstrap servers, `host:port,host:port`; called again during an outage.
    :param options: librdkafka's; see `kafka_options`.
    :param registry: knows topics' ids while no controller answers.
    :raises UsageError: when librdkafka refuses them.
    """

    knows_topics = True

    def __init__(
        self, find: Callable[[], str], options: Mapping[str, str], registry: TopicRegistry | None = None
    ) -> None:
        self._connection = Connection(find, options, registry)
        self._lookups, self._bulk_lookups = (Questions(self._connection.requests) for _ in range(2))

    @property
    def outages(self) -> int:
        """As in `Log`: of all brokers, as a source has seen them."""
        return self._connection.health.outages

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
        """As in `Log`: one request for each broker that leads some."""
        return self._bulk_lookups.many(places, LATEST)

    def source(self, limits: FetchLimits = NO_LIMITS) -> KafkaSource:
        return KafkaSource(self._connection, self._lookups, limits)

    def close(self) -> None:
        self._connection.close()
