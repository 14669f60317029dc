"""Start positions, their syntax and their decisions; and rows of a fetch as records for an application."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.memlog import MemoryLog, TimedLog
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.consumer import records_of
from zk_group.consumer.errors import NoOffsetForPartition
from zk_group.consumer.logs import open_log
from zk_group.consumer.logs.base import LOG_SCHEMA, Fetch
from zk_group.consumer.membership.start_position import OffsetSpec, StartOffset, StartRule, Starts, came_later
from zk_group.consumer.streaming.fetchers.config import SlotConfig
from zk_group.consumer.streaming.fetchers.pool import slot_config
from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.store import Node, Stat
from zk_group.coordinator.zk.values import load, time_text
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import BegunRecord

T0 = TopicPartition("t", 0)
BEGINNING, END = OffsetSpec("beginning"), OffsetSpec("end")
NOON_MS = 1_795_262_400_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("beginning", BEGINNING),
        ("end", END),
        ("committed", None),
        (" end ", END),
        ("1795262400000", OffsetSpec("timestamp", NOON_MS)),
        (NOON_MS, OffsetSpec("timestamp", NOON_MS)),
        ("0", OffsetSpec("timestamp", 0)),
        ("20261121", OffsetSpec("timestamp", 20_261_121)),
        ("2026-11-21T12:00:00Z", OffsetSpec("timestamp", NOON_MS)),
        ("2026-11-21T12:00", OffsetSpec("timestamp", NOON_MS)),
        ("2026-11-21T12:00:00.250", OffsetSpec("timestamp", NOON_MS + 250)),
        ("2026-11-21T13:00:00+01:00", OffsetSpec("timestamp", NOON_MS)),
        ("2026-11-21T06:30:00.000-0530", OffsetSpec("timestamp", NOON_MS)),
    ],
)
def test_a_start_position_is_a_word_or_a_time(text: str | int, place: OffsetSpec | None) -> None:
    assert StartRule.parse(text, "earliest") == StartRule(place, "earliest")


@pytest.mark.parametrize(
    "text",
    ["", "latest", "Beginning", "-1", "1.5", "2026-11-21", "2026-13-21T00:00:00", "1969-12-31T23:00Z", "9" * 16, "٣"],
)
def test_invalid_start_position_is_refused_with_the_valid_ones(text: str) -> None:
    with pytest.raises(UsageError, match="start_position must be beginning, end, committed, or a time: 2026-"):
        StartRule.parse(text, "earliest")


def test_an_auto_offset_reset_that_kafka_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="auto_offset_reset must be one of earliest, latest, none, not 'smallest'"):
        ConsumerConfig("h:1", "g", "c", auto_offset_reset="smallest")


@pytest.mark.parametrize(
    ("position", "reset", "at_first", "later"),
    [
        ("beginning", "latest", BEGINNING, BEGINNING),
        ("end", "earliest", END, BEGINNING),
        ("end", "none", END, BEGINNING),
        ("committed", "earliest", BEGINNING, BEGINNING),
        ("committed", "latest", END, BEGINNING),
        ("committed", "none", None, None),
        ("1000", "latest", OffsetSpec("timestamp", 1000), BEGINNING),
    ],
)
def test_start_position_applies_to_partitions_present_at_the_start_of_the_group(
    position: str, reset: str, at_first: OffsetSpec | None, later: OffsetSpec | None
) -> None:
    rule = StartRule.parse(position, reset)

    assert (rule.place(came_later=False), rule.place(came_later=True)) == (at_first, later)


NOTE = BegunRecord("id", frozenset(range(4))).to_bytes()
NOTES: dict[str, tuple[bytes | None, str, int, bool]] = {
    "there": (NOTE, "id", 0, False),
    "there, the last": (NOTE, "id", 3, False),
    "added": (NOTE, "id", 4, True),
    "recreated": (NOTE, "another", 0, True),
    "note removed by hand": (None, "id", 0, True),
    "note of an earlier release": (b"", "id", 0, True),
}


@pytest.mark.parametrize(("note", "topic_id", "partition", "is_later"), NOTES.values(), ids=NOTES)
def test_partition_not_in_the_note_is_later(note: bytes | None, topic_id: str, partition: int, is_later: bool) -> None:
    assert came_later("where", node(note), topic_id, partition) is is_later


def test_a_note_that_cannot_be_read_decides_nothing() -> None:
    with pytest.raises(BadData, match="where"):
        came_later("where", node(b'{"topic_id":"id","partitions":"4-0"}'), "id", 0)


def node(data: bytes | None) -> Node | None:
    return Node(data, Stat(0, 0, 0, 0, 0, 0, 0)) if data is not None else None


@pytest.mark.parametrize(
    ("position", "offset"), [("beginning", 5), ("end", 50), ("10000", 10), ("10001", 11), ("0", 5), ("90000", 50)]
)
def test_a_place_is_found_in_the_log(position: str, offset: int) -> None:
    starts = Starts(TimedLog(end=50, begin=5), StartRule.parse(position, "earliest"))

    assert starts.find(T0, "id", came_later=False).offset == offset


@pytest.mark.parametrize("position", ["beginning", "end", "1000"])
def test_unwritten_topic_begins_at_its_first_record(tmp_path: Path, position: str) -> None:
    starts = Starts(open_log(str(tmp_path)), StartRule.parse(position, "earliest"))

    assert starts.find(T0, "id", came_later=False).offset == 0


@pytest.mark.parametrize(
    ("region", "words"),
    [
        ("", "no offset for t-0, and auto_offset_reset is none: set one with"),
        ("r", "auto_offset_reset is none: choose a start with start_position"),
    ],
)
def test_missing_offset_without_a_reset_is_an_error_with_a_remedy(region: str, words: str) -> None:
    with pytest.raises(NoOffsetForPartition, match=words):
        Starts(MemoryLog(), StartRule.parse("committed", "none"), region).find(T0, "id", came_later=False)


def test_time_is_recorded_in_a_readable_format() -> None:
    assert StartOffset(3, OffsetSpec("timestamp", NOON_MS)).place.text == "2026-11-21T12:00:00.000Z"
    assert time_text(10**18) == "1000000000000000000"


def test_start_position_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "consumer.toml"
    file.write_text(f'zk = "h:1"\ngroup = "g"\nstart_position = {NOON_MS}\n')

    configs = [load(ConsumerConfig, {}, file, env=env) for env in ({}, {"ZK_GROUP_START_POSITION": "end"})]

    assert [config.start_rule.position for config in configs] == [OffsetSpec("timestamp", NOON_MS), END]
    file.write_text('zk = "h:1"\ngroup = "g"\nstart_position = true\n')
    with pytest.raises(UsageError, match="start_position must be a text or a whole number"):
        load(ConsumerConfig, {}, file, env={})


def test_a_pool_passes_its_start_position_to_every_slot(tmp_path: Path) -> None:
    options = {"zk": "h:1", "group": "g", "log_dir": str(tmp_path), "segments_dir": str(tmp_path)}

    config = slot_config({**options, "start_position": NOON_MS, "auto_offset_reset": "latest"}, "p")

    assert config.consumer_config(3).start_rule == StartRule(OffsetSpec("timestamp", NOON_MS), "latest")
    with pytest.raises(UsageError, match="start_position must be beginning"):
        SlotConfig(**options, pool="p", start_position="yesterday")  # type: ignore[arg-type]


# ---- rows of a fetch as records for an application


@pytest.fixture
def no_time_zones(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without a database of time zones, as a small container image is."""
    for package in ("tzdata", "pytz"):
        monkeypatch.setitem(sys.modules, package, None)
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()


def test_records_are_read_on_a_machine_without_time_zone_data(no_time_zones: None) -> None:
    with pytest.raises(zoneinfo.ZoneInfoNotFoundError):
        zoneinfo.ZoneInfo("UTC")
    row = {
        "key": None,
        "value": b"v",
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_795_246_698_088_000,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}],
    }
    without_time = {**row, "offset": 8, "timestamp": None, "headers": None}
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[field.name], without_time[field.name]], field.type) for field in LOG_SCHEMA], schema=LOG_SCHEMA
    )

    found = records_of(Fetch(TopicPartition("t", 3), "id", 7, 9, [batch]))

    assert [(record.offset, record.timestamp_ms) for record in found] == [(7, 1_795_246_698_088), (8, -1)]
    assert (found[0].value, found[0].headers, found[1].headers) == (b"v", (("h", b"x"),), ())
