"""Member metadata of protocol type `consumer`."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from consumer.assignment.metadata import ConsumerMetadata
from coordinator.zk.errors import BadData, UsageError
from coordinator.zk.znodes.group_state import MAX_METADATA_BYTES


def read(values: Any) -> ConsumerMetadata:
    return ConsumerMetadata.parse("metadata of a", json.dumps(values).encode())


def test_the_format_is_that_of_the_contract_with_the_version_first() -> None:
    metadata = ConsumerMetadata({"b": 1, "a": 2}, rack="r1", user_data=b"\x00\xff")

    assert metadata.to_bytes() == (
        b'{"version":1,"topics":["a","b"],"threads":{"a":2},"pattern":"static","rack":"r1","user_data":"AP8="}'
    )


def test_empty_values_and_a_single_thread_are_omitted() -> None:
    assert ConsumerMetadata({"t": 1}).to_bytes() == b'{"version":1,"topics":["t"],"pattern":"static"}'


def test_topic_order_does_not_change_the_bytes_so_a_restart_is_no_rejoin() -> None:
    assert ConsumerMetadata({"a": 3, "b": 2}).to_bytes() == ConsumerMetadata({"b": 2, "a": 3}).to_bytes()


@pytest.mark.parametrize(
    "metadata",
    [
        ConsumerMetadata({}),
        ConsumerMetadata({"t": 1, "u": 10_000}, rack="rack/1 é", user_data=bytes(range(256))),
        ConsumerMetadata({"t.*|u": 3}, "white_list"),
        ConsumerMetadata({"t.*": 1}, "black_list", version=2),
    ],
)
def test_metadata_round_trips_unchanged(metadata: ConsumerMetadata) -> None:
    assert ConsumerMetadata.parse("here", metadata.to_bytes()) == metadata


def test_fields_known_to_the_reader_are_read_from_a_higher_version() -> None:
    found = read(
        {"version": 7, "topics": ["t"], "threads": {"t": 2, "later": "x"}, "weights": {"t": 0.5}, "rack": None}
    )

    assert found == ConsumerMetadata({"t": 2}, version=7)


def test_a_topic_that_is_named_twice_is_one_topic() -> None:
    assert read({"topics": ["t", "t"]}).subscription == {"t": 1}


MALFORMED: dict[str, Any] = {
    "no object": [],
    "topics are no list": {"topics": "t"},
    "a topic is no text": {"topics": [1]},
    "a topic is an object": {"topics": [{}]},
    "a topic is no name": {"topics": ["a/b"]},
    "threads are no object": {"topics": ["t"], "threads": [2]},
    "no thread": {"topics": ["t"], "threads": {"t": 0}},
    "too many threads": {"topics": ["t"], "threads": {"t": 10_001}},
    "half a thread": {"topics": ["t"], "threads": {"t": 1.5}},
    "true is no number": {"topics": ["t"], "threads": {"t": True}},
    "another pattern": {"topics": ["t"], "pattern": "client"},
    "two expressions": {"topics": ["t", "u"], "pattern": "white_list"},
    "no expression": {"topics": [], "pattern": "black_list"},
    "it does not compile": {"topics": ["("], "pattern": "white_list"},
    "it is unknown to RE2": {"topics": ["(?=a)a"], "pattern": "white_list"},
    "rack is no text": {"topics": ["t"], "rack": 1},
    "a long rack": {"topics": ["t"], "rack": "r" * 250},
    "no base64": {"topics": ["t"], "user_data": "AP8"},
    "base64 with a line": {"topics": ["t"], "user_data": "AP8=\n"},
    "no base64 letters": {"topics": ["t"], "user_data": "é é="},
    "version is no number": {"topics": ["t"], "version": "1"},
    "version zero": {"topics": ["t"], "version": 0},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_metadata_is_bad_data_named_by_its_member(case: str) -> None:
    with pytest.raises(BadData, match=r"^metadata of a"):
        read(MALFORMED[case])


@pytest.mark.parametrize("data", [b"", b"\xff", b"null", b"[" * 60_000, b'{"topics":[' + b"9" * 5000 + b"]}"])
def test_malformed_bytes_are_bad_data(data: bytes) -> None:
    with pytest.raises(BadData):
        ConsumerMetadata.parse("metadata of a", data)


def test_the_limit_of_64_kb_holds_for_reading_and_writing() -> None:
    fits = ConsumerMetadata({"t": 1}, user_data=bytes(49_000))
    data = json.dumps({"topics": ["t"], "user_data": b64encode(bytes(49_200)).decode()}).encode()

    assert len(fits.to_bytes()) <= MAX_METADATA_BYTES
    with pytest.raises(UsageError, match="limit is 65536"):
        ConsumerMetadata({"t": 1}, user_data=bytes(49_200)).to_bytes()
    with pytest.raises(BadData, match="limit is 65536"):
        ConsumerMetadata.parse("here", data)


def test_threads_are_listed_for_existing_topics() -> None:
    topics = ["t1", "t2", "u", "__consumer_offsets"]

    assert ConsumerMetadata({"t2": 2, "gone": 1}).threads_in(topics) == {"t2": 2}
    assert ConsumerMetadata({"t.*": 3}, "white_list").threads_in(topics) == {"t1": 3, "t2": 3}
    assert ConsumerMetadata({"t.*": 3}, "black_list").threads_in(topics) == {"u": 3}
