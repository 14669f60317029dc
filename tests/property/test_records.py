"""Data of znodes: records are read back as written; any other bytes are a record or `BadData`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Set
from functools import partial
from typing import Any

import pytest

from tests.property.effort import ANY, Draw, tried
from tests.property.records import RECORDS, Build, partitions
from tests.support.next_release import as_next_release
from zk_group.consumer.assignment.metadata import ConsumerMetadata
from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.znodes import ranges
from zk_group.coordinator.zk.znodes.partitions import (
    PartitionRanges,
    PartitionSet,
    by_topic,
    partition_set,
    range_texts,
    topics_of,
    united,
)
from zk_group.coordinator.zk.znodes.paths import MAX_NAME, checked_name, is_name, shown
from zk_group.coordinator.zk.znodes.records import Topic, parsed_channel

PARSERS: dict[str, Callable[[bytes], Any]] = {
    kind: partial(type(build(Draw(0))).parse, "where") for kind, build in RECORDS.items()
}
PARSERS |= {"topic": lambda data: Topic.parse("where", "t", data, 17), "channel": partial(parsed_channel, "where")}
PARSERS["metadata"] = partial(ConsumerMetadata.parse, "where")
KINDS = sorted(RECORDS)
VERSIONS = (None, 0, -1, 2, 2**70, 1.5, "2", "next", [2], {"major": 2})


def any_record(draw: Draw, kind: str) -> Any:
    return RECORDS[kind](draw)


def with_a_field(draw: Draw, kind: str) -> tuple[dict[str, Any], str]:
    """A record's JSON, and one of its fields."""
    values = json.loads(RECORDS[kind](draw).to_bytes())
    return values, draw.choice(sorted(values))


@tried(500, lambda draw: draw.randbytes(draw.upto(200)))
def test_any_bytes_are_a_record_or_bad_data(data: bytes) -> None:
    for kind in KINDS:
        read(kind, data)


@pytest.mark.parametrize("kind", KINDS)
@tried(200, any_record)
def test_a_record_is_read_back_as_it_was_written(kind: str, record: Any) -> None:
    found = PARSERS[kind](record.to_bytes())

    expected = Topic("t", record.id, record.partitions) if kind == "topic" else record
    assert found == expected
    assert found.to_bytes() == record.to_bytes()


@pytest.mark.parametrize("kind", KINDS)
@tried(200, any_record)
def test_record_is_one_line_of_versioned_json_and_ignores_later_fields(kind: str, record: Any) -> None:
    written = record.to_bytes()

    later = as_next_release(written)

    assert written.isascii()
    assert b"\n" not in written
    assert json.loads(written)["version"] in (1, 3)
    assert json.loads(later)["version"] > json.loads(written)["version"]
    assert PARSERS[kind](later) == PARSERS[kind](written)


@pytest.mark.parametrize("kind", KINDS)
@tried(200, any_record, lambda draw: draw.choice(VERSIONS))
def test_record_of_any_version_is_read_the_same_way(kind: str, record: Any, version: object) -> None:
    written = record.to_bytes()

    other = json.dumps({**json.loads(written), "version": version}).encode()

    assert PARSERS[kind](other) == PARSERS[kind](written)


@pytest.mark.parametrize("kind", KINDS)
@tried(200, with_a_field)
def test_null_field_is_equal_to_a_missing_one(kind: str, record: tuple[dict[str, Any], str]) -> None:
    values, field = record

    null = read(kind, json.dumps({**values, field: None}).encode())
    missing = read(kind, json.dumps({name: value for name, value in values.items() if name != field}).encode())

    assert null == missing


@tried(200, lambda draw: set(draw.some(range(100), 5, 1)), lambda draw: set(draw.some(range(100), 5)))
def test_rewritten_topic_keeps_fields_of_a_later_release(known: set[int], more: set[int]) -> None:
    later = as_next_release(Topic("t", "id", tuple(sorted(known))).to_bytes())
    grown = Topic("t", "id", tuple(sorted(known | more)))

    rewritten = grown.over("where", later)

    assert PARSERS["topic"](rewritten) == grown
    before, after = json.loads(later), json.loads(rewritten)
    assert {name: value for name, value in after.items() if name != "partitions"} == {
        name: value for name, value in before.items() if name != "partitions"
    }


# ---- any other bytes


def read(kind: str, data: bytes) -> Any:
    """The record, or None for `BadData`, whose message is one line that names the place; all else is a failure."""
    try:
        return PARSERS[kind](data)
    except BadData as error:
        assert "where" in str(error) and str(error).isprintable() and len(str(error)) < 2_000
        return None


