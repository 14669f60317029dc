"""Topics and offsets of Kafka are looked up here; and ids of topics confirmed, after each poll with records of one.

A recreated topic begins at offset 0 again. librdkafka continues in it at the old topic's offset, without an error when
the new one reaches that far. So records are returned only after the brokers have confirmed, later than they arrived,
that the topic still has its id: an id never comes back, so the records are of that topic. (The controller is asked,
or the registry while it does not answer: either may be some milliseconds behind the partition's leader.)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, cast

from zk_group.coordinator.zk.errors import CoordinatorError

from ..base import LogError, OffsetAndTimestamp, TopicIdPartition, UnknownTopic
from .requests import ANSWER_TIMEOUT_S, LATEST, Described, Pending, Requests, Unanswered

log = logging.getLogger(__name__)

WITHOUT_ID = "czxid-"
"""Prefix of ids that ZooKeeper gave because Kafka (before 2.8) had none: brokers cannot confirm them."""

SOON_S = 0.02
RECHECK_S = 1.0
MOST_WAIT_S = 1.0
UNCONFIRMED_S = 10.0
"""Seconds without confirmation that are an error; a single request may fail while a controller is elected."""

BUSY_S = 0.02
"""Minimum interval of requests of a busy reader: with one for each 1,000 records they took 8 % of a slot's CPU time."""

_PARTITION_S = 0.0002
"""Interval of requests per partition: an answer costs 10 us a partition, a twentieth of it."""

RESULT_TTL_S = 0.25
"""Seconds for which results are kept, or as long as they took, each for one use: the caller goes on with the others."""

AWAY_S = 2.0
"""Seconds without requests after a missing answer: a consumer's thread must not block for each partition."""

_Answer = int | LogError
K = TypeVar("K")
T = TypeVar("T")


class KnownTopic:
    """State of one topic under its expected id.

    :ivar verified: records up to this poll are of this id.
    :ivar missing: why it does not exist, else None.
    :ivar unconfirmed: why its id has not been confirmed for long, else None.
    :ivar described: Kafka's partitions and their leaders, once brokers have answered.
    """

    def __init__(self, name: str, topic_id: str) -> None:
        self.name = name
        self.id = topic_id
        self.verified = -1
        self.missing: UnknownTopic | None = None
        self.unconfirmed: LogError | None = None
        self.described: Described | None = None
        self.is_requested = True
        self.not_before = float("-inf")
        self._silent_since: float | None = None

    def note_answer(self, answer: Described, poll: int, asked_at: float) -> None:
        """A broker has answered a request that was sent after this poll."""
        self.unconfirmed = self._silent_since = None
        problem = _problem(self.id, answer)
        if problem:
            if self.missing is None:
                log.warning("topic unavailable: topic=%s id=%s reason=%s", self.name, self.id, problem)
            self.missing = UnknownTopic(f"topic {self.name} with id {self.id}: {problem}")
            self.not_before = asked_at + RECHECK_S
            return
        if self.missing is not None:
            log.info("topic available: topic=%s id=%s", self.name, self.id)
            self.missing = None
        self.verified, self.described = poll, answer
        self.not_before = asked_at + min(MOST_WAIT_S, _PARTITION_S * len(answer.partitions))

    def note_silence(self, reason: LogError, asked_at: float, now: float) -> None:
        """No broker has answered; records are withheld until one does."""
        self.is_requested, self.not_before = True, now + RECHECK_S / 5
        self._silent_since = asked_at if self._silent_since is None else self._silent_since
        if asked_at - self._silent_since >= UNCONFIRMED_S:
            what = f"Kafka has not confirmed topic {self.name} with id {self.id}, asked again"
            self.unconfirmed = LogError(f"{what}: {reason}")

    def lacks(self, number: int) -> LogError | None:
        """The error for a partition that Kafka does not have; None when it exists, or before the first answer."""
        if self.described is None or number in self.described.partitions:
            return None
        count = len(self.described.partitions)
        what = f"ZooKeeper has a partition {self.name}-{number}, and Kafka has {count} of this topic, and not this one"
        return LogError(f"{what}; the others are fetched")


