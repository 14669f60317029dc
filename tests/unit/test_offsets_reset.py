"""Decisions of `groups reset-offsets`: scopes, times, files, and the offset of each partition."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from zk_group.coordinator.admin.reset_offsets import (
    BY_DURATION,
    FROM_FILE,
    SCENARIOS,
    SHIFT_BY,
    TO_CURRENT,
    TO_DATETIME,
    TO_EARLIEST,
    TO_LATEST,
    TO_OFFSET,
    NewOffset,
    PartitionOffsets,
    ResetRequest,
    Scenario,
    Scope,
    chosen,
    parse_datetime,
    parse_duration,
    parse_plans,
    parse_scope,
    planned,
    to_csv,
)
from zk_group.coordinator.zk.errors import CoordinatorError, UsageError
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import Topic

T0 = TopicPartition("t", 0)
TOPICS = {"t": Topic("t", "id", (0, 1, 2)), "empty": Topic("empty", "id2", ())}


def ms(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


# ---- scopes


def test_a_topic_means_all_its_partitions_and_several_scopes_are_joined_in_order() -> None:
    scopes = [Scope("t", frozenset([2])), Scope("t", frozenset([0]))]

    assert chosen(scopes, TOPICS) == [("t", 0), ("t", 2)]
    assert chosen([Scope("t"), *scopes], TOPICS) == [("t", 0), ("t", 1), ("t", 2)]
    assert chosen([Scope("empty")], TOPICS) == []


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (Scope("u"), "there is no topic u"),
        (Scope("u", frozenset([0])), "there is no topic u"),
        (Scope("t", frozenset([3])), "topic t has no partition 3"),
        (Scope("empty", frozenset([0])), "topic empty has no partition 0"),
    ],
)
def test_missing_partition_is_a_usage_error(scope: Scope, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        chosen([Scope("t"), scope], TOPICS)


# ---- times


PARSED: dict[Callable[[str], object], dict[str, object]] = {
    parse_scope: {
        "t": Scope("t"),
        "t:0": Scope("t", frozenset([0])),
        "t:0,1,2": Scope("t", frozenset([0, 1, 2])),
        "t:0, 7": Scope("t", frozenset([0, 7])),
        "t:0-2,7": Scope("t", frozenset([0, 1, 2, 7])),
        "a.b_c-d:1": Scope("a.b_c-d", frozenset([1])),
    },
    parse_duration: {
        "PT1M": 60_000,
        "PT0.1S": 100,
        "PT0,1S": 100,
        "P1D": 86_400_000,
        "P1DT2H3M4S": 93_784_000,
        "PT2H": 7_200_000,
        "pt90s": 90_000,
        "PT0S": 0,
        "PT0.0019S": 1,
        "P999999999D": 86_400_000 * 999_999_999,
    },
    parse_datetime: {  # UTC, unless it names its zone
        "2026-11-21T10:00:00.000": ms(2026, 11, 21, 10),
        "2026-11-21T10:00:00.123": ms(2026, 11, 21, 10) + 123,
        "2026-11-21T10:00:00": ms(2026, 11, 21, 10),
        "2026-11-21T10:00": ms(2026, 11, 21, 10),
        "2026-11-21T10:00:00.000Z": ms(2026, 11, 21, 10),
        "2026-11-21T10:00:00.000+02:00": ms(2026, 11, 21, 8),
        "2026-11-21T10:00:00.000+0200": ms(2026, 11, 21, 8),
        "2026-11-21T10:00:00.000+05:30": ms(2026, 11, 21, 4) + 30 * 60_000,
        "2026-11-21T10:00:00-03": ms(2026, 11, 21, 13),
        "1969-12-31T23:59:59.999": -1,
    },
}


@pytest.mark.parametrize(
    ("parse", "text", "wanted"), [(parse, *each) for parse, texts in PARSED.items() for each in texts.items()]
)
def test_scope_iso_8601_duration_or_time_is_parsed(parse: Callable[[str], object], text: str, wanted: object) -> None:
    assert parse(text) == wanted


INVALID: tuple[tuple[Callable[[str], object], str, list[str]], ...] = (
    (parse_scope, "names no", ["", ":0", "t:", "t:x", "t:-1", "t:1,", "t:0,0", "a/b", "..", "t:1:2", "t:99999999"]),
    (
        parse_duration,
        "is no duration",
        ["", "P", "PT", "P1DT", "1D", "P1M", "P1Y", "P1W", "PT1.5H", "P-1D", "PT1S1M", "PT.5S"],
    ),
    (
        parse_datetime,
        "is no date and time",
        ["", "now", "2026-11-21", "2026-13-01T00:00:00", "21.11.2026 10:00", "2026-11-21 10:00:00", "1795246697597"],
    ),
)


@pytest.mark.parametrize(("parse", "words", "text"), [(*each, text) for *each, texts in INVALID for text in texts])
def test_invalid_scope_duration_or_time_is_a_usage_error(parse: Callable[[str], object], words: str, text: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(text)


# ---- scenarios


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"to_offset": 0}, Scenario(TO_OFFSET, 0)),
        ({"to_offset": 50}, Scenario(TO_OFFSET, 50)),
        ({"to_earliest": True}, Scenario(TO_EARLIEST)),
        ({"to_latest": True}, Scenario(TO_LATEST)),
        ({"to_current": True}, Scenario(TO_CURRENT)),
        ({"shift_by": -5}, Scenario(SHIFT_BY, -5)),
        ({"shift_by": 0}, Scenario(SHIFT_BY, 0)),
        ({"from_file": "f"}, Scenario(FROM_FILE)),
        ({"to_datetime": "1970-01-01T00:00:01Z"}, Scenario(TO_DATETIME, timestamp_ms=1000)),
        ({"to_datetime": "1960-01-01T00:00:01Z"}, Scenario(TO_DATETIME, timestamp_ms=0)),
        ({"by_duration": "PT1S", "now_ms": 5000}, Scenario(BY_DURATION, timestamp_ms=4000)),
        ({"by_duration": "P1000D", "now_ms": 5000}, Scenario(BY_DURATION, timestamp_ms=0)),
    ],
)
def test_one_scenario_determines_the_offset(options: dict[str, Any], wanted: Scenario) -> None:
    assert request(**options).to == wanted


def request(**options: Any) -> ResetRequest:
    return ResetRequest(**options, all_topics="from_file" not in options)


ALL = {"all_topics": True}
LATEST = {"to_latest": True}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ALL, "there is none"),
        ({"to_offset": 0, "shift_by": 0, **ALL}, "not --to-offset and --shift-by"),
        ({"to_earliest": True, **LATEST, "from_file": "f"}, "--to-earliest and --to-latest and --from-file"),
        (LATEST, "One of the reset scopes"),
        ({**LATEST, "topics": ("t",), **ALL}, "One of the reset scopes"),
        ({**LATEST, "topics": ("t:x",)}, "names no partitions"),
        ({**LATEST, "topics": ("t",), "dry_run": True, "execute": True}, "contradict each other"),
        ({"from_file": Path("plan.csv"), **ALL}, "neither --topic nor --all-topics"),
    ],
)
def test_missing_or_contradictory_options_are_a_usage_error(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ResetRequest(**options)


def test_each_scenario_is_named_where_none_is_given() -> None:
    with pytest.raises(UsageError) as raised:
        ResetRequest(**ALL)

    assert all(f"--{name}" in str(raised.value) for name in SCENARIOS)


def test_file_determines_the_partitions() -> None:
    assert ResetRequest(from_file=Path("plan.csv")).scopes is None
    assert ResetRequest(to_latest=True, topics=("t:0", "u")).scopes == [Scope("t", frozenset([0])), Scope("u")]


# ---- files


@pytest.mark.parametrize(
    ("text", "groups", "plans"),
    [
        ("t,0,5\n\n t , 1 , 7 \n", ["g"], {"g": {("t", 0): 5, ("t", 1): 7}}),
        ("g,t,0,5\nh,t,0,6\r\ng,u,1,7", ["g", "h"], {"g": {("t", 0): 5, ("u", 1): 7}, "h": {("t", 0): 6}}),
        ("g,t,0,5\nh,t,0,6\n", ["h"], {"h": {("t", 0): 6}}),
        ("", ["g"], {}),
        (f"t,0,{2**63 - 1}\n", ["g"], {"g": {("t", 0): 2**63 - 1}}),
    ],
    ids=["of one group", "of several", "of groups that were not named", "empty", "the largest offset"],
)
def test_a_file_is_read(text: str, groups: list[str], plans: dict[str, Any]) -> None:
    assert parse_plans(text, groups) == plans


@pytest.mark.parametrize(
    ("text", "groups", "words"),
    [
        ("t,0", ["g"], "line 1 is not of the form group,topic,partition,offset"),
        ("t,0,5\ng,t,1,5\n", ["g"], "line 2 is not of the form topic,partition,offset"),
        ("t,0,5\n", ["g", "h"], "are for one group"),
        ("t,0,x\n", ["g"], "line 1 names no topic, partition and offset"),
        ("t,-1,5\n", ["g"], "line 1 names no topic"),
        ("t,0,-1\n", ["g"], "line 1"),
        (f"t,0,{2**63}\n", ["g"], "line 1"),
        ("a/b,0,5\n", ["g"], "line 1 names no topic"),
        ("t,0,5\nt,0,6\n", ["g"], "line 2 repeats t-0 of group g"),
        ("TOPIC,PARTITION,NEW-OFFSET\n", ["g"], "line 1 names no topic"),
    ],
)
def test_malformed_file_is_a_usage_error(text: str, groups: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_plans(text, groups)


@pytest.mark.parametrize("with_group", [True, False])
def test_exported_offsets_can_be_read_again(with_group: bool) -> None:
    rows = [("g", T0, 5), ("g", TopicPartition("u", 12), 2**62)]

    text = to_csv(rows, with_group)

    assert text.splitlines()[0] == ("g,t,0,5" if with_group else "t,0,5")
    assert parse_plans(text, ["g"]) == {"g": {partition: offset for _, partition, offset in rows}}


# ---- offsets


def known(current: int | None = 50, earliest: int = 10, latest: int = 100, at: int | None = None) -> PartitionOffsets:
    return PartitionOffsets(T0, "id", current, None if current is None else 3, earliest, latest, at)


@pytest.mark.parametrize(
    ("to", "partition", "wanted"),
    [
        (Scenario(TO_OFFSET, 60), known(), 60),
        (Scenario(TO_OFFSET, 100), known(), 100),
        (Scenario(TO_OFFSET, 10), known(), 10),
        (Scenario(TO_EARLIEST), known(), 10),
        (Scenario(TO_LATEST), known(), 100),
        (Scenario(TO_CURRENT), known(), 50),
        (Scenario(TO_CURRENT), known(current=None), 100),
        (Scenario(TO_CURRENT), known(current=0), 0),
        (Scenario(SHIFT_BY, -30), known(), 20),
        (Scenario(SHIFT_BY, 30), known(), 80),
        (Scenario(TO_DATETIME, timestamp_ms=1), known(at=42), 42),
        (Scenario(BY_DURATION, timestamp_ms=1), known(at=10), 10),
    ],
)
def test_each_scenario_sets_its_offset(to: Scenario, partition: PartitionOffsets, wanted: int) -> None:
    assert planned(to, partition) == NewOffset(partition, wanted)


EMPTY = "Partition 0 from topic t is empty. Falling back to latest known offset."


@pytest.mark.parametrize(
    ("to", "at", "wanted", "words"),
    [
        (Scenario(TO_OFFSET, 101), None, 100, "New offset (101) is higher than latest offset for topic partition t-0"),
        (Scenario(TO_OFFSET, 9), None, 10, "New offset (9) is lower than earliest offset for topic partition t-0"),
        (Scenario(TO_OFFSET, -1), None, 10, "lower than earliest"),
        (Scenario(SHIFT_BY, 51), None, 100, "New offset (101) is higher"),
        (Scenario(SHIFT_BY, -50), None, 10, "New offset (0) is lower"),
        (Scenario(TO_DATETIME, timestamp_ms=1), None, 100, EMPTY),
        (Scenario(TO_DATETIME, timestamp_ms=1), 100, 100, EMPTY),
    ],
)
def test_offset_beyond_the_log_is_its_nearest_end(to: Scenario, at: int | None, wanted: int, words: str) -> None:
    new = planned(to, known(at=at))

    assert (new.offset, words in (new.warning or "")) == (wanted, True)
    assert words == EMPTY or f"Value will be set to {wanted}" in (new.warning or "")


def test_partition_without_an_offset_cannot_be_shifted() -> None:
    with pytest.raises(CoordinatorError, match="Cannot shift offset for partition t-0 since there is no current"):
        planned(Scenario(SHIFT_BY, 1), known(current=None))


def test_file_sets_the_offset_of_each_partition_within_the_bounds_of_the_log() -> None:
    to = Scenario(FROM_FILE)

    assert planned(to, known(), {T0: 77}) == NewOffset(known(), 77)
    assert planned(to, known(), {T0: 777}).offset == 100
