"""Kafka as a log, on a real broker: the contract of `Log`, and what Kafka has that the embedded log has not."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from tests.support.kafka import USERS, Kafka, fetched, reader, refused
from tests.support.wait import eventually, within
from zk_group.consumer.logs import KafkaPlace, open_log
from zk_group.consumer.logs.base import Log, LogError, OffsetOutOfRange, TopicIdPartition, UnknownTopic
from zk_group.consumer.logs.kafka.client import KafkaClient
from zk_group.consumer.logs.kafka.source import KafkaLog


def values(rows: list[dict[str, object]]) -> list[object]:
    return [row["value"] for row in rows]


def numbered(count: int, prefix: str = "v") -> list[bytes]:
    return [f"{prefix}{number}".encode() for number in range(count)]


def test_records_are_fetched_in_order_from_any_offset_within_the_limits(kafka: Kafka) -> None:
    topic, topic_id = kafka.new_topic(2)
    kafka.write(topic, numbered(10))

    with kafka.log() as log:
        assert values(fetched(log, topic, topic_id, upto=10)) == numbered(10)
        assert values(fetched(log, topic, topic_id, 7, upto=10)) == numbered(10)[7:]
        assert [row["offset"] for row in fetched(log, topic, topic_id, 2, upto=6)] == [2, 3, 4, 5]
        one = eventually(lambda: reader(log).look(topic, topic_id, 0, 3, 1), 10, "a record over the bound is fetched")
        assert len(one) == 1
        assert (log.earliest(topic, topic_id, 0), log.latest(topic, topic_id, 0)) == (0, 10)
        assert (log.earliest(topic, topic_id, 1), log.latest(topic, topic_id, 1)) == (0, 0)


def test_key_headers_and_timestamp_of_a_record_are_delivered_unchanged(kafka: Kafka) -> None:
    topic, stamped = kafka.name(), kafka.name()
    ids = kafka.topic(topic), kafka.topic(stamped, message_timestamp_type="LogAppendTime")
    kafka.write(
        topic, [None], key=b"\xff\xfe no UTF-8", timestamp=1_500_000_000_123, headers=[("h", b"1"), ("h", None)]
    )
    kafka.write(topic, [b"", b"x"], timestamp=1_500_000_000_124)
    kafka.write(stamped, [b"late"], timestamp=1)

    with kafka.log() as log:
        null, empty, plain = fetched(log, topic, ids[0], upto=3)
        late = fetched(log, stamped, ids[1], upto=1)[0]

    assert (null["key"], null["value"]) == (b"\xff\xfe no UTF-8", None)
    assert null["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (empty["key"], empty["value"], empty["headers"]) == (None, b"", None)
    assert [row["timestamp"].isoformat() for row in (null, plain)] == [
        "2017-07-14T02:40:00.123000+00:00",
        "2017-07-14T02:40:00.124000+00:00",
    ]
    assert [row["timestampType"] for row in (null, late)] == [0, 1]
    assert late["timestamp"].year > 2020
    assert (plain["topic"], plain["partition"], plain["offset"]) == (topic, 0, 2)


def test_an_offset_of_a_time_is_that_of_the_first_record_then_or_later(kafka: Kafka) -> None:
    topic, topic_id = kafka.new_topic()
    for number in range(3):
        kafka.write(topic, [b"x"], timestamp=1_500_000_000_000 + 1000 * number)

    with kafka.log() as log:
        found = [log.offset_for_timestamp(topic, topic_id, 0, 1_500_000_000_000 + ms) for ms in (-5, 0, 1, 1001, 2001)]
        records = [log.record_of_time(topic, topic_id, 0, 1_500_000_000_000 + ms) for ms in (-5, 1, 2001)]
        with pytest.raises(UnknownTopic):
            log.record_of_time(topic, "AAAAAAAAAAAAAAAAAAAAAA", 0, 1_500_000_000_000)

    assert found == [0, 0, 1, 2, 3]
    assert records == [(0, 1_500_000_000_000), (1, 1_500_000_001_000), None]


def test_only_committed_records_are_fetched_and_offsets_skip_the_others(kafka: Kafka) -> None:
    topic, topic_id = kafka.new_topic()
    kafka.transaction(topic, [b"a", b"b"])
    kafka.transaction(topic, [b"never"], commit=False)

    with kafka.log() as log:
        assert [(row["offset"], row["value"]) for row in fetched(log, topic, topic_id, upto=5)] == [
            (0, b"a"),
            (1, b"b"),
        ]
        assert log.latest(topic, topic_id, 0) == 5
        kafka.transaction(topic, [b"c"])
        assert [(row["offset"], row["value"]) for row in fetched(log, topic, topic_id, 5, upto=7)] == [(5, b"c")]


def test_offset_out_of_range_is_reported_with_the_valid_range(kafka: Kafka) -> None:
    topic, topic_id = kafka.new_topic()
    kafka.write(topic, numbered(5))

    with kafka.log() as log:
        error = refused(log, topic, topic_id, 9)
        assert isinstance(error, OffsetOutOfRange)
        assert "offset 9" in str(error)
        assert "0 to 5" in str(error)
        assert len(fetched(log, topic, topic_id, upto=5)) == 5


def test_records_of_a_recreated_topic_are_not_taken_for_the_old_ones(kafka: Kafka) -> None:
    """Also when it is longer at once than where the old one was read to: librdkafka alone would continue in it."""
    topic = kafka.name()
    old = kafka.topic(topic)
    kafka.write(topic, numbered(5))

    with kafka.log() as log:
        fetched(log, topic, old, upto=5)
        kafka.delete(topic)
        new = kafka.topic(topic)
        kafka.write(topic, numbered(20, "new"))
        assert isinstance(refused(log, topic, old, 5), UnknownTopic)
        assert values(fetched(log, topic, new, upto=20)) == numbered(20, "new")
        with pytest.raises(UnknownTopic):
            log.latest(topic, old, 0)


def test_missing_topic_is_waited_for_and_logged_once(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    topic = kafka.name()

    with kafka.log() as log, caplog.at_level(logging.INFO, "zk_group.consumer.logs"):
        for number in (0, 1, 0, 1):
            assert isinstance(refused(log, topic, "not-yet", partition=number), UnknownTopic)
        topic_id = kafka.topic(topic, 2)
        kafka.write(topic, numbered(3))
        assert len(fetched(log, topic, topic_id, upto=3)) == 3

    assert [record.msg.partition(":")[0] for record in caplog.records] == ["topic unavailable"]


def test_missing_partition_affects_no_other_and_is_fetched_once_it_exists(kafka: Kafka) -> None:
    topic, topic_id = kafka.new_topic()
    kafka.write(topic, numbered(3))

    with kafka.log() as log:
        assert "not this one" in str(refused(log, topic, topic_id, partition=1))
        assert len(fetched(log, topic, topic_id, upto=3)) == 3
        kafka.more_partitions(topic, 2)
        kafka.write(topic, numbered(2), partition=1)

        def look() -> bool:
            try:
                return len(reader(log).look(topic, topic_id, 1, 0)) == 2
            except LogError:
                return False

        eventually(look, 20, "the new partition is fetched")


def test_added_partition_is_fetched_at_once(kafka: Kafka) -> None:
    """librdkafka, which knows the topic, would look for it half a minute later."""
    topic, topic_id = kafka.new_topic()
    kafka.write(topic, numbered(1))

    with kafka.log() as log:
        fetched(log, topic, topic_id, upto=1)
        kafka.more_partitions(topic, 2)
        kafka.write(topic, numbered(2), partition=1)
        assert len(fetched(log, topic, topic_id, partition=1, upto=2, wait=within)) == 2


def test_a_record_larger_than_every_bound_is_delivered_alone(kafka: Kafka) -> None:
    topic, topic_id = kafka.new_topic(max_message_bytes="10000000")
    large = random.Random(1).randbytes(3_000_000)
    with_room = {"message.max.bytes": 10_000_000}
    kafka.write(topic, [b"before"])
    writer = type(kafka.producer)({"bootstrap.servers": kafka.servers, **with_room})
    writer.produce(topic, large, partition=0)
    assert writer.flush(30) == 0
    kafka.write(topic, [b"after"])

    with kafka.log(fetch_max_bytes="65536", max_partition_fetch_bytes="65536", message_max_bytes="65536") as log:
        fetched(log, topic, topic_id, upto=1, max_bytes=1000)
        found = eventually(lambda: reader(log).look(topic, topic_id, 0, 1, 1000), 20, "the large one is fetched")
        assert values(found) == [large]
        assert values(fetched(log, topic, topic_id, 2, upto=3)) == [b"after"]


def test_damaged_records_are_reported_and_later_ones_not_delivered_in_their_place(kafka: Kafka) -> None:
    topic, topic_id = kafka.new_topic()
    kafka.write(topic, [b"whole" * 20])
    kafka.write(topic, [b"spoilt" * 20])
    kafka.write(topic, [b"behind it" * 20])
    (file,) = Path(kafka.broker.directory, "data", f"{topic}-0").glob("*.log")
    data = file.read_bytes()
    with file.open("r+b") as written:
        written.seek(data.index(b"spoilt"))
        written.write(b"SPOILT")

    with kafka.log() as log:
        assert values(fetched(log, topic, topic_id, upto=1)) == [b"whole" * 20]
        error = refused(log, topic, topic_id, 1)
        assert "from offset 1 on are damaged" in str(error)


def test_record_with_a_non_text_header_name_loses_its_headers(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """No client that is at hand writes such a name: it is put into the broker's file, past its checksum."""
    topic, topic_id = kafka.new_topic()
    for name in ("first", "spoilt", "last"):
        kafka.write(topic, [name.encode()], headers=[(f"{name}-name", b"1")])
    (file,) = Path(kafka.broker.directory, "data", f"{topic}-0").glob("*.log")
    data = file.read_bytes()
    with file.open("r+b") as written:
        written.seek(data.index(b"spoilt-name"))
        written.write(b"\xff\xfe")

    with kafka.log(check_crcs="false") as log:
        rows = fetched(log, topic, topic_id, upto=3)

    assert values(rows) == [b"first", b"spoilt", b"last"]
    assert [row["headers"] for row in rows] == [
        [{"key": "first-name", "value": b"1"}],
        None,
        [{"key": "last-name", "value": b"1"}],
    ]
    assert f"ignoring unreadable headers: topic={topic} partition=0 offset=1" in caplog.messages


