"""Kafka without a broker: options, servers, the brokers' znodes, and records as Arrow batches."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Uuid
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wait import eventually
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.logs.base import LOG_SCHEMA, MAX_TIMESTAMP_MS, LogError, UnknownTopic
from zk_group.consumer.logs.kafka.client import Columns, KafkaClient, runs
from zk_group.consumer.logs.kafka.connection import Connection
from zk_group.consumer.logs.kafka.options import bootstrap_servers, kafka_options, without_secrets
from zk_group.consumer.logs.kafka.requests import Described, topic_id_text
from zk_group.consumer.logs.kafka.topics import TopicLookup, checked
from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.values import load
from zk_group.coordinator.zk.znodes.records import addresses

from .modelled_kafka import columns


def test_options_pass_through_with_their_prefix_and_from_the_environment() -> None:
    env = {"ZK_GROUP_KAFKA_SASL_PASSWORD": "pw", "ZK_GROUP_KAFKA_SECURITY_PROTOCOL": "ssl", "ZK_GROUP_ZK": "x"}
    found = kafka_options({"kafka.security.protocol": "sasl_ssl", "fetch.min.bytes": "7"}, env)

    assert found["security.protocol"] == "sasl_ssl"
    assert (found["sasl.password"], found["fetch.min.bytes"]) == ("pw", "7")
    assert (found["isolation.level"], found["enable.auto.commit"]) == ("read_committed", "false")
    assert "zk" not in found


@pytest.mark.parametrize("module", ["confluent_kafka", "numpy"])
@pytest.mark.long
def test_missing_dependency_of_kafka_is_named_with_the_extra_that_has_it(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; from zk_group.consumer.cli import main; main()"
    arguments = ["run", "--zk", "127.0.0.1:1", "--group", "g", "--topics", "t", "--log-dir", "kafka://127.0.0.1:1"]
    ran = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr.count("\n")) == (69, 1)
    assert f"{module}, with which Kafka is read, is not installed: pip install" in ran.stderr


def test_secret_may_be_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from a file\n")

    assert kafka_options({}, {"ZK_GROUP_KAFKA_SASL_PASSWORD_FILE": str(file)})["sasl.password"] == "from a file"
    with pytest.raises(UsageError, match="cannot be read"):
        kafka_options({"sasl.password.file": str(tmp_path / "none")}, {})


@pytest.mark.parametrize(
    "name", ["group.id", "enable.auto.commit", "auto.offset.reset", "bootstrap.servers", "plugin.library.paths"]
)
def test_an_option_that_would_break_a_rule_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UsageError, match=rf"kafka\.{name} cannot be set: .+"):
        kafka_options({f"kafka.{name}": "x"}, {})


def test_no_secret_is_shown() -> None:
    """Every key and every password is one."""
    private = "sasl.oauthbearer.assertion.private.key"
    names = ("sasl.password", "ssl.key.password", f"{private}.passphrase", f"{private}.pem", "ssl.key.pem")
    options = {name: f"pw-{number}" for number, name in enumerate(names)} | {"sasl.username": "alice"}
    config = ConsumerConfig(zk="h:1", group="g", kafka=options)

    assert without_secrets("alice said pw-0 pw-1 pw-2 pw-3 pw-4", options) == "alice said *** *** *** *** ***"
    assert "pw-" not in repr(config) + repr(config.kafka_place)


PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("name", "secret", "shown"),
    [
        *(
            ("ssl.key.pem", PEM, pem)
            for pem in (PEM, PEM.strip(), " ".join(PEM.split()), PEM.splitlines()[1], PEM.replace("\n", "\r\n"))
        ),
        ("ssl.key.pem", PEM, "  " + PEM * 2),
        ("sasl.password", "open  sesame", "open  sesame"),
    ],
)
def test_a_secret_is_masked_with_any_line_breaks_and_spaces(name: str, secret: str, shown: str) -> None:
    """Nor a line of it; and messages of librdkafka are printed on one line."""
    with pytest.raises(UsageError, match=r"\*\*\*") as raised:
        KafkaClient("h:1", {"group.id": "g", name: secret, f"no.such.option.{shown}": "1"})

    text = str(raised.value)
    assert "\n" not in text and "sesame" not in text
    assert not any(word in text for word in secret.split() if len(word) > 8)


def test_invalid_value_in_place_of_an_option_table_is_not_printed() -> None:
    with pytest.raises(UsageError, match=r"kafka must be a table of names and values$"):
        load(ConsumerConfig, {"kafka": "sasl.password=pw-1", "zk": "zk:2181", "group": "g"})


def test_dotted_names_in_a_file_stay_whole(tmp_path: Path) -> None:
    file = tmp_path / "consumer.toml"
    file.write_text('zk = "h:1"\ngroup = "g"\nkafka.security.protocol = "ssl"\nkafka.check.crcs = false\n')

    assert load(ConsumerConfig, {}, file, {}).kafka == {"security.protocol": "ssl", "check.crcs": "false"}


def test_servers_are_read_from_the_url_or_the_option() -> None:
    assert bootstrap_servers("kafka://a:1,b:2") == "a:1,b:2"
    assert bootstrap_servers("kafka:", "a:1") == "a:1"
    assert bootstrap_servers("kafka:") == ""
    for wrong in ("kafka:a:1", "kafka://a", "kafka://a:b", "kafka://user:pw@a:1"):
        with pytest.raises(UsageError, match="HOST:PORT"):
            bootstrap_servers(wrong)


BROKER = {
    "listener_security_protocol_map": {"INSIDE": "PLAINTEXT", "OUTSIDE": "SASL_SSL"},
    "endpoints": ["INSIDE://10.0.0.1:9092", "OUTSIDE://kafka.example:9093", "INSIDE://[::1]:9094"],
    "host": "10.0.0.1",
    "port": 9092,
    "version": 5,
}


def test_broker_address_is_that_of_the_listener_with_the_protocol() -> None:
    data = json.dumps(BROKER).encode()

    assert addresses("/brokers/ids/0", data) == ["10.0.0.1:9092", "[::1]:9094"]
    assert addresses("/brokers/ids/0", data, "sasl_ssl") == ["kafka.example:9093"]


@pytest.mark.parametrize("data", [b"", b"{}x", b'{"endpoints":[7]}', b'{"endpoints":["PLAINTEXT://nowhere"]}'])
def test_malformed_znode_of_a_broker_is_bad_data(data: bytes) -> None:
    with pytest.raises(BadData, match="/brokers/ids/0"):
        addresses("/brokers/ids/0", data)


def test_topics_are_identified_by_id_if_kafka_and_zookeeper_have_one() -> None:
    some = frozenset({0})
    assert checked("t", "id", Described("id", some)).partitions == some
    assert checked("t", "czxid-1f", Described("id", some)).partitions == some
    assert checked("t", "id", Described("", some)).partitions == some
    with pytest.raises(UnknownTopic, match="another topic of this name, with id new"):
        checked("t", "id", Described("new", some))


@pytest.mark.parametrize("text", ["9GyqUAj3RpKyN1PJfj9--g", "_____wAAAAD_____AAAAAQ", "AAAAAAAAAAEAAAAAAAAAAQ"])
def test_an_id_is_written_as_kafka_writes_it(text: str) -> None:
    data = urlsafe_b64decode(text + "==")
    halves = [int.from_bytes(data[at : at + 8], "big", signed=True) for at in (0, 8)]

    assert topic_id_text(Uuid(*halves)) == text
    assert (topic_id_text(Uuid(0, 0)), topic_id_text(None)) == ("", "")


def answering(*answers: Described | LogError) -> Any:
    """In place of a client of Kafka, with its answers to every query about topic t."""
    pending = Mock(**{"wait.return_value": True, "results.side_effect": [{"t": each} for each in answers]})
    return Mock(is_mute=False, **{"describe.return_value": pending})


def test_unanswered_query_reports_no_topic_and_no_broker() -> None:
    there = Described("id", frozenset({0}), "")
    topics = TopicLookup(answering(there, LogError("timed out"), there))
    known = topics.of("t", "id")

    results = []
    for poll, now in enumerate((10.0, 20.0, 30.0)):
        topics.ask({"t": poll}, poll, now)
        results.append((topics.collect(now + 5), topics.answered))

    assert results == [([known], 10.0), ([], 10.0), ([known], 30.0)]


def test_topic_is_confirmed_at_intervals_while_the_reader_is_busy() -> None:
    topics = TopicLookup(answering(*[Described("id", frozenset({0}))] * 4))
    known = topics.of("t", "id")

    verified = []
    for poll, (now, is_busy) in enumerate([(10.0, True), (10.019, True), (10.0195, False), (10.041, True)]):
        topics.ask({"t": poll}, poll, now, is_busy)
        topics.collect(now)
        verified.append(known.verified)

    assert verified == [0, 0, 2, 3]


def test_query_that_could_not_be_sent_is_retried() -> None:
    """The client for queries cannot be created while a certificate is replaced."""
    answers = answering(Described("", frozenset(), "Kafka has no such topic"))
    topics = TopicLookup(answers)
    known = topics.of("t", "id")
    answers.describe.side_effect = UsageError("a certificate cannot be read")
    with pytest.raises(UsageError):
        topics.ask({}, 0, 10.0)
    answers.describe.side_effect = None
    topics.ask({}, 0, 11.0)

    assert topics.collect(11.1) == [known]
    assert known.missing is not None


def test_lookup_whose_thread_could_not_be_started_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.consumer.logs.kafka.connection.KafkaClient", Mock())
    connection = Connection(lambda: "a:1", {})
    connection.discard()
    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        connection.client(10.0)

    assert connection.client(11.0) is None
    eventually(lambda: connection.client(21.0) is not None, 10, "the brokers are looked up")


BROKEN = "ssl://h:1/bootstrap: SSL handshake failed: error:0A00010B:SSL routines::wrong version number"
NOT_VERIFIED = "ssl://h:2/2: SSL handshake failed: error:0A000086:SSL routines::certificate verify failed"
REFUSED = "sasl_plaintext://h:3/3: SASL authentication error: Authentication failed (after 302ms in state AUTH_REQ)"


@pytest.fixture
def client() -> Iterator[KafkaClient]:
    with closing(KafkaClient("h:1", {"group.id": "g", "log_level": "0"})) as some:
        yield some


@pytest.mark.parametrize(
    ("code", "text", "is_refusal"),
    [
        (KafkaError._SSL, BROKEN, False),
        (KafkaError._TRANSPORT, "h:1/1: Connect failed", False),
        (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down", False),
        (KafkaError._SSL, NOT_VERIFIED, True),
        (KafkaError._AUTHENTICATION, REFUSED, True),
    ],
)
def test_bad_certificate_and_wrong_password_refuse(client: KafkaClient, code: int, text: str, is_refusal: bool) -> None:
    client._on_error(KafkaError(code, text))

    assert client.refusal == (text if is_refusal else "")


def test_unavailable_leader_is_reported_with_its_own_last_error(client: KafkaClient) -> None:
    client._on_error(KafkaError(KafkaError._TRANSPORT, "h:1/1: Connect failed"))
    client._on_error(KafkaError(KafkaError._AUTHENTICATION, REFUSED))

    assert str(client.unavailable("h:1")) == "Kafka broker h:1, its leader, is unavailable: h:1/1: Connect failed"
    assert str(client.unavailable("h:2")) == "Kafka broker h:2, its leader, is unavailable"
    assert str(client.unavailable("h:3")).startswith(f"Kafka at h:3 refuses the credentials: {REFUSED}; set security.")
    assert "no leader" in str(client.unavailable(""))
    client._on_error(KafkaError(KafkaError._TRANSPORT, "sasl_plaintext://h:3/3: Connect failed"))
    assert not client.refusal


def test_refusal_is_over_after_a_minute(client: KafkaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("zk_group.consumer.logs.kafka.requests.time", SimpleNamespace(monotonic=lambda: now))
    client._on_error(KafkaError(KafkaError._AUTHENTICATION, REFUSED))
    now = 1059.0
    assert client.refusal
    now = 1061.0
    assert not client.refusal


def test_errors_of_any_number_of_brokers_are_bounded(client: KafkaClient) -> None:
    for number in range(10_000):
        client._on_error(KafkaError(KafkaError._TRANSPORT, f"h:{number}/{number}: Connect failed"))

    assert len(client.errors) <= 100


# ---- columns of librdkafka's records as Arrow batches


NAMES, DATA = st.text(max_size=3), st.none() | st.binary(max_size=9)
RECORDS = st.tuples(
    st.sampled_from(["a", "b\u00fc"]),
    st.integers(0, 2),
    DATA,
    DATA,
    st.integers(0, 2),
    st.integers(-1, MAX_TIMESTAMP_MS + 1) | st.just(2**62),
    st.none() | st.lists(st.tuples(NAMES, DATA), max_size=3),
)


@given(st.lists(RECORDS, min_size=1, max_size=20))
@pytest.mark.long
def test_batches_are_equal_to_those_of_single_records(records: list[tuple[Any, ...]]) -> None:
    topics, partitions, keys, values, kinds, times, headers = (list(column) for column in zip(*records, strict=True))
    numbers = np.array(partitions, np.int32), np.arange(len(records)) + 7
    stamps = np.array([kinds, times], np.int64).T
    found = list(runs(Columns(topics, *numbers, keys, values, stamps, headers)))

    expected = [
        {
            "key": key,
            "value": value,
            "topic": topic,
            "partition": partition,
            "offset": number + 7,
            "timestamp": 1000 * time if 0 <= time <= MAX_TIMESTAMP_MS else None,
            "timestampType": kind - 1,
            "headers": [{"key": name, "value": data} for name, data in row] if row else None,
        }
        for number, (topic, partition, key, value, kind, time, row) in enumerate(records)
    ]
    for run in found:
        run.batch.validate(full=True)
    assert pa.Table.from_batches([run.batch for run in found]) == pa.Table.from_pylist(expected, LOG_SCHEMA)


def test_columns_are_cut_where_the_topic_or_the_partition_changes() -> None:
    found = list(runs(columns(["a", "a", "a", "b", "b", "a"], [0, 0, 1, 1, 1, 0], [5, 7, 0, 0, 1, 8])))

    assert [(run.topic, run.partition, run.first, run.next) for run in found] == [
        ("a", 0, 5, 8),
        ("a", 1, 0, 1),
        ("b", 1, 0, 2),
        ("a", 0, 8, 9),
    ]
    assert [run.batch.column("offset").to_pylist() for run in found] == [[5, 7], [0], [0, 1], [8]]


def test_columns_larger_than_an_array_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.consumer.logs.kafka.client.MAX_COLUMN_BYTES", 10)

    with pytest.raises(pa.ArrowCapacityError, match="12 bytes"):
        list(runs(columns(["a"], [0], [0], [b"x" * 12])))


def test_records_become_batches_without_pandas() -> None:
    code = """
import sys
import numpy as np
from zk_group.consumer.logs.kafka.client import Columns, runs
numbers = np.array([0, 0, 1], np.int32), np.arange(3)
stamps = np.array([(1, 5), (0, -1), (1, 5)])
some = Columns(["a", "a", "b"], *numbers, [None, b"k", b""], [b"v", None, b"w"], stamps, [None, [("h", b"x")], []])
assert len(list(runs(some))) == 2
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