class TopicLookup:
    """Asks, and keeps the answers. Not for several threads.

    :ivar answered: when the last request that a broker has answered was sent.
    """

    def __init__(self, client: Requests) -> None:
        self._client = client
        self.answered = float("-inf")
        self._look_after_s = RECHECK_S
        self._topics: dict[tuple[str, str], KnownTopic] = {}
        self._asked: tuple[Pending[str, Described | LogError], list[KnownTopic], int, float] | None = None

    def of(self, name: str, topic_id: str) -> KnownTopic:
        """The state of a topic."""
        known = self._topics.get((name, topic_id))
        if known is None:
            known = self._topics[name, topic_id] = KnownTopic(name, topic_id)
        return known

    @property
    def troubled(self) -> dict[KnownTopic, LogError]:
        """Topics that do not exist, or have not been confirmed for long, each with the reason."""
        return {known: why for known in self._topics.values() if (why := known.missing or known.unconfirmed)}

    def keep(self, topics: Collection[tuple[str, str]]) -> None:
        """Forget all but these, (name, id)."""
        self._topics = {key: known for key, known in self._topics.items() if key in topics}

    def forget(self) -> None:
        """Drop the request on its way, and with it the client that was asked."""
        self._asked = None

    def request_all(self) -> None:
        """Request every topic again: librdkafka has reported something missing, without its name."""
        for known in self._topics.values():
            known.is_requested = True

    def ask(self, newest: Mapping[str, int], poll: int, now: float, is_busy: bool = False) -> None:
        """Request metadata of topics with unconfirmed records, and of missing ones; one request at a time.

        :param newest: topic -> the poll of its newest records.
        :param poll: the number of the last poll: its records arrived before this request.
        :param is_busy: whether the reader has other records to return.
        """
        if self._asked is not None:
            return
        interval_s = BUSY_S if is_busy else 0.0
        due = [known for known in self._topics.values() if now >= known.not_before]
        requested = [
            known
            for known in due
            if known.is_requested
            or known.missing is not None
            or (newest.get(known.name, -1) > known.verified and now >= known.not_before + interval_s)
        ]
        if requested:
            self._asked = (self._client.describe({known.name for known in requested}), requested, poll, now)
            self._look_after_s = RECHECK_S
        for known in requested:
            known.is_requested = False

    def collect(self, now: float, wait_s: float = 0.0) -> list[KnownTopic]:
        """Apply the result, if it arrives within `wait_s`; returns the topics in it."""
        if self._asked is None:
            return []
        pending, requested, poll, asked_at = self._asked
        # A late result may take long: polls must not wait for it one after the other.
        if not pending.wait(wait_s if now - asked_at < SOON_S else 0.0):
            if now - asked_at >= self._look_after_s:
                self._look_after_s = 2 * self._look_after_s + RECHECK_S
                self._client.look_for_controller()
            return []
        self._asked = None
        answers, updated = pending.results(), []
        for known in requested:
            answer = answers[known.name]
            if isinstance(answer, LogError):
                known.note_silence(answer, asked_at, now)
            else:
                known.note_answer(answer, poll, asked_at)
                self.answered = self.answered if self._client.is_mute else asked_at
                updated.append(known)
        return updated


def _problem(topic_id: str, answer: Described) -> str:
    is_other = answer.id not in ("", topic_id) and not topic_id.startswith(WITHOUT_ID)
    return answer.error or (f"Kafka has another topic of this name, with id {answer.id}" if is_other else "")


def problem_of(topic: str, topic_id: str, answer: Described | LogError) -> LogError | None:
    """Why Kafka has no metadata of a topic with this id; None when it has."""
    if isinstance(answer, LogError):
        return answer
    problem = _problem(topic_id, answer)
    return UnknownTopic(f"topic {topic} with id {topic_id}: {problem}") if problem else None


def checked(topic: str, topic_id: str, answer: Described | LogError) -> Described:
    """Kafka's metadata of a topic with this id.

    :raises UnknownTopic: when Kafka has no such topic.
    :raises LogError: when no broker answered.
    """
    if problem := problem_of(topic, topic_id, answer):
        raise problem
    return cast(Described, answer)


