"""Requests to Kafka whose brokers do not answer: librdkafka's own client, without a broker."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import confluent_kafka as ck
import pytest

from consumer.logs.base import LogError, OffsetAndTimestamp, UnknownTopic
from consumer.logs.kafka import requests as module
from consumer.logs.kafka.options import kafka_options
from consumer.logs.kafka.requests import (
    ANSWER_TIMEOUT_S,
    EARLIEST,
    LATEST,
    NO_TOPIC,
    Described,
    Pending,
    Requests,
    Unanswered,
)
from consumer.logs.kafka.topics import Questions

K = TypeVar("K")
T = TypeVar("T")


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """To a broker that accepts connections, and never answers."""
    for timeout in ("REQUEST_TIMEOUT_S", "LOOKUP_TIMEOUT_S"):
        monkeypatch.setattr(module, timeout, 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Requests(f"127.0.0.1:{server.getsockname()[1]}", kafka_options({}, {}))
        yield found
        found.close()


def fails(pending: Pending[K, Any], key: K) -> None:
    assert pending.wait(10)
    assert isinstance(pending.results()[key], LogError)


@pytest.mark.long
def test_request_of_a_closed_client_ends_with_an_error(requests: Requests) -> None:
    pending = requests.offsets({("t", 0): LATEST})
    requests.close()
    gc.collect()

    fails(pending, ("t", 0))


@pytest.mark.long
def test_controller_that_does_not_answer_is_connected_anew(requests: Requests) -> None:
    asked = []
    for _ in range(3):
        asked.append(requests._asking())
        fails(requests.describe(["t"]), "t")

    assert len(set(map(id, asked))) == 3
    assert requests.is_mute


@pytest.mark.long
def test_requests_behind_one_without_an_answer_are_still_answered(requests: Requests) -> None:
    offsets, topics = requests.offsets({("t", 0): LATEST}), requests.describe(["t"])
    assert topics.wait(10)
    topics.results()
    del topics
    gc.collect()

    assert offsets.wait(10)


def test_closed_client_sends_no_request(requests: Requests) -> None:
    requests.close()

    for ask in (lambda: requests.offsets({("t", 0): LATEST}), lambda: requests.describe(["t"])):
        with pytest.raises(LogError, match="was closed"):
            ask()


def test_leader_that_brokers_name_without_its_address_has_none(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after its death: the last known address stays."""
    leaders = [ck.Node(0, "h", 9092), ck.Node(2, None, 0), None]
    partitions = [SimpleNamespace(id=number, leader=leader) for number, leader in enumerate(leaders)]
    answer: Future[Any] = Future()
    answer.set_result(SimpleNamespace(partitions=partitions, topic_id=None))
    asked = SimpleNamespace(describe_topics=lambda topics, request_timeout: {"t": answer})
    monkeypatch.setattr(requests, "_asking", lambda: asked)

    found = requests.describe(["t"]).results()["t"]

    assert isinstance(found, Described) and found.leaders == {0: "h:9092"}


