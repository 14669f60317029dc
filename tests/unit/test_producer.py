"""The producer of the embedded log: partitions of records, and times of writes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from zk_group.consumer.cli.output import shown_record
from zk_group.consumer.cli.produce import record_of_json
from zk_group.consumer.errors import Inherited
from zk_group.consumer.fetching.record_buffer import Record
from zk_group.consumer.logs import open_log
from zk_group.consumer.logs.base import LogError, UnknownTopic
from zk_group.consumer.logs.embedded.log import file_name
from zk_group.consumer.logs.embedded.producer import (
    MAX_RECORD_BYTES,
    Appender,
    Producer,
    murmur2,
    partition_of,
    stored_batches,
)
from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.znodes.records import Topic

ID = "0kqJ7XyNT_aWnRk5bWq8Zg"
FLIGHTS = Topic("flights", ID, (0, 1, 2, 3))
TOPICS = {"flights": FLIGHTS}
LARGE = 1 << 30


def records(log_dir: Path, partition: int) -> list[dict[str, object]]:
    """Everything in a partition, whose offsets must be contiguous from 0."""
    log, offset, found = open_log(str(log_dir)), 0, []
    while (fetched := log.fetch("flights", ID, partition, offset, LARGE)).batches:
        offset = fetched.next_offset
        found += [row for batch in fetched.batches for row in batch.to_pylist()]
    assert [row["offset"] for row in found] == list(range(len(found)))
    return found


def values(log_dir: Path, partition: int) -> list[object]:
    return [row["value"] for row in records(log_dir, partition)]


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_hash_as_in_kafkas_own_tests(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed
    assert partition_of(key, range(12)) == (hashed & 0x7FFFFFFF) % 12


def test_all_records_of_a_key_go_to_one_partition_in_order(tmp_path: Path) -> None:
    with Producer(tmp_path, TOPICS, batch_bytes=200) as producer:
        for number in range(50):
            producer.send("flights", b"%d" % number, key=b"foobar")

    partition = partition_of(b"foobar", FLIGHTS.partitions)
    assert values(tmp_path, partition) == [b"%d" % number for number in range(50)]
    assert sum(len(values(tmp_path, other)) for other in range(4)) == 50


def test_records_without_a_key_stick_to_a_partition_until_its_batch_is_written(tmp_path: Path) -> None:
    producer = Producer(tmp_path, TOPICS)
    for _ in range(8):
        for _ in range(5):
            producer.send("flights", b"x")
        producer.flush()

    assert [len(values(tmp_path, partition)) for partition in range(4)] == [10] * 4
    assert len(list(tmp_path.rglob("*.arrow"))) == 8


def test_nothing_is_written_before_the_batch_is_full_or_flushed(tmp_path: Path) -> None:
    producer = Producer(tmp_path, TOPICS, batch_bytes=1000)
    producer.send("flights", b"x" * 100, partition=2)
    assert values(tmp_path, 2) == []
    assert producer.written == 0

    producer.send("flights", b"x" * 900, partition=2)

    assert len(values(tmp_path, 2)) == 2
    producer.send("flights", b"y", partition=2)
    producer.close()
    assert len(values(tmp_path, 2)) == producer.written == 3


def test_a_block_that_fails_writes_nothing_more(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Producer(tmp_path, TOPICS) as producer:
        producer.send("flights", b"x", partition=0)
        raise ZeroDivisionError

    assert values(tmp_path, 0) == []


def test_a_record_keeps_its_key_time_and_headers(tmp_path: Path) -> None:
    with Producer(tmp_path, TOPICS) as producer:
        producer.send("flights", b"plain", partition=1)
        producer.send("flights", None, b"k", 1, 1_700_000_000_123, [("trace", b"7"), ("empty", None)])

    plain, full = records(tmp_path, 1)
    assert (plain["key"], plain["headers"]) == (None, None)
    assert abs(plain["timestamp"].timestamp() - time.time()) < 60  # type: ignore[attr-defined]
    assert (full["value"], full["key"]) == (None, b"k")
    assert full["timestamp"].timestamp() == 1_700_000_000.123  # type: ignore[attr-defined]
    assert full["headers"] == [{"key": "trace", "value": b"7"}, {"key": "empty", "value": None}]


def test_whole_columns_are_written_after_collected_records(tmp_path: Path) -> None:
    with Producer(tmp_path, TOPICS) as producer:
        producer.send("flights", b"first", partition=0)
        chunked = pa.chunked_array([["second"], ["third"]], pa.string())

        assert producer.send_batch("flights", 0, chunked, keys=pa.array([b"k", None]), timestamps_ms=5000) == 1
        assert producer.send_batch("flights", 0, []) is None
        assert producer.send_batch("flights", 0, [b"fourth"], timestamps_ms=pa.array([7])) == 3

    assert values(tmp_path, 0) == [b"first", b"second", b"third", b"fourth"]
    assert records(tmp_path, 0)[1]["timestamp"].timestamp() == 5  # type: ignore[attr-defined]
    assert producer.written == 4


@pytest.mark.parametrize(
    "columns",
    [
        {"values": pa.array([1, 2])},
        {"values": [b"a", b"b"], "keys": [b"k"]},
        {"values": [b"a"], "timestamps_ms": pa.array([None], pa.int64())},
        {"values": [b"a"], "timestamps_ms": 2**62},
    ],
)
def test_columns_that_do_not_fit_are_refused_whole(tmp_path: Path, columns: dict[str, object]) -> None:
    producer = Producer(tmp_path, TOPICS)

    with pytest.raises(UsageError, match="these columns are no records"):
        producer.send_batch("flights", 0, **columns)  # type: ignore[arg-type]
    assert values(tmp_path, 0) == []


INVALID: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "there is no topic 'trains'": (UsageError, "trains", {}),
    "topic flights has no partition 4": (UsageError, "flights", {"partition": 4}),
    "limit is": (UsageError, "flights", {"value": bytes(MAX_RECORD_BYTES)}),
    "-1 is no timestamp": (UsageError, "flights", {"timestamp_ms": -1}),
    "name is no text": (UsageError, "flights", {"headers": [("\ud800", b"")]}),
    "consists of bytes, not of str": (TypeError, "flights", {"value": "x"}),
}


def test_invalid_record_is_refused_and_the_rest_is_written(tmp_path: Path) -> None:
    with Producer(tmp_path, TOPICS) as producer:
        producer.send("flights", b"good", partition=0)
        for reason, (error, topic, record) in INVALID.items():
            with pytest.raises(error, match=reason):
                producer.send(topic, **{"value": b"x", "partition": 0} | record)

    assert values(tmp_path, 0) == [b"good"]


def test_a_topic_without_partitions_takes_no_records(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="topic new has no partitions"):
        Producer(tmp_path, {"new": Topic("new", ID, ())}).send("new", b"x")


def test_an_unwritten_batch_stays_and_is_flushed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(tmp_path, TOPICS)
    producer.send("flights", b"x", partition=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(LogError, match=r"cannot append to .*: No space left on device"):
            producer.flush()
    assert values(tmp_path, 0) == []
    assert list(tmp_path.rglob(".tmp-*")) == []

    producer.flush()

    assert values(tmp_path, 0) == [b"x"]


def test_missing_hard_links_are_reported_as_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError(1, "Operation not permitted")))

    with pytest.raises(LogError, match="needs a file system with hard links"):
        Appender(tmp_path, "flights", ID, 0).append(stored_batches([b"x"]))


def test_link_with_a_lost_reply_is_not_created_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_and_forget(source: str, target: str, **folders: int) -> None:
        link(source, target, **folders)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", link_and_forget)

    assert Appender(tmp_path, "flights", ID, 0).append(stored_batches([b"x"])) == 0
    assert values(tmp_path, 0) == [b"x"]


def test_blocked_path_of_the_next_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = Appender(tmp_path, "flights", ID, 0)
    for _ in range(2):  # the second time it knows the log end, and does not list the folder
        appender.append(stored_batches([b"x"]))
    (tmp_path / "flights" / ID / "0" / file_name(2)).symlink_to("nowhere")

    with pytest.raises(LogError, match="a link is in the way"):
        appender.append(stored_batches([b"x"]))
    monkeypatch.setattr(os.path, "lexists", lambda path: False)  # as where NFS shows the folder of before
    with pytest.raises(LogError, match="arrow is in the way"):
        appender.append(stored_batches([b"x"]))


def test_producer_of_a_deleted_topic_gets_an_error(tmp_path: Path) -> None:
    producer = Producer(tmp_path, TOPICS)
    producer.send("flights", b"x", partition=0)
    (tmp_path / "flights" / ID / "0").rmdir()

    with pytest.raises(UnknownTopic, match="the data of topic flights was removed"):
        producer.flush()


def calls(producer: Producer) -> list[Callable[[], object]]:
    """Every one but `close`."""
    return [
        lambda: producer.send("flights", b"c"),
        lambda: producer.send_batch("flights", 0, [b"c"]),
        producer.flush,
    ]


def test_a_closed_producer_says_so_and_a_second_close_does_nothing(tmp_path: Path) -> None:
    producer = Producer(tmp_path, TOPICS)
    producer.send("flights", b"a", partition=0)
    producer.close()
    producer.close()
    with Producer(tmp_path, TOPICS) as other:
        other.send("flights", b"b", partition=0)

    for call in calls(producer) + calls(other):
        with pytest.raises(UsageError, match="Cannot perform operation after producer has been closed"):
            call()
    assert values(tmp_path, 0) == [b"a", b"b"]


def test_every_call_of_an_inherited_producer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(tmp_path, TOPICS)
    producer.send("flights", b"a", partition=0)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        for call in (*calls(producer), producer.close):
            with pytest.raises(Inherited, match="was forked: make a producer in each process"):
                call()
    producer.close()
    assert values(tmp_path, 0) == [b"a"]


# ---- lines of JSON: a value keeps its numbers, and what `zk-consumer run` prints is read again


def value_of(text: str) -> bytes | None:
    return record_of_json("line 1", f'{{"value":{text}}}'.encode()).value


@pytest.mark.parametrize(
    "text",
    [
        '{"amount":1234567890123456.78}', "1E3", "-0", "1.50", "0.1e-400", "1e400", "123456789012345678901234567890",
        "9" * 5000, '{"a":1,"a":2}', '[1.0,[-0.0,{}],{"b":[]}]', "true", "[null,false]", '{"é":"\\n"}',
    ],
)  # fmt: skip
def test_a_value_that_is_json_keeps_its_text(text: str) -> None:
    assert value_of(text) == text.encode()


def test_a_value_that_is_json_is_written_without_blanks() -> None:
    assert value_of('{ "a" : [ 1.50 , "b c" ] }') == b'{"a":[1.50,"b c"]}'


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        *(
            (f'"value":{text}', "line 1 has a value that JSON does not know")
            for text in ("NaN", "[Infinity]", '{"a":-Infinity}')
        ),
        *((f'"value":1,"{name}":{"9" * 5000}', name) for name in ("timestamp", "partition")),
        (f'"value":{"[" * 5000}{"]" * 5000}', "line 1"),
    ],
    ids=lambda text: text[:20],
)
def test_line_with_a_value_that_is_no_json_or_no_number_is_refused(fields: str, reason: str) -> None:
    with pytest.raises(BadData, match=reason):
        record_of_json("line 1", f"{{{fields}}}".encode())


def test_a_byte_order_mark_is_skipped() -> None:
    assert record_of_json("line 1", b'\xef\xbb\xbf{"value":"a"}').value == b"a"


@pytest.mark.parametrize(
    "record",
    [
        Record("t", 1, 7, 1000, 0, b"k", b"v", (("h", b"x"), ("h", b"y"), ("n", None))),
        Record("t", 0, 0, 0, 0, None, None, ()),
        Record("t", 0, 2**40, 5, 0, b"\xff", b"\xfe\x00", (("h", b"\x80"),)),
        Record("t", 0, 1, 5, 0, b"", b"", ()),
    ],
)
def test_what_run_prints_is_read_again(record: Record) -> None:
    line = json.dumps(shown_record(record)).encode()

    read = record_of_json("line 1", line, ignores_place=True)

    assert (read.key, read.value, read.timestamp_ms) == (record.key, record.value, record.timestamp_ms)
    assert (tuple(read.headers), read.partition) == (tuple(record.headers), None)
    with pytest.raises(BadData, match=r"unknown field .*--ignore-place"):
        record_of_json("line 1", line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"value_base64": "?"}', "line 1: field 'value_base64' holds what is not base64"),
        ('{"value": "a", "value_base64": "YQ=="}', "line 1 has both value and value_base64"),
        ('{"value": 1, "value_base64": "YQ=="}', "line 1 has both value and value_base64"),
        ('{"value": "a", "headers": [{"value": "x"}]}', "field 'key' must be a string"),
    ],
)
def test_base64_and_headers_that_are_none_are_refused(line: str, message: str) -> None:
    with pytest.raises(BadData, match=message):
        record_of_json("line 1", line.encode())