TEXTS = ("\ud800", "²", "٣", "0-3,7", "7-3", "-1", "1" * 5000, "start-fetcher", "static", "..", "a/b", "\x00")
FLOATS = (0.5, -0.0, 1e16, 1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
KEYS = ("t", "0", "1", "007", "²", "9" * 4301, "-1", "a/b", "", "\ud800", "incarnation", "partitions", "version")
SCALARS: tuple[Build, ...] = (
    lambda draw: draw.choice([None, True, False]),
    lambda draw: draw.randint(-3, 100),
    lambda draw: draw.number(2**70, -(2**70)),
    lambda draw: draw.choice(FLOATS),
    lambda draw: draw.text(10),
    lambda draw: draw.choice(TEXTS),
)


def document(draw: Draw, depth: int = 3) -> Any:
    if not depth or draw.truth():
        return draw.choice(SCALARS)(draw)
    inner = [document(draw, depth - 1) for _ in range(draw.upto(3))]
    return inner if draw.truth() else {draw.choice(KEYS): each for each in inner}


def with_nonsense(draw: Draw, kind: str) -> dict[str, Any]:
    values, field = with_a_field(draw, kind)
    return {**values, field: document(draw)}


@pytest.mark.parametrize("kind", KINDS)
@tried(200, with_nonsense)
def test_a_record_with_one_field_that_is_nonsense_is_a_record_or_bad_data(kind: str, values: dict[str, Any]) -> None:
    found = read(kind, json.dumps(values).encode())

    if found is not None:
        assert read(kind, found.to_bytes()) == found


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"null",
        b"[]",
        b'"text"',
        b"NaN",
        b'{"epoch":NaN,"generation":Infinity}',
        b'{"epoch":1e400,"offset":-0}',
        b'{"epoch":' + b"9" * 5000 + b"}",
        b'{"incarnation":"\\ud800","run":"\\udfff"}',
        b"x" * 1_000_000,
        b'{"subscription":{},"incarnation":"' + b"x" * 1_000_000 + b'"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda data: repr(data[:24]),
)
def test_hostile_data_is_a_record_or_bad_data(data: bytes) -> None:
    for kind in KINDS:
        read(kind, data)


@pytest.mark.long
def test_data_of_any_depth_is_a_record_or_bad_data() -> None:
    for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 5):
        nested = "[" * depth + "]" * depth
        read("epoch", nested.encode())
        read("state", f'{{"topics":{nested}}}'.encode())
        read("registration", f'{{"incarnation":"a","protocols":{nested}}}'.encode())
        read("registration", f'{{"incarnation":"a","subscription":{{"t":{nested}}}}}'.encode())


def with_ranges(ranges: dict[str, list[int]]) -> bytes:
    """A segment's data, with these ranges of topic t."""
    named = {"file": "f", "segments_dir": "", "rows": 1, "bytes": 1, "consumer": "", "incarnation": "a"}
    return json.dumps({**named, "generation": 1, "topics": {"t": "id"}, "ranges": {"t": ranges}}).encode()


@pytest.mark.parametrize(
    "key", ["9" * 4299, "9" * 4301, "9" * 6000, "²", "٣", "1_0", "+1", " 1"], ids=lambda key: f"{len(key)} {key[:3]}"
)
def test_a_partition_is_written_in_few_ascii_digits(key: str) -> None:
    assert read("topic", json.dumps({"partitions": {key: []}}).encode()) is None
    assert read("channel", json.dumps({"incarnation": "a", "running": {"t": {key: 1}}}).encode()) is None
    assert read("segment", with_ranges({key: [0, 1]})) is None


def test_a_topic_has_each_partition_once_however_it_is_written() -> None:
    topic = read("topic", b'{"partitions":{"7":[],"07":[],"007":[]}}')

    assert topic is None or topic.partitions == (7,)


def test_a_sealed_range_ends_where_it_begins_or_later() -> None:
    assert read("segment", with_ranges({"0": [5, 5]})) is not None
    for pair in ([5, 4], [-1, 4], [0, 2**64], [False, 4], [0, True]):
        assert read("segment", with_ranges({"0": pair})) is None


def test_topic_without_an_id_is_distinguished_from_its_successor_by_its_czxid() -> None:
    data = b'{"version":1,"partitions":{"0":[1],"1":[1]}}'

    first, second = Topic.parse("where", "t", data, 16), Topic.parse("where", "t", data, 17)

    assert (first.id, first.partitions) == ("czxid-10", (0, 1))
    assert second.id == "czxid-11"


def test_channel_without_data_has_no_incarnation() -> None:
    channel = parsed_channel("where", b"")

    assert (channel.incarnation, channel.is_live, dict(channel.running)) == ("", False, {})


