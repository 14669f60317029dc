"""Requests to Kafka without an answer, the topics that ZooKeeper knows meanwhile, and the health of the brokers."""

from __future__ import annotations

import gc
import json
import logging
import socket
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import Mock

import confluent_kafka as ck
import pytest

from tests.property.tree import MemoryTree
from tests.support.wait import eventually
from zk_group.consumer.logs.base import LogError, OffsetAndTimestamp, UnknownTopic
from zk_group.consumer.logs.kafka import requests as module
from zk_group.consumer.logs.kafka.client import BrokerStats, Place, parsed_stats
from zk_group.consumer.logs.kafka.connection import ABSENT_S, Health, TopicRegistry
from zk_group.consumer.logs.kafka.options import kafka_options
from zk_group.consumer.logs.kafka.requests import (
    ANSWER_TIMEOUT_S,
    EARLIEST,
    LATEST,
    NO_TOPIC,
    Described,
    Pending,
    Requests,
    Unanswered,
)
from zk_group.consumer.logs.kafka.topics import Questions
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.errors import StoreError
from zk_group.coordinator.zk.store import Create, Store
from zk_group.coordinator.zk.znodes.paths import Brokers

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


def described(requests: Requests, monkeypatch: pytest.MonkeyPatch, answer: object) -> Described | LogError:
    """What is described of a topic when the controller answers so."""
    future: Future[Any] = Future()
    future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)
    asked = SimpleNamespace(describe_topics=lambda topics, request_timeout: {"t": future})
    monkeypatch.setattr(requests, "_asking", lambda: asked)
    return requests.describe(["t"]).results()["t"]