def test_unreachable_broker_is_waited_for_and_logged_once(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    topic, topic_id = kafka.new_topic()
    kafka.write(topic, numbered(3))

    with kafka.log() as log, caplog.at_level(logging.INFO, "zk_group.consumer.logs"):
        fetched(log, topic, topic_id, upto=3)
        kafka.broker.kill()
        eventually(lambda: not reader(log).look(topic, topic_id, 0, 3) and caplog.records, 20, "it is logged")
        with pytest.raises(LogError):
            log.latest(topic, topic_id, 0)
        kafka.restart()
        kafka.write(topic, numbered(2))
        assert len(fetched(log, topic, topic_id, 3, upto=5)) == 2
        assert cast(KafkaLog, log).outages == 1

    said = [record.msg.partition(":")[0] for record in caplog.records]
    assert said == ["all Kafka brokers down, retrying", "Kafka brokers available"]


def test_wrong_credentials_are_one_clear_error_and_right_ones_are_taken(kafka: Kafka) -> None:
    topic, topic_id = kafka.new_topic()
    kafka.write(topic, numbered(2))
    ((user, password),) = USERS.items()

    def opened(secret: str) -> Log:
        options = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": user}
        place = KafkaPlace(options={**options, "kafka.sasl.password": secret})
        return open_log(f"kafka://{kafka.sasl_address}", place)

    with closing(opened("a guess of mallory")) as wrong, closing(opened(password)) as right:
        error = refused(wrong, topic, topic_id)
        assert "refuses the credentials" in str(error)
        assert "mallory" not in str(error)
        assert refused(wrong, topic, topic_id) is error, "it was tried again at once"
        assert len(fetched(right, topic, topic_id, upto=2)) == 2


@pytest.mark.parametrize("question", ["latest", "record_of_time"])
def test_wrong_credentials_are_raised_by_queries_for_start_offsets(kafka: Kafka, question: str) -> None:
    """A consumer without assigned partitions gets the authentication error, not a timeout."""
    topic, topic_id = kafka.new_topic()
    options = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "mallory"}
    place = KafkaPlace(options={**options, "sasl.password": "a guess"})
    with closing(cast(KafkaLog, open_log(f"kafka://{kafka.sasl_address}", place))) as log:
        with pytest.raises(LogError, match="refuses the credentials") as raised:
            getattr(log, question)(topic, topic_id, 0, *([] if question == "latest" else [1_500_000_000_000]))
        assert "a guess" not in str(raised.value)
        assert log.outages == 0


