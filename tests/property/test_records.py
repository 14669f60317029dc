"""What stands in znodes: written and read back the same, and whatever else stands there is a record or `BadData`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.zk.errors import BadData, UsageError
from coordinator.zk.znodes import ranges
from coordinator.zk.znodes.commands import START_FETCHER, STOP_FETCHER, Command
from coordinator.zk.znodes.group_state import GROUP_STATES, GroupState, Mark, Rebalance, Target
from coordinator.zk.znodes.json_fields import Fields
from coordinator.zk.znodes.names import MAX_NAME, checked_name, is_name, shown
from coordinator.zk.znodes.operator_requests import Pause, PausedRecord, TurnRequest
from coordinator.zk.znodes.partitions import TopicPartition, by_topic, partition_set
from coordinator.zk.znodes.records import (
    BegunRecord,
    Channel,
    CoordinatorRecord,
    EpochRecord,
    OffsetRecord,
    OwnerRecord,
    Registration,
    Topic,
    parsed_channel,
)
from coordinator.zk.znodes.segments import Pool, Query, Rewind, SealedRange, Segment, SegmentsRecord
from tests.property.effort import effort
from tests.support.next_release import as_next_release

# ---- records as the project writes them

texts = st.text(max_size=20)
names = st.text("azAZ09_-", min_size=1, max_size=6) | st.sampled_from(["a.b", "...", "a" * MAX_NAME])
ids = st.text("0123456789abcdef", min_size=1, max_size=8)
numbers = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
partitions = st.builds(TopicPartition, names, st.integers(0, 99_999))
some_partitions = st.frozensets(partitions, max_size=5)
topic_ids = st.dictionaries(names, texts, max_size=3)
ownership = st.dictionaries(texts, some_partitions.filter(bool), max_size=3)
targets = st.dictionaries(names, st.builds(Target, ids, ownership), max_size=3)
subscriptions = st.one_of(
    st.tuples(st.just("static"), st.dictionaries(names, st.integers(1, 10_000), max_size=3)),
    st.tuples(
        st.sampled_from(["white_list", "black_list"]),
        st.dictionaries(texts, st.integers(1, 9), min_size=1, max_size=1),
    ),
)
sealed_ranges = st.lists(
    st.builds(lambda part, first: SealedRange(part.topic, "id", part.partition, first, first + 1), partitions, numbers),
    max_size=3,
    unique_by=lambda item: (item.topic, item.partition),
).map(lambda items: tuple(sorted(items)))

rewinds = st.builds(Rewind, numbers, offsets, st.booleans())
pauses = st.builds(Pause, texts, numbers, st.none() | texts)

RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.builds(
        lambda name, topic_id, found: Topic(name, topic_id, tuple(sorted(found))),
        names,
        ids,
        st.sets(st.integers(0, 1_000_000), max_size=5),
    ),
    "coordinator": st.builds(CoordinatorRecord, texts, texts, numbers),
    "epoch": st.builds(EpochRecord, numbers),
    "registration": st.builds(
        lambda subscription, life, host, protocols, lease_ms, poll_ms, user_data, seal_ms: Registration(
            life, subscription[1], subscription[0], host, tuple(protocols), lease_ms, poll_ms, user_data, seal_ms
        ),
        subscriptions,
        ids,
        texts,
        st.lists(texts, min_size=1, max_size=2),
        st.integers(0, 86_400_000),
        st.integers(1, 2**31 - 1),
        texts,
        st.integers(0, 2**31 - 1),
    ),
    "channel": st.builds(
        Channel,
        incarnation=ids,
        epoch=numbers,
        generation=numbers,
        command=texts,
        running=st.dictionaries(partitions, st.none() | offsets, max_size=4),
        topics=topic_ids,
        ended=st.none() | texts,
        refused=some_partitions,
        sealed=texts,
        touched=numbers,
    ),
    "owner": st.builds(OwnerRecord, texts, texts, ids, numbers),
    "offset": st.builds(OffsetRecord, offsets, ids, numbers),
    "start": st.builds(OffsetRecord, offsets, ids, numbers, st.sampled_from(["beginning", "end"])),
    "begun": st.builds(BegunRecord, ids, st.frozensets(st.integers(0, 10_000), max_size=20)),
    "start command": st.builds(Command, st.just(START_FETCHER), numbers, numbers, ids, ownership, topics=topic_ids),
    "stop command": st.builds(
        Command, st.just(STOP_FETCHER), numbers, numbers, ids, partitions=some_partitions, topics=topic_ids
    ),
    "state": st.builds(
        GroupState,
        state=st.sampled_from(GROUP_STATES),
        generation=numbers,
        epoch=numbers,
        strategy=texts,
        target=targets,
        topics=topic_ids,
        marks=st.lists(st.builds(Mark, texts, ids, some_partitions, numbers, texts), max_size=2).map(tuple),
        reason=st.none() | texts,
        left_out=st.dictionaries(texts, texts, max_size=2),
    ),
    "rebalance": st.builds(
        Rebalance,
        numbers,
        numbers,
        texts,
        numbers,
        st.lists(texts, max_size=2).map(tuple),
        st.lists(texts, max_size=2).map(tuple),
        numbers,
        *[st.none() | numbers] * 5,
    ),
    "paused": st.builds(PausedRecord, st.none() | pauses, st.dictionaries(names, pauses, max_size=2)),
    "request": st.builds(TurnRequest, st.text(max_size=250), numbers, st.none() | st.text(max_size=1000)),
    "segment": st.builds(Segment, names, texts, numbers, numbers, sealed_ranges, texts, ids, numbers),
    "segments": st.builds(SegmentsRecord, offsets, st.none() | texts.filter(bool), st.none() | st.integers(1, 10_000)),
    "query": st.builds(Query, ids, offsets, numbers, numbers, st.none() | rewinds),
    "pool": st.builds(Pool, st.integers(0, 10_000), ids),
}

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "topic": lambda data: Topic.parse("where", "t", data, 17),
    "coordinator": lambda data: CoordinatorRecord.parse("where", data),
    "epoch": lambda data: EpochRecord.parse("where", data),
    "registration": lambda data: Registration.parse("where", data),
    "channel": lambda data: parsed_channel("where", data),
    "owner": lambda data: OwnerRecord.parse("where", data),
    "offset": lambda data: OffsetRecord.parse("where", data),
    "start": lambda data: OffsetRecord.parse("where", data),
    "begun": lambda data: BegunRecord.parse("where", data),
    "start command": lambda data: Command.parse("where", data),
    "stop command": lambda data: Command.parse("where", data),
    "state": lambda data: GroupState.parse("where", data),
    "rebalance": lambda data: Rebalance.parse("where", data),
    "paused": lambda data: PausedRecord.parse("where", data),
    "request": lambda data: TurnRequest.parse("where", data),
    "segment": lambda data: Segment.parse("where", data),
    "segments": lambda data: SegmentsRecord.parse("where", data),
    "query": lambda data: Query.parse("where", data),
    "pool": lambda data: Pool.parse("where", data),
}
KINDS = sorted(PARSERS)


@pytest.mark.parametrize("kind", KINDS)
@effort(12)
@given(data=st.data())
def test_a_record_is_read_back_as_it_was_written(kind: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])

    found = PARSERS[kind](record.to_bytes())

    expected = Topic("t", record.id, record.partitions) if kind == "topic" else record
    assert found == expected
    assert found.to_bytes() == record.to_bytes()


@pytest.mark.parametrize("kind", KINDS)
@effort(3)
@given(data=st.data())
def test_record_is_one_line_of_versioned_json_and_ignores_later_fields(kind: str, data: st.DataObject) -> None:
    written = data.draw(RECORDS[kind]).to_bytes()

    later = as_next_release(written)

    assert written.isascii()
    assert b"\n" not in written
    assert json.loads(written)["version"] in (1, 3)
    assert json.loads(later)["version"] > json.loads(written)["version"]
    assert PARSERS[kind](later) == PARSERS[kind](written)


@pytest.mark.parametrize("version", [None, 0, -1, 2, 2**70, 1.5, "2", "next", [2], {"major": 2}])
@pytest.mark.parametrize("kind", KINDS)
@effort(1)
@given(data=st.data())
def test_record_of_any_version_is_read_the_same_way(kind: str, version: object, data: st.DataObject) -> None:
    written = data.draw(RECORDS[kind]).to_bytes()

    other = json.dumps({**json.loads(written), "version": version}).encode()

    assert PARSERS[kind](other) == PARSERS[kind](written)


@pytest.mark.parametrize("kind", KINDS)
@effort(3)
@given(data=st.data())
def test_a_field_that_is_null_is_as_one_that_is_missing(kind: str, data: st.DataObject) -> None:
    values = json.loads(data.draw(RECORDS[kind]).to_bytes())
    field = data.draw(st.sampled_from(sorted(values)))

    null = read(kind, json.dumps({**values, field: None}).encode())
    missing = read(kind, json.dumps({name: value for name, value in values.items() if name != field}).encode())

    assert null == missing


@effort(10)
@given(name=texts)
def test_state_of_a_later_release_is_read_with_all_fields_of_the_group(name: str) -> None:
    state = GroupState(state=name, generation=7, epoch=3, target={"c": Target("i", {})})

    assert GroupState.parse("where", state.to_bytes()) == state


@effort(10)
@given(known=st.sets(st.integers(0, 99), min_size=1, max_size=5), more=st.sets(st.integers(0, 99), max_size=5))
def test_a_topic_that_is_rewritten_keeps_what_only_a_later_release_knows(known: set[int], more: set[int]) -> None:
    later = as_next_release(Topic("t", "id", tuple(sorted(known))).to_bytes())
    grown = Topic("t", "id", tuple(sorted(known | more)))

    rewritten = grown.over("where", later)

    assert PARSERS["topic"](rewritten) == grown
    before, after = json.loads(later), json.loads(rewritten)
    assert {name: value for name, value in after.items() if name != "partitions"} == {
        name: value for name, value in before.items() if name != "partitions"
    }


# ---- and whatever else may stand there


def read(kind: str, data: bytes) -> Any:
    """The record, or None for `BadData`, whose message is one line that names the place; all else is a failure."""
    try:
        return PARSERS[kind](data)
    except BadData as error:
        assert "where" in str(error)
        assert "\n" not in str(error)
        return None


FIELDS = (
    "adding_replicas", "all", "by", "bytes", "collected", "command", "consumer", "czxid", "ended", "epoch", "file",
    "finished", "finished_ms", "generation", "groups", "host", "incarnation", "joined", "lease_ms", "left",
    "left_out", "marks", "max_poll_interval_ms", "moved", "node", "offset", "option", "ownershipMap", "partitions",
    "pattern", "paused", "protocols", "ranges", "reason", "refused", "replaced_by", "rows", "run", "running",
    "seal_interval_ms", "sealed", "seen_ms", "segments_dir", "since_ms", "standing_since_ms", "standstill_ms",
    "started_ms", "state", "stopped_ms", "strategy", "subscription", "target", "thread", "topic_id", "topics",
    "touched", "trigger", "user_data", "version",
)  # fmt: skip

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.text(st.characters(), max_size=10),
    st.sampled_from(
        ["\ud800", "²", "٣", "0-3,7", "7-3", "-1", "1" * 5000, "start-fetcher", "static", "..", "a/b", "\x00"]
    ),
)
keys = st.one_of(
    st.sampled_from(FIELDS), st.sampled_from(["t", "0", "1", "007", "²", "9" * 4301, "-1", "a/b", "", "\ud800"])
)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
objects = st.dictionaries(st.sampled_from(FIELDS), documents, max_size=6)


@effort(40)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_bad_data(data: bytes) -> None:
    for kind in KINDS:
        read(kind, data)


@pytest.mark.parametrize("kind", KINDS)
@effort(8)
@given(values=objects)
def test_any_json_is_a_record_or_bad_data(kind: str, values: dict[str, Any]) -> None:
    read(kind, json.dumps(values).encode())


@pytest.mark.parametrize("kind", KINDS)
@effort(10)
@given(data=st.data())
def test_a_record_with_one_field_that_is_nonsense_is_a_record_or_bad_data(kind: str, data: st.DataObject) -> None:
    values = json.loads(data.draw(RECORDS[kind]).to_bytes())
    field = data.draw(st.sampled_from(sorted(values)))
    values[field] = data.draw(documents)

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


def test_data_of_any_depth_is_a_record_or_bad_data() -> None:
    for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 5):
        nested = "[" * depth + "]" * depth
        read("epoch", nested.encode())
        read("state", f'{{"topics":{nested}}}'.encode())
        read("registration", f'{{"incarnation":"a","protocols":{nested}}}'.encode())
        read("registration", f'{{"incarnation":"a","subscription":{{"t":{nested}}}}}'.encode())


@pytest.mark.parametrize("digits", [4299, 4301, 6000])
def test_a_partition_with_thousands_of_digits_is_bad_data(digits: int) -> None:
    key = "9" * digits

    assert read("topic", json.dumps({"partitions": {key: []}}).encode()) is None
    assert read("channel", json.dumps({"incarnation": "a", "running": {"t": {key: 1}}}).encode()) is None
    segment = {
        "file": "f",
        "segments_dir": "",
        "rows": 1,
        "bytes": 1,
        "consumer": "",
        "incarnation": "a",
        "generation": 1,
    }
    ranges_ = {"topics": {"t": "id"}, "ranges": {"t": {key: [0, 1]}}}
    assert read("segment", json.dumps({**segment, **ranges_}).encode()) is None


def test_a_partition_is_written_in_ascii_digits() -> None:
    segment = {
        "file": "f",
        "segments_dir": "",
        "rows": 1,
        "bytes": 1,
        "consumer": "",
        "incarnation": "a",
        "generation": 1,
    }

    for key in ("²", "٣", "1_0", "+1", " 1"):
        ranges_ = {"topics": {"t": "id"}, "ranges": {"t": {key: [0, 1]}}}
        assert read("segment", json.dumps({**segment, **ranges_}).encode()) is None
        assert read("topic", json.dumps({"partitions": {key: []}}).encode()) is None


def test_a_topic_has_each_partition_once_however_it_is_written() -> None:
    topic = read("topic", b'{"partitions":{"7":[],"07":[],"007":[]}}')

    assert topic is None or topic.partitions == (7,)


def test_a_sealed_range_ends_where_it_begins_or_later() -> None:
    segment = {
        "file": "f",
        "segments_dir": "",
        "rows": 1,
        "bytes": 1,
        "consumer": "",
        "incarnation": "a",
        "generation": 1,
    }

    for pair in ([5, 4], [-1, 4], [0, 2**64]):
        ranges_ = {"topics": {"t": "id"}, "ranges": {"t": {"0": pair}}}
        assert read("segment", json.dumps({**segment, **ranges_}).encode()) is None


def test_topic_without_an_id_is_distinguished_from_its_successor_by_its_czxid() -> None:
    data = b'{"version":1,"partitions":{"0":[1],"1":[1]}}'

    first, second = Topic.parse("where", "t", data, 16), Topic.parse("where", "t", data, 17)

    assert (first.id, first.partitions) == ("czxid-10", (0, 1))
    assert second.id == "czxid-11"


def test_channel_without_data_has_no_incarnation() -> None:
    channel = parsed_channel("where", b"")

    assert (channel.incarnation, channel.is_live, dict(channel.running)) == ("", False, {})


# ---- ranges


@effort(40)
@given(st.frozensets(st.integers(0, ranges.MAX_PARTITION), max_size=30))
@example(frozenset())
@example(frozenset(range(1000)))
@example(frozenset({0, ranges.MAX_PARTITION}))
def test_ranges_are_read_back_as_they_were_written(numbers: frozenset[int]) -> None:
    text = ranges.encode(numbers)

    assert ranges.decode(text) == numbers
    assert ranges.encode(ranges.decode(text)) == text


def test_ranges_are_written_as_short_as_people_would() -> None:
    assert ranges.encode([7, 0, 1, 2, 3, 3]) == "0-3,7"
    assert ranges.encode([5]) == "5"
    assert ranges.encode([]) == ""


@effort(40)
@given(st.text("0123456789-, ²", max_size=12) | st.text(max_size=12))
def test_a_text_is_ranges_or_a_value_error(text: str) -> None:
    try:
        found = ranges.decode(text)
    except ValueError:
        return
    assert all(0 <= number <= ranges.MAX_PARTITION for number in found)


@pytest.mark.parametrize("text", ["3-1", "-1", "1-", ",", "1,,2", "1, 2", "1000001", "99999999", "0x1", "1.0", "٣"])
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no partition range"):
        ranges.decode(text)


def test_what_a_few_bytes_name_is_bounded() -> None:
    """25,000 topics of a million partitions each fit into one znode: nobody may try to hold them."""
    fields = Fields("where", {"partitions": {f"t{number}": f"0-{ranges.MAX_PARTITION}" for number in range(3)}})

    with pytest.raises(BadData):
        fields.partitions("partitions")


def test_ranges_that_name_a_partition_again_and_again_are_refused() -> None:
    """Fifty thousand times a million fits into one znode, and would take half an hour to read."""
    with pytest.raises(ValueError, match="is no partition range"):
        ranges.decode("0-9,0-9")


@effort(20)
@given(st.frozensets(partitions, max_size=10))
def test_partitions_by_topic_are_the_same_set(some: frozenset[TopicPartition]) -> None:
    assert partition_set(by_topic(some)) == some


# ---- names


@effort(100)
@given(st.text(max_size=10) | st.text("./-_a0\n\x00\x7f", max_size=4))
def test_a_name_never_leaves_its_place_in_a_path(text: str) -> None:
    if is_name(text):
        assert text.isascii()
        assert text.isprintable()
        assert not set(text) & set("/ %\\")
        assert text not in ("", ".", "..")
        assert checked_name("group", text) == text


@pytest.mark.parametrize("text", ["", "/", "a/b", "..", ".", "a\n", "\na", "a\x00", "\x1b[31m", "a b", "ä", "a" * 250])
def test_what_is_no_name_is_refused_with_one_printable_sentence(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked_name("group", text)

    assert not is_name(text)
    assert str(caught.value).isprintable()
    assert "cannot name a group" in str(caught.value)


def test_a_name_has_249_characters_at_most() -> None:
    assert is_name("a" * MAX_NAME)
    assert MAX_NAME == 249


@effort(40)
@given(st.text(max_size=200) | documents)
def test_what_is_shown_is_printable_and_short(value: Any) -> None:
    text = shown(value)

    assert text.replace("…", "").isascii()
    assert text.isprintable()
    assert len(text) <= 12 * 81  # eighty characters, the longest of them as an escape of ten
