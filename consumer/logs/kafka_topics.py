"""Which topic Kafka has under a name: asked after each look that brought records of it.

A topic that is deleted and made anew under its name begins at 0 again. librdkafka goes on in it at the offset where it
stood in the old one, and says nothing when the new one reaches that far. So no record is handed out before the brokers
have said, later than it came, that the topic still has its id: an id never comes back, so the record is of that topic.
(Asked is any broker, whose metadata may be some milliseconds behind those of the partition's leader.)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from .errors import LogError, UnknownTopic
from .kafka import Described, KafkaClient, Pending

log = logging.getLogger(__name__)

WITHOUT_ID = "czxid-"
"""How an id begins that ZooKeeper gave because Kafka (before 2.8) had none: brokers cannot confirm it."""

SOON_S = 0.02
LOOK_AGAIN_S = 1.0
MOST_WAIT_S = 1.0
UNCONFIRMED_S = 10.0
"""One question may come while a controller is elected; those of so long a time do not."""

_PARTITION_S = 0.0002
"""An answer costs 10 us a partition: it is asked for so seldom that this is a twentieth of the time."""


class KnownTopic:
    """What is known of one topic under the id that it shall have.

    :ivar verified: what came up to this look is of this id.
    :ivar missing: why it is not there, None while it is.
    :ivar unconfirmed: why nobody has said for long whether it is there; None where somebody has.
    :ivar partitions: those that Kafka has; None before it has said.
    """

    def __init__(self, name: str, topic_id: str) -> None:
        self.name = name
        self.id = topic_id
        self.verified = -1
        self.missing: UnknownTopic | None = None
        self.unconfirmed: LogError | None = None
        self.partitions: frozenset[int] | None = None
        self.is_wanted = True
        self.not_before = float("-inf")
        self._unheard_since: float | None = None

    def heard(self) -> None:
        """Somebody has answered."""
        self.unconfirmed = self._unheard_since = None

    def not_heard(self, reason: LogError, asked_at: float, now: float) -> None:
        """Nobody knows; nothing is handed out before somebody does."""
        self.is_wanted, self.not_before = True, now + LOOK_AGAIN_S / 5
        self._unheard_since = asked_at if self._unheard_since is None else self._unheard_since
        if asked_at - self._unheard_since >= UNCONFIRMED_S:
            what = f"Kafka has not confirmed topic {self.name} with id {self.id}, asked again"
            self.unconfirmed = LogError(f"{what}: {reason}")

    def lacks(self, number: int) -> LogError | None:
        """Why a partition is not fetched that Kafka has not; None where it has it, or has not said."""
        if self.partitions is None or number in self.partitions:
            return None
        return LogError(
            f"ZooKeeper has a partition {self.name}-{number}, and Kafka has {len(self.partitions)} of this topic, and "
            "not this one; the others are fetched"
        )


class Topics:
    """Asks, and keeps the answers. Not for several threads.

    :ivar answered: when that was asked which a broker has answered last.
    """

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self.answered = float("-inf")
        self._topics: dict[str, KnownTopic] = {}
        self._asked: tuple[Pending[str, Described | LogError], dict[str, KnownTopic], int, float] | None = None

    def of(self, name: str, topic_id: str) -> KnownTopic:
        """What is known of a topic; under another id than before nothing."""
        known = self._topics.get(name)
        if known is None or known.id != topic_id:
            known = self._topics[name] = KnownTopic(name, topic_id)
        return known

    def has(self, name: str, topic_id: str) -> bool:
        """Whether a topic is asked for under this id, and is there as far as is known."""
        known = self._topics.get(name)
        return known is not None and known.id == topic_id and known.missing is None

    def keep(self, names: Collection[str]) -> None:
        """Forget all but these."""
        self._topics = {name: known for name, known in self._topics.items() if name in names}

    def want(self) -> None:
        """Ask for every topic again: librdkafka has said that something is not there, and not what."""
        for known in self._topics.values():
            known.is_wanted = True

    def ask(self, newest: Mapping[str, int], look: int, now: float) -> None:
        """Ask for those of which something waits, and those that are not there; one question at a time.

        :param newest: topic -> the look that brought what came of it last.
        :param look: the number of the last look: whatever it brought has come before this question.
        """
        if self._asked is not None:
            return
        due = {name: known for name, known in self._topics.items() if self._is_due(known, newest.get(name, -1), now)}
        if not due:
            return
        self._asked = (self._client.describe(due), due, look, now)
        for known in due.values():
            known.is_wanted = False

    def hear(self, now: float, wait_s: float = 0.0) -> list[KnownTopic]:
        """Take in the answer, if it has come, or comes within `wait_s`; the topics of which something was said."""
        if self._asked is None:
            return []
        pending, due, look, asked_at = self._asked
        # What did not come soon may take long: a thousand partitions must not wait for it one after the other.
        if not pending.wait(wait_s if now - asked_at < SOON_S else 0.0):
            return []
        self._asked = None
        heard = []
        for name, answer in pending.results().items():
            known = due[name]
            if isinstance(answer, LogError):
                known.not_heard(answer, asked_at, now)
            else:
                known.heard()
                self._note(known, answer, look, asked_at)
                self.answered = asked_at
                heard.append(known)
        return heard

    def _is_due(self, known: KnownTopic, newest: int, now: float) -> bool:
        return now >= known.not_before and (known.is_wanted or known.missing is not None or newest > known.verified)

    def _note(self, known: KnownTopic, answer: Described, look: int, asked_at: float) -> None:
        problem = _problem(known, answer)
        if problem:
            if known.missing is None:
                log.warning("topic waits: topic=%s id=%s reason=%s", known.name, known.id, problem)
            known.missing = UnknownTopic(f"topic {known.name} with id {known.id}: {problem}")
            known.not_before = asked_at + LOOK_AGAIN_S
            return
        if known.missing is not None:
            log.info("topic is there: topic=%s id=%s", known.name, known.id)
            known.missing = None
        known.verified, known.partitions = look, answer.partitions
        known.not_before = asked_at + min(MOST_WAIT_S, _PARTITION_S * len(answer.partitions))


def _problem(known: KnownTopic, answer: Described) -> str:
    if answer.error:
        return answer.error
    if answer.id and answer.id != known.id and not known.id.startswith(WITHOUT_ID):
        return f"Kafka has another topic of this name, with id {answer.id}"
    return ""


def checked(topic: str, topic_id: str, answer: Described | LogError) -> Described:
    """What Kafka says of a topic, when it is the one with this id.

    :raises UnknownTopic: when it is not.
    :raises LogError: when no broker answered.
    """
    if isinstance(answer, LogError):
        raise answer
    problem = _problem(KnownTopic(topic, topic_id), answer)
    if problem:
        raise UnknownTopic(f"topic {topic} with id {topic_id}: {problem}")
    return answer