# ---- ranges


def some_numbers(draw: Draw) -> frozenset[int]:
    """Some beside each other, as most are, and others far away."""
    first = draw.number(ranges.MAX_PARTITION - 1000)
    beside = range(first, first + draw.upto(1000))
    return frozenset([*beside, *draw.many(lambda draw: draw.number(ranges.MAX_PARTITION), 30)])


@tried(200, some_numbers)
def test_ranges_are_read_back_as_they_were_written(numbers: Set[int]) -> None:
    text = ranges.encode(numbers)

    assert ranges.decode(text) == numbers
    assert ranges.encode(ranges.decode(text)) == text


def test_ranges_are_written_as_short_as_people_would() -> None:
    assert ranges.encode([7, 0, 1, 2, 3, 3]) == "0-3,7"
    assert ranges.encode([5]) == "5"
    assert ranges.encode([]) == ""


@tried(500, lambda draw: draw.text(12, draw.choice(["0123456789-, ²", ANY])))
def test_a_text_is_ranges_or_a_value_error(text: str) -> None:
    try:
        found = ranges.decode(text)
    except ValueError:
        return
    assert all(0 <= number <= ranges.MAX_PARTITION for number in found)


@pytest.mark.parametrize(
    "text", ["3-1", "3-2", "-1", "1-", ",", "1,,2", "1, 2", "1000001", "99999999", "0x1", "1.0", "٣"]
)
def test_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no partition range"):
        ranges.decode(text)


def test_ranges_that_name_a_partition_again_and_again_are_refused() -> None:
    """Fifty thousand times a million fits into one znode."""
    with pytest.raises(ValueError, match="names a partition twice"):
        ranges.decode("0-9,0-9")
    with pytest.raises(ValueError, match="names a partition twice"):
        ranges.decode(",".join(["0-999999"] * 50_000))


def numbers(draw: Draw) -> frozenset[int]:
    return frozenset(draw.many(lambda draw: draw.randint(0, 40), 40))


def assert_same_sets(mine: Any, one: Any, other: Any, two: Any) -> None:
    """`mine` and `other` are as these sets, together and each beside the other's set."""
    assert mine == one and one == mine and hash(mine) == hash(one) and len(mine) == len(one)
    for left, right in ((mine, two), (mine, other), (one, other)):
        assert (left & right, left | right, left - right) == (one & two, one | two, one - two)
        assert [left <= right, left < right, left >= right] == [one <= two, one < two, one >= two]
        assert (left == right) == (one == two)


@tried(500, numbers, numbers)
def test_ranges_behave_as_the_set_of_their_numbers(one: frozenset[int], two: frozenset[int]) -> None:
    mine = ranges.decode(ranges.encode(one))

    assert_same_sets(mine, one, ranges.decode(ranges.encode(two)), two)
    assert all((number in mine) == (number in one) for number in range(42))


@tried(500, partitions, partitions)
def test_partition_ranges_behave_as_the_set_of_their_partitions(one: PartitionSet, two: PartitionSet) -> None:
    mine, other = PartitionRanges.of(one), PartitionRanges.of(two)

    assert_same_sets(mine, one, other, two)
    assert united([one, other]) == one | two
    assert range_texts(mine) == range_texts(one) and topics_of(mine) == topics_of(one) == list(by_topic(one))
    assert partition_set(by_topic(one)) == one


# ---- names


@tried(500, lambda draw: draw.choice([draw.text(10), draw.text(4, "./-_a0\n\x00\x7f")]))
def test_a_name_never_leaves_its_place_in_a_path(text: str) -> None:
    if is_name(text):
        assert text.isascii()
        assert text.isprintable()
        assert not set(text) & set("/ %\\")
        assert text not in ("", ".", "..")
        assert checked_name("group", text) == text


@pytest.mark.parametrize("text", ["", "/", "a/b", "..", ".", "a\n", "\na", "a\x00", "\x1b[31m", "a b", "ä", "a" * 250])
def test_invalid_name_is_refused_with_one_printable_sentence(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_name("group", text)

    assert not is_name(text)
    assert str(caught.value).isprintable()
    assert "cannot name a group" in str(caught.value)


def test_a_name_has_249_characters_at_most() -> None:
    assert is_name("a" * MAX_NAME)
    assert MAX_NAME == 249


@tried(500, lambda draw: draw.choice([draw.text(200), document(draw)]))
def test_shown_text_is_printable_and_short(value: Any) -> None:
    text = shown(value)

    assert text.replace("…", "").isascii()
    assert text.isprintable()
    assert len(text) <= 12 * 81  # eighty characters, the longest of them as an escape of ten