@pytest.mark.parametrize("code", [ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_controller_that_answers_with_an_error_has_accepted_the_credentials(
    requests: Requests, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    answer: Future[Any] = Future()
    answer.set_exception(ck.KafkaException(ck.KafkaError(code)))
    asked = SimpleNamespace(describe_topics=lambda topics, request_timeout: {"t": answer})
    monkeypatch.setattr(requests, "_asking", lambda: asked)
    requests.is_mute = True

    found = requests.describe(["t"]).results()["t"]

    assert found == NO_TOPIC or isinstance(found, LogError)
    assert (requests.is_accepted, requests.is_mute) == (True, False)


class Cluster:
    """In place of `Requests`: offsets of even partitions come, those of odd ones fail.

    :ivar asked: the partitions and the offset of each request.  :ivar described: what a topic is.
    """

    servers, is_mute, has_registry = "h:1", False, False

    def __init__(self, described: Described | LogError) -> None:
        self.described = described
        self.asked: list[tuple[list[int], int]] = []

    def describe(self, topics: Iterable[str]) -> Pending[str, Described | LogError]:
        return answered(dict.fromkeys(topics, self.described))

    def offsets(
        self, requested: Mapping[tuple[str, int], int]
    ) -> Pending[tuple[str, int], OffsetAndTimestamp | LogError]:
        self.asked.append((sorted(number for _, number in requested), min(requested.values())))
        found = OffsetAndTimestamp(7, -1)
        return answered({place: Unanswered("no answer") if place[1] % 2 else found for place in requested})


def answered(answers: Mapping[K, T]) -> Pending[K, T]:
    futures: dict[K, Future[T]] = {key: Future() for key in answers}
    for key, future in futures.items():
        future.set_result(answers[key])
    return Pending(futures.values(), lambda: {key: future.result() for key, future in futures.items()})


class Counted(Questions):
    """:ivar failures: the failed lookups that count against the connection: two are a refusal, for half a minute."""

    def __init__(self, client: object) -> None:
        self.failures = 0
        super().__init__(lambda has_failed: self._count(client, has_failed))

    def _count(self, client: object, has_failed: bool) -> Requests:
        self.failures += has_failed
        return cast(Requests, client)


@pytest.mark.parametrize(("remembered_s", "failures"), [(600, 1), (0, 3)])
def test_failure_that_is_remembered_is_no_second_one(
    monkeypatch: pytest.MonkeyPatch, remembered_s: float, failures: int
) -> None:
    monkeypatch.setattr("consumer.logs.kafka.topics.AWAY_S", remembered_s)
    lookups = Counted(Cluster(Unanswered("no answer")))
    for partition in range(3):
        with pytest.raises(LogError, match="no answer"):
            lookups.one("t", "id", partition, EARLIEST)

    assert lookups.failures == failures


def test_topic_that_is_missing_is_no_failure_of_the_connection() -> None:
    lookups = Counted(Cluster(NO_TOPIC))
    with pytest.raises(UnknownTopic):
        lookups.one("t", "id", 0, EARLIEST)

    assert lookups.failures == 0


def test_offset_of_a_time_is_asked_for_where_the_latest_came() -> None:
    """A leader that hangs is waited for once."""
    cluster = Cluster(Described("id", frozenset(range(4))))
    lookups = Counted(cluster)

    assert lookups.one("t", "id", 0, 1000) == 7
    with pytest.raises(LogError, match="no answer"):
        lookups.one("t", "id", 1, 1000)
    assert cluster.asked[:2] == [([0, 1, 2, 3], LATEST), ([0, 2], 1000)]


def test_while_the_controller_is_mute_a_broker_names_the_leaders_first(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may be new; and a broker that answers has accepted the credentials."""
    asked: list[str] = []
    timeouts: list[float] = []

    def offsets(specs: object, isolation_level: object, request_timeout: float) -> dict[str, object]:
        asked.append("offsets")
        timeouts.append(request_timeout)
        return {}

    client = SimpleNamespace(
        list_topics=lambda topic, timeout: asked.append(f"leaders of {topic}"), list_offsets=offsets
    )
    monkeypatch.undo()
    monkeypatch.setattr(requests, "_asking", lambda: client)

    requests.offsets({("t", 0): LATEST})
    assert not requests.is_accepted
    requests.is_mute = True
    requests.offsets({("t", 0): LATEST})

    assert asked == ["offsets", "leaders of t", "offsets"]
    assert requests.is_accepted
    assert timeouts[0] > 3 and 2 * timeouts[0] < ANSWER_TIMEOUT_S, "it ends by itself, with the answers that came"


@pytest.mark.long
def test_leaders_that_a_hanging_broker_does_not_name_are_asked_for_by_a_new_client(requests: Requests) -> None:
    asked = requests._asking()
    fails(requests.offsets({("t", 0): LATEST}), ("t", 0))
    assert requests._asking() is asked, "it may still be connecting"

    requests.is_accepted = True
    fails(requests.offsets({("t", 0): LATEST}), ("t", 0))

    assert requests._asking() is not asked
