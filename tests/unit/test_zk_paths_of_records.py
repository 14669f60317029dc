"""zk_paths.md has every required field, default and bound of a znode: as the code reads records without one of them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.zk.errors import BadData
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.records import STATIC, Registration, Seat
from tests.support.pages import rows
from tests.unit.test_zk_paths import NAMES, OFFER, WRITTEN, section

TEXT = section("Missing fields and bounds")
REQUIRED, BOUNDS = TEXT.split("\nBounds ")
PLAIN = Registration("i", {"t": 2}, STATIC, protocols=("sticky",), max_poll_interval_ms=2, client=OFFER)
RECORDS = [each for each in WRITTEN if not each[0].startswith("/brokers")] + [
    ("ids/[consumer]", PLAIN),
    ("seats/[instance]", Seat(PLAIN, 1)),
]
Path = tuple[Any, ...]


def read(record: Any, values: Any) -> Any:
    """The values of a record as the code reads it.

    :raises BadData: when it cannot.
    """
    return json.loads(type(record).parse("a znode", json.dumps(values).encode()).to_bytes())


def paths_of(value: Any, above: Path = ()) -> Iterator[Path]:
    """The paths of all fields in a record's values."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        if isinstance(value, dict) and key not in NAMES | {"version"}:
            yield (*above, key)
        yield from paths_of(each, (*above, key))


def name_of(path: Path) -> str:
    return ".".join(key for key in path if isinstance(key, str) and key not in NAMES)


def without(values: Any, path: Path) -> Any:
    copied = json.loads(json.dumps(values))
    inner = copied
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copied


def at(values: Any, path: Path) -> Any:
    """The value at a path; None where the record leaves it out."""
    for key in path:
        if isinstance(values, dict) and key not in values:
            return None
        values = values[key]
    return values


def as_read() -> tuple[dict[str, set[str]], dict[str, dict[str, Any]]]:
    """Section -> its required fields, and those with a default that is not the empty value of its type."""
    required: defaultdict[str, set[str]] = defaultdict(set)
    defaults: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    has_default: defaultdict[str, set[str]] = defaultdict(set)
    for title, record in RECORDS:
        values = json.loads(record.to_bytes())
        for path in paths_of(values):
            try:
                default = at(read(record, without(values, path)), path)
            except BadData:
                required[title].add(name_of(path))
                continue
            has_default[title].add(name_of(path))
            if default:
                defaults[title][name_of(path)] = default
    for title, names in has_default.items():
        required[title] -= names
    return {title: names for title, names in required.items() if names}, dict(defaults)


def table() -> tuple[dict[str, set[str]], dict[str, dict[str, Any]]]:
    """The same from the document."""
    required, defaults = {}, {}
    for title, needed, others in list(rows(REQUIRED))[1:]:
        names = set(re.findall(r"`([a-z0-9_.]+)`", re.sub(r"\(.*?\)|;.*", "", needed)))
        found = {name: json.loads(value) for name, value in re.findall(r"`([\w.]+)` = `([^`]+)`", others)}
        if "those of `ids/[consumer]`" in needed:
            names |= required["ids/[consumer]"]
            found |= defaults["ids/[consumer]"]
        required[title.strip("`")], defaults[title.strip("`")] = names, found
    return {t: names for t, names in required.items() if names}, {t: some for t, some in defaults.items() if some}


def test_required_fields_of_the_document_are_those_that_no_record_is_read_without() -> None:
    assert table()[0] == as_read()[0]


def test_the_defaults_of_the_document_are_those_of_the_code() -> None:
    assert table()[1] == as_read()[1]


@pytest.mark.parametrize(("title", "field", "least", "most"), list(rows(BOUNDS))[1:])
def test_bounds_of_the_document_are_the_last_values_that_are_read(
    title: str, field: str, least: str, most: str
) -> None:
    title, field = title.strip("`"), field.strip("`")
    record = next(record for name, record in RECORDS if name == title)
    values = json.loads(record.to_bytes())
    low, high = (int(text.replace(",", "")) for text in (least, most))

    def is_read(number: int) -> bool:
        try:
            read(record, {**values, field: "x" * number if isinstance(values[field], str) else number})
        except BadData:
            return False
        return True

    assert (is_read(low), is_read(high), is_read(high + 1)) == (True, True, False)
    assert low == 0 or not is_read(low - 1)


def test_grants_in_a_state_of_an_earlier_release_are_passed_over_and_not_written() -> None:
    data = GroupState(generation=3).to_bytes()[:-1] + b',"granted":{"c1":{"incarnation":7,"partitions":"all"}}}'

    state = GroupState.parse("state", data)

    assert state == GroupState(generation=3)
    assert b"granted" not in state.to_bytes()
