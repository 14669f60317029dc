"""Confirmation of topic ids, requested after each poll with records of a topic.

A recreated topic begins at offset 0 again. librdkafka continues in it at the old topic's offset, without an error when
the new one reaches that far. So records are returned only after the brokers have confirmed, later than they arrived,
that the topic still has its id: an id never comes back, so the records are of that topic. (The controller is asked,
or the registry while it does not answer: either may be some milliseconds behind the partition's leader.)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import cast

from ..base import LogError, UnknownTopic
from .requests import Described, Pending, Requests

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


class KnownTopic:
    """State of one topic under its expected id.

    :ivar verified: records up to this poll are of this id.
    :ivar missing: why it does not exist, else None.
    :ivar unconfirmed: why its id has not been confirmed for long, else None.
    :ivar partitions: Kafka's; None before the first answer.
    :ivar leaders: partition -> the address of its leader, where it has one.
    """

    def __init__(self, name: str, topic_id: str) -> None:
        self.name = name
        self.id = topic_id
        self.verified = -1
        self.missing: UnknownTopic | None = None
        self.unconfirmed: LogError | None = None
        self.partitions: frozenset[int] | None = None
        self.leaders: Mapping[int, str] = {}
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
        self.verified, self.partitions, self.leaders = poll, answer.partitions, answer.leaders
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
        if self.partitions is None or number in self.partitions:
            return None
        return LogError(
            f"ZooKeeper has a partition {self.name}-{number}, and Kafka has {len(self.partitions)} of this topic, and "
            "not this one; the others are fetched"
        )


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
        if not requested:
            return
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