@contextmanager
def answers_without_tls(came: list[object]) -> Iterator[str]:
    """The address of a misconfigured broker: a server that answers each connection without TLS.

    :param came: collects the connections.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, client = server.accept()
                    came.append(client)
                    with connection, suppress(OSError):
                        connection.recv(10)
                        connection.sendall(b"this is no TLS\r\n" * 4)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_failed_tls_handshake_is_an_outage_that_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    came, place = list[object](), KafkaPlace(options={"security.protocol": "ssl"})
    with (
        answers_without_tls(came) as address,
        closing(cast(KafkaLog, open_log(f"kafka://{address}", place))) as log,
    ):
        eventually(lambda: not reader(log).look("t", "id", 0, 0) and log.outages, 20, "it is logged")
        before, what = len(came), "fetching is retried, and nothing is raised"
        eventually(lambda: reader(log).look("t", "id", 0, 0) == [] and len(came) >= before + 20, 20, what)
        with pytest.raises(LogError, match="SSL") as raised:
            log.latest("t", "id", 0)

    assert "credentials" not in str(raised.value)
    assert log.outages == 1
    assert [message for message in caplog.messages if "all Kafka brokers down" in message and "SSL routines" in message]


def test_the_ends_of_many_partitions_are_one_question(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = kafka.name(), kafka.name()
    ids = {one: kafka.topic(one, 3), other: kafka.topic(other)}
    kafka.write(one, numbered(4), partition=2)
    asked: list[int] = []
    real = KafkaClient.offsets
    monkeypatch.setattr(KafkaClient, "offsets", lambda self, wanted: asked.append(len(wanted)) or real(self, wanted))

    with kafka.log() as log:
        places = [TopicIdPartition(one, ids[one], number) for number in range(3)]
        ends = log.latest_of([*places, TopicIdPartition(other, ids[other], 0), TopicIdPartition("no-such", "x", 0)])

    assert asked == [5]
    assert [ends[place] for place in places] == [0, 0, 4]
    assert ends[TopicIdPartition(other, ids[other], 0)] == 0
    assert isinstance(ends[TopicIdPartition("no-such", "x", 0)], UnknownTopic)
