"""Earliest and latest offsets of Kafka's partitions, and those of a time: many partitions in one request per broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

from coordinator.zk.errors import CoordinatorError

from ..base import LogError, OffsetAndTimestamp, TopicIdPartition, UnknownTopic
from .requests import ANSWER_TIMEOUT_S, LATEST, Described, Pending, Requests, Unanswered
from .topics import checked, problem_of

RESULT_TTL_S = 0.25
"""Seconds for which results are kept, or as long as they took, each for one use: the caller goes on with the others."""

AWAY_S = 2.0
"""Seconds without requests after a missing answer: a consumer's thread must not block for each partition."""

_Answer = int | LogError
K = TypeVar("K")
T = TypeVar("T")


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
            pending = self._client.listed({(topic, partition): timestamp_ms}, lambda found: found)
            (answer,) = self._results(pending).values()
            checked(topic, topic_id, self._described({topic})[topic])
            if isinstance(answer, LogError):
                raise answer
            return OffsetAndTimestamp(answer.offset, answer.timestamp) if answer.offset >= 0 else None

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
            found[place] = problem_of(topic, topic_id, described[topic]) or offsets[topic, number]
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