def test_leader_that_is_named_without_its_address_has_none(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just after its death: the last known address stays."""
    leaders = [ck.Node(0, "h", 9092), ck.Node(2, None, 0), None]
    partitions = [SimpleNamespace(id=number, leader=leader) for number, leader in enumerate(leaders)]

    found = described(requests, monkeypatch, SimpleNamespace(partitions=partitions, topic_id=None))

    assert isinstance(found, Described) and found.leaders == {0: "h:9092"}


@pytest.mark.parametrize("code", [ck.KafkaError.UNKNOWN_TOPIC_OR_PART, ck.KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_erring_controller_accepted_credentials(requests: Requests, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    requests.is_mute = True

    found = described(requests, monkeypatch, ck.KafkaException(ck.KafkaError(code)))

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


@pytest.mark.parametrize(
    ("answer", "remembered_s", "failures"),
    [(Unanswered("no answer"), 600, 1), (Unanswered("no answer"), 0, 3), (NO_TOPIC, 600, 0)],
    ids=["a remembered failure is no second one", "each is one", "a missing topic is none"],
)
def test_failures_of_the_connection_are_counted(
    monkeypatch: pytest.MonkeyPatch, answer: Described | LogError, remembered_s: float, failures: int
) -> None:
    monkeypatch.setattr("zk_group.consumer.logs.kafka.topics.AWAY_S", remembered_s)
    connect = Mock(return_value=Cluster(answer))
    lookups = Questions(connect)
    for partition in range(3):
        with pytest.raises(UnknownTopic if answer is NO_TOPIC else Unanswered):
            lookups.one("t", "id", partition, EARLIEST)

    assert sum(call.args[0] for call in connect.call_args_list) == failures, "two are a refusal, for half a minute"


def test_offset_of_a_time_is_asked_for_where_the_latest_came() -> None:
    """A leader that hangs is waited for once."""
    cluster = Cluster(Described("id", frozenset(range(4))))
    lookups = Questions(Mock(return_value=cluster))

    assert lookups.one("t", "id", 0, 1000) == 7
    with pytest.raises(LogError, match="no answer"):
        lookups.one("t", "id", 1, 1000)
    assert cluster.asked[:2] == [([0, 1, 2, 3], LATEST), ([0, 2], 1000)]


def test_beside_a_mute_controller_brokers_name_the_leaders(requests: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may be new; and a broker that answers has accepted the credentials."""
    client = Mock(**{"list_offsets.return_value": {}})
    monkeypatch.undo()
    monkeypatch.setattr(requests, "_asking", lambda: client)

    requests.offsets({("t", 0): LATEST})
    assert not requests.is_accepted
    requests.is_mute = True
    requests.offsets({("t", 0): LATEST})

    assert [name for name, *_ in client.method_calls] == ["list_offsets", "list_topics", "list_offsets"]
    assert client.list_topics.call_args.args[0] == "t" and requests.is_accepted
    timeout_s = client.list_offsets.call_args.kwargs["request_timeout"]
    assert timeout_s > 3 and 2 * timeout_s < ANSWER_TIMEOUT_S, "it ends by itself, with the answers that came"


@pytest.mark.long
def test_leaders_that_a_hanging_broker_does_not_name_are_asked_for_by_a_new_client(requests: Requests) -> None:
    asked = requests._asking()
    fails(requests.offsets({("t", 0): LATEST}), ("t", 0))
    assert requests._asking() is asked, "it may still be connecting"

    requests.is_accepted = True
    fails(requests.offsets({("t", 0): LATEST}), ("t", 0))

    assert requests._asking() is not asked


# ---- topics as brokers have registered them: what confirms topics while no controller answers


BROKERS = Brokers()


class Ensemble:
    """A tree, and how often a session was opened in it."""

    def __init__(self, *, has_brokers: bool = True) -> None:
        self.tree = MemoryTree()
        self.opened = 0
        store = self.tree.open()
        self.id = create_topic(store, BROKERS, "flights", 2).id
        if has_brokers:
            self.register(store)

    def register(self, store: Store) -> None:
        for path in (BROKERS.ids, BROKERS.id("0")):
            store.commit([Create(path, b"{}")])

    def open(self) -> Store:
        self.opened += 1
        return self.tree.open()


def registered(registry: TopicRegistry, *topics: str) -> dict[str, Described | LogError]:
    pending = registry.describe(topics)
    assert pending.wait(10)
    return pending.results()


def test_topics_are_described_as_they_are_registered_in_one_session() -> None:
    """One that cannot be read is not described, and the others are."""
    ensemble = Ensemble()
    ensemble.tree.put(BROKERS.topic("bad"), b"nonsense")
    registry = TopicRegistry(ensemble.open, BROKERS)

    for _ in range(2):
        found = registered(registry, "flights", "no-such", "bad")
        assert BROKERS.topic("bad") in str(found.pop("bad"))
        assert found == {"flights": Described(ensemble.id, frozenset({0, 1})), "no-such": NO_TOPIC}
    assert ensemble.opened == 1


def test_topics_without_brokers_are_not_described_and_rarely_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were written by others, for example by a sync from Kafka without ZooKeeper."""
    now = 1000.0
    monkeypatch.setattr("zk_group.consumer.logs.kafka.connection.time", SimpleNamespace(monotonic=lambda: now))
    ensemble = Ensemble(has_brokers=False)
    registry = TopicRegistry(ensemble.open, BROKERS)

    for _ in range(5):
        assert "no broker of Kafka is registered" in str(registered(registry, "flights")["flights"])
    assert ensemble.opened == 1

    ensemble.register(ensemble.tree.open())
    now += ABSENT_S
    assert registered(registry, "flights") == {"flights": Described(ensemble.id, frozenset({0, 1}))}


def test_session_that_does_not_answer_is_replaced_by_another() -> None:
    registry = TopicRegistry(Mock(side_effect=[StoreError("no answer"), Ensemble().open()]), BROKERS)

    assert isinstance(registered(registry, "flights")["flights"], LogError)
    assert isinstance(registered(registry, "flights")["flights"], Described)


def test_closed_registry_opens_no_session_and_ends_the_one_that_is_in_use() -> None:
    ensemble, stores = Ensemble(), list[Store]()

    def opened() -> Store:
        stores.append(ensemble.open())
        registry.close()
        return stores[-1]

    registry = TopicRegistry(opened, BROKERS)

    registered(registry, "flights")
    assert isinstance(registered(registry, "flights")["flights"], LogError)
    eventually(lambda: stores[0].lost, 10, "its session has ended")
    assert len(stores) == 1


def test_lost_session_is_ended_before_another_is_opened() -> None:
    ensemble = Ensemble()
    stores = [Mock(wraps=ensemble.open(), lost=False) for _ in range(2)]
    registry = TopicRegistry(Mock(side_effect=stores), BROKERS)

    registered(registry, "flights")
    stores[0].lost = True
    registered(registry, "flights")

    assert [store.close.called for store in stores] == [True, False]


def test_failure_of_any_kind_is_an_answer() -> None:
    failing = TopicRegistry(Mock(side_effect=RuntimeError("can't start new thread")), BROKERS)

    found = registered(failing, "flights")["flights"]

    assert isinstance(found, Unanswered), "lookups of other topics wait for nothing"
    assert "can't start new thread" in str(found)


# ---- health of the brokers, from librdkafka's statistics as it writes them


A, B = ("t", 0), ("t", 1)


def broker(name: str, state: str = "UP", *leads: Place, source: str = "learned", **fields: int) -> dict[str, Any]:
    """A broker as in librdkafka's statistics; times are microseconds."""
    return {
        "name": name,
        "nodeid": 1,
        "nodename": name.partition("/")[0],
        "source": source,
        "state": state,
        "stateage": 9_000_000,
        "waitresp_cnt": 1,
        "txidle": 60_000,
        "rxidle": 60_000,
        "req": {"Fetch": 20, "ListOffsets": 0},
        "toppars": {f"{topic}-{number}": {"topic": topic, "partition": number} for topic, number in leads},
    } | fields


def stats(*brokers: Mapping[str, Any]) -> str:
    whole = {
        "name": 'zk-group-coordinator#consumer-1 "brokers":{',
        "client_id": "zk-group-coordinator",
        "type": "consumer",
        "ts": 5016483227792,
        "brokers": {each["name"]: each for each in brokers},
        "topics": {"t": {"topic": "t", "partitions": {"0": {"brokers": {}}}}},
        "cgrp": {"state": "up"},
    }
    return json.dumps(whole, separators=(",", ":"))


def test_broker_that_answers_is_up_and_leads_its_partitions() -> None:
    """The connection to the coordinator of groups is no broker."""
    others = broker("GroupCoordinator", "UP", source="logical", rxidle=290_000_000)
    text = stats(broker("a:1/1", "UP", A), broker("b:2/2", "TRY_CONNECT", B, rxidle=-1, waitresp_cnt=0), others)

    assert parsed_stats(text, 0.1) == [
        BrokerStats("a:1", True, 0.0, frozenset({A})),
        BrokerStats("b:2", False, 0.0, frozenset({B})),
    ]


@pytest.mark.parametrize(
    ("received", "sent", "waiting", "fetch_s", "is_up"),
    [
        (4_900_000, 4_900_000, 1, 0.1, True),
        (5_200_000, 5_200_000, 1, 0.1, False),
        (60_000_000, 60_000_000, 0, 0.1, True),
        (60_000_000, 1000, 1, 0.1, True),
        (-1, -1, 0, 0.1, True),
        (29_000_000, 29_000_000, 1, 30.0, True),
    ],
    ids=["slow", "hung", "idle", "asked after it was idle", "new", "a fetch that waits for records"],
)
def test_broker_without_an_answer_is_down(received: int, sent: int, waiting: int, fetch_s: float, is_up: bool) -> None:
    some = broker("a:1/1", "UP", A, rxidle=received, txidle=sent, waitresp_cnt=waiting)
    (found,) = parsed_stats(stats(some), fetch_s)

    assert found.is_up == is_up


A_UP, B_UP = broker("a:1/1", "UP", A), broker("b:2/2", "UP", B)
BOTH_UP, OF_BOTH = broker("a:1/1", "UP", A, B), (A, B)
B_CONNECTS = broker("b:2/2", "TRY_CONNECT", B, waitresp_cnt=0, rxidle=-1)
B_INIT = broker("b:2/2", "INIT", B, waitresp_cnt=0, rxidle=-1)
A_UNUSED = broker("a:1/1", "INIT", waitresp_cnt=0, rxidle=-1, txidle=-1)
ALL_DOWN = [broker(f"{name}/bootstrap", "TRY_CONNECT", source="configured", rxidle=-1) for name in ("a:1", "b:2")]
GONE = "Kafka broker unavailable, retrying: broker=b:2 reason=Connection refused"


def silent(name: str, place: Place, seconds: int = 9) -> dict[str, Any]:
    return broker(name, "UP", place, rxidle=seconds * 1_000_000, txidle=seconds * 1_000_000)


Step = tuple[Any, ...]
"""Seconds, with these brokers, and the unavailable leaders after them; other partitions that are assigned meanwhile."""
CASES: dict[str, tuple[tuple[Place, ...], list[Step], list[str], int]] = {
    # Metadata forgets it after three: its partition has no leader, and it is not in the statistics.
    "killed leader is unavailable after five seconds and logged once": (
        OF_BOTH,
        [
            (3, [A_UP, B_UP], {}), (3, [A_UP, B_CONNECTS], {}), (2, [A_UP], {}), (58, [A_UP], {B: "b:2"}),
            (1, [A_UP, B_INIT], {B: "b:2"}), (3, [A_UP, B_UP], {}),
        ],
        [GONE, "Kafka broker available: broker=b:2"], 0,
    ),
    "hung leader is unavailable as soon as it is silent for five seconds": (
        OF_BOTH,
        [
            (3, [A_UP, B_UP], {}),
            *((1, [A_UP, silent("b:2/2", B, second)], {B: "b:2"} if second >= 6 else {}) for second in range(1, 10)),
        ],
        ["Kafka broker unavailable, retrying: broker=b:2 reason=no answer for 6 s"], 0,
    ),
    "partition with another leader is available again": (
        OF_BOTH, [(3, [A_UP, B_UP], {}), (10, [A_UP], {B: "b:2"}), (1, [BOTH_UP], {})],
        [GONE, "Kafka broker replaced by other leaders: broker=b:2"], 0,
    ),
    "partition that never had a leader is reported so": (
        OF_BOTH, [(10, [A_UP], {B: ""})],
        ["Kafka broker unavailable, retrying: broker=none reason=the partition has no leader"], 0,
    ),
    "short restart of a broker is not reported": (
        OF_BOTH, [(3, [A_UP, B_UP], {}), (4, [A_UP], {})] * 3 + [(3, [A_UP, B_UP], {})], [], 0,
    ),
    "partition that is not fetched has no unavailable leader": (
        (A,), [(3, [A_UP, B_UP], {}, B), (10, [A_UP], {B: "b:2"}, B), (1, [A_UP], {})],
        [GONE, "Kafka broker replaced by other leaders: broker=b:2"], 0,
    ),
    # librdkafka drops all that it has learned then, and begins again with the given servers.
    "outage of all brokers is logged once without their partitions": (
        OF_BOTH, [(3, [A_UP, B_UP], {}), (30, ALL_DOWN, {}), (3, [A_UP, B_UP], {})],
        [
            "all Kafka brokers down, retrying: servers=a:1,b:2 outages=1 reason=Connection refused",
            "Kafka brokers available: servers=a:1,b:2 away_s=30.0",
        ], 1,
    ),
    "two hung brokers are an outage": (
        OF_BOTH, [(3, [A_UP, B_UP], {}), (1, [silent("a:1/1", A), silent("b:2/2", B)], {})],
        ["all Kafka brokers down, retrying: servers=a:1,b:2 outages=1 reason=no answer for 9 s"], 1,
    ),
    "outage is not seen by a reader without partitions": ((), [(10, [A_UNUSED], {})], [], 0),
    # A broker that leads no assigned partition has no connection.
    "hung leader is no outage while another broker was not needed yet": (
        (B,), [(3, [A_UNUSED, B_UP], {}), (3, [A_UNUSED, silent("b:2/2", B)], {B: "b:2"})],
        ["Kafka broker unavailable, retrying: broker=b:2 reason=no answer for 9 s"], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("assigned", "steps", "messages", "outages"), CASES.values(), ids=CASES)
def test_health_follows_the_statistics(
    assigned: tuple[Place, ...], steps: list[Step], messages: list[str], outages: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics come once a second; after each step these partitions are without their leaders."""
    caplog.set_level(logging.INFO)
    health, now = Health(), 1000.0
    for seconds, brokers, unavailable, *others in steps:
        for _ in range(seconds):
            now += 1
            reasons = {"b:2": "Connection refused"}
            health.update("a:1,b:2", parsed_stats(stats(*brokers), 0.1), (*assigned, *others), reasons, now)
        assert health.unavailable == unavailable

    assert caplog.messages == messages
    assert health.outages == outages
