"""Requests to Kafka whose brokers do not answer: librdkafka's own client, without a broker."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import confluent_kafka as ck
import pytest

from consumer.logs import LogError
from consumer.logs.kafka import requests as module
from consumer.logs.kafka.offsets import Questions
from consumer.logs.kafka.options import kafka_options
from consumer.logs.kafka.requests import EARLIEST, LATEST, Described, Requests


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """To a broker that accepts connections, and never answers."""
    for timeout in ("REQUEST_TIMEOUT_S", "LOOKUP_TIMEOUT_S"):
        monkeypatch.setattr(module, timeout, 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Requests(f"127.0.0.1:{server.getsockname()[1]}", kafka_options({}, {}))
        yield found
        found.close()


def test_request_of_a_closed_client_ends_with_an_error(requests: Requests) -> None:
    pending = requests.offsets({("t", 0): LATEST})
    requests.close()
    gc.collect()

    assert pending.wait(10)
    assert isinstance(pending.results()["t", 0], LogError)


def test_controller_that_does_not_answer_is_connected_anew(requests: Requests) -> None:
    asked = []
    for _ in range(3):
        asked.append(requests._asking())
        pending = requests.describe(["t"])
        assert pending.wait(10)
        assert isinstance(pending.results()["t"], LogError)

    assert len(set(map(id, asked))) == 3
    assert requests.is_mute


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


def test_failure_that_is_remembered_is_no_second_one(requests: Requests) -> None:
    """Two failures of a client that no broker accepts are a refusal, for half a minute."""
    failures = 0

    def client(has_failed: bool) -> Requests:
        nonlocal failures
        failures += has_failed
        return requests

    lookups = Questions(client)
    for partition in range(3):
        with pytest.raises(LogError):
            lookups.one("t", "id", partition, EARLIEST)

    assert failures == 1


def test_offsets_are_asked_for_once_a_new_client_is_connected(
    requests: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the controller does not answer clients are new, and look for leaders again after three seconds."""
    asked: list[str] = []
    client = SimpleNamespace(
        list_topics=lambda topic, timeout: asked.append(f"leaders of {topic}"),
        list_offsets=lambda specs, **_: asked.append("offsets") or {},
    )
    monkeypatch.setattr(requests, "_asking", lambda: client)

    requests.offsets({("t", 0): LATEST})
    requests.is_mute = True
    requests.offsets({("t", 0): LATEST})

    assert asked == ["offsets", "leaders of t", "offsets"]