class Questions:
    """Looks up offsets at the current client and waits for the results. For several threads, one after the other.

    A failure is remembered, and raised again without a request.

    :param client: returns the current client; its argument says whether a lookup has failed.
    """

    def __init__(self, client: Callable[[bool], Requests]) -> None:
        self._current = client
        self._lock = threading.Lock()
        self._client = cast(Requests, None)  # none was asked yet
        self._requests = 0
        self._ready: dict[tuple[str, str, int], tuple[float, dict[int, _Answer]]] = {}
        self._away: tuple[float, LogError] | None = None
        self._mute: dict[str, tuple[float, LogError]] = {}

    def one(self, topic: str, topic_id: str, partition: int, what: int) -> int:
        """One offset; `what` as in `Requests.offsets`, where the latest replaces a missing record.

        :raises UnknownTopic: when Kafka has no such topic.
        :raises LogError: when it has no such partition, or does not answer.
        """
        with self._lookup():
            key, now = (topic, topic_id, what), time.monotonic()
            until, ready = self._ready.get(key, (0.0, {}))
            answer = ready.pop(partition, None) if now < until else None
            if answer is None:
                mute_until, problem = self._mute.pop(topic, (0.0, None))
                if problem is not None and now < mute_until:
                    self._mute[topic] = mute_until, problem
                    raise problem.with_traceback(None)
                ready = self._of_topic(topic, topic_id, what)
                answer = ready.pop(partition, LogError(f"Kafka has no partition {partition} of topic {topic}"))
                ended = time.monotonic()  # a leader that does not answer takes long: not once for each partition
                self._ready = {key: (ended + max(RESULT_TTL_S, ended - now), ready)}
            if isinstance(answer, LogError):
                raise answer
            return answer

    def record_of_time(self, topic: str, topic_id: str, partition: int, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record of that time or later. Raises as `one`."""
        with self._lookup():
            self._refuse_while_away()
            pending = self._client.offsets({(topic, partition): timestamp_ms})
            (answer,) = self._results(pending).values()
            checked(topic, topic_id, self._described({topic})[topic])
            if isinstance(answer, LogError):
                raise answer
            return answer if answer.offset >= 0 else None

    def many(self, places: Iterable[TopicIdPartition], what: int) -> dict[TopicIdPartition, int | CoordinatorError]:
        """One offset of each of these partitions, `what` as in `one`, in one request; errors are values."""
        requested = list(places)
        with self._lock:
            try:
                self._begin()
                return dict(self._many(requested, what))
            except CoordinatorError as error:
                return dict.fromkeys(requested, error)

    @contextmanager
    def _lookup(self) -> Iterator[None]:
        with self._lock:
            self._begin()
            before = self._requests
            try:
                yield
            except LogError as error:
                has_failed = self._requests > before and not isinstance(error, UnknownTopic)
                self._current(has_failed)  # raises a connection's error, as of its credentials
                raise

    def _begin(self) -> None:
        """Take the current client; of another one than before nothing is known."""
        client = self._current(False)
        if client is not self._client:
            self._client, self._away = client, None
            self._ready.clear()
            self._mute.clear()

    def _many(self, requested: list[TopicIdPartition], what: int) -> dict[TopicIdPartition, _Answer]:
        """
        :raises LogError: when Kafka does not answer.
        """
        if not requested:
            return {}
        self._refuse_while_away()
        offsets = self._results(self._client.offsets({(place.topic, place.partition): what for place in requested}))
        described = self._described({place.topic for place in requested})  # after the offsets: those of this id
        found: dict[TopicIdPartition, _Answer] = {}
        for place in requested:
            topic, topic_id, number = place
            answer = problem_of(topic, topic_id, described[topic]) or offsets[topic, number]
            found[place] = answer.offset if isinstance(answer, OffsetAndTimestamp) else answer
        failed = [answer for answer in found.values() if isinstance(answer, LogError)]
        if len(failed) == len(found) and not isinstance(failed[0], UnknownTopic):
            # Brokers have answered, only not for these partitions (as without a leader): others may be requested.
            self._mute |= dict.fromkeys(described, (time.monotonic() + AWAY_S, failed[0]))
        return found

    def _of_topic(self, topic: str, topic_id: str, what: int) -> dict[int, _Answer]:
        """The offsets of all partitions of a topic."""
        try:
            described = checked(topic, topic_id, self._described({topic})[topic])
        except LogError as error:
            if not isinstance(error, UnknownTopic):
                self._mute[topic] = (time.monotonic() + AWAY_S, error)
            raise
        places = [TopicIdPartition(topic, topic_id, number) for number in sorted(described.partitions)]
        # Before the times: a record that is written meanwhile is then behind the end.
        ends = self._many(places, LATEST) if what >= 0 else {}
        found = ends | self._many([place for place in places if not isinstance(ends.get(place), LogError)], what)
        return {place.partition: ends[place] if answer == -1 else answer for place, answer in found.items()}

    def _described(self, topics: Iterable[str]) -> dict[str, Described | LogError]:
        self._refuse_while_away()
        for _ in range(2):  # a second place may know, see `Requests.describe`
            found = self._results(self._client.describe(topics))
            if not (self._client.is_mute and self._client.has_registry):
                break
        problems = [answer for answer in found.values() if isinstance(answer, Unanswered)]
        if problems and len(problems) == len(found):
            self._note_away(problems[0])
        return found

    def _results(self, pending: Pending[K, T]) -> dict[K, T]:
        self._requests += 1
        if not pending.wait(ANSWER_TIMEOUT_S):
            raise self._note_away(LogError(f"Kafka at {self._client.servers} does not answer"))
        return pending.results()

    def _note_away(self, error: LogError) -> LogError:
        self._away = (time.monotonic() + AWAY_S, error)
        return error

    def _refuse_while_away(self) -> None:
        if self._away is not None and time.monotonic() < self._away[0]:
            raise self._away[1].with_traceback(None)
        self._away = None
