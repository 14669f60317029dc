"""docs/strategies.md: its examples equal the strategies' assignments, and its code runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumer.assignment.base import Cluster
from consumer.assignment.consumers import ENTRY_POINTS as CLIENT_ENTRY_POINTS
from consumer.assignment.consumers import RESERVED, named
from consumer.assignment.metadata import ConsumerMetadata
from coordinator.assignors import Subscriber, assigned
from coordinator.assignors.registry import BUILT_IN, ENTRY_POINTS
from coordinator.zk.znodes.records import Topic
from tests.unit.strategies import after, by_consumer, given, member, numbered, parts

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()


def tables() -> Iterator[dict[str, dict[str, str]]]:
    """Each table of shares: strategy -> consumer -> text."""
    for head, rows in re.findall(r"^\| strategy \|( c1 .*)\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", PAGE, re.MULTILINE):
        consumers = [name.strip() for name in head.split("|")]
        cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
        yield {row[0].strip("`"): dict(zip(consumers, row[1:], strict=True)) for row in cells}


FIRST, JOINED, MIXED = tables()


@pytest.mark.parametrize("strategy", JOINED)
def test_examples_are_the_assignments_of_the_strategies(strategy: str) -> None:
    three = [member(name, "flights hotels") for name in ("c1", "c2", "c3")]
    mixed = [member("c1", "flights"), member("c2", "flights hotels"), member("c3", "flights")]
    topics = numbered("flights:3 hotels:3")
    first = given(strategy, three[:2], topics)
    joined = given(strategy, after(three, first), topics)
    alike = strategy.removeprefix("cooperative-")

    for shown, found in (
        (FIRST[alike], first),
        (JOINED[strategy], joined),
        (MIXED[alike], given(strategy, mixed, numbered("flights:3 hotels:2"))),
    ):
        assert by_consumer(found) == {consumer: parts(text) for consumer, text in shown.items()}


def test_the_page_names_every_strategy_and_the_group_of_entry_points() -> None:
    assert set(JOINED) == set(BUILT_IN)
    assert f"\n{ENTRY_POINTS} =" in PAGE
    assert f"\n{CLIENT_ENTRY_POINTS} =" in PAGE and RESERVED - set(BUILT_IN) == {"lag", "rack"}
    assert all(f"\n| `{name}` |" in PAGE for name in RESERVED)


def ran(nth: int) -> dict[str, Any]:
    """The names that the page's `nth` example defines."""
    made: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[nth], made)  # the page's own code
    return made


def test_strategy_of_the_page_fulfils_its_contract() -> None:
    made = ran(0)
    members = [Subscriber("a", {"t": 1}), Subscriber("b", {"t": 1, "u": 2})]

    found = assigned(made["FirstAssignor"](), members, {"t": (0, 1), "u": (0,)})

    assert found == {"a": {"a-0": parts("t:0-1")}, "b": {"b-0": parts("u:0")}}


def test_client_assignor_of_the_page_uses_the_cores_that_each_member_declares() -> None:
    assignor = ran(1)["CoresAssignor"]()
    (given,) = named(["cores"], [assignor])
    topics = {"t": Topic("t", "id", tuple(range(6))), "other": Topic("other", "id", (0,))}
    metadata = {name: ConsumerMetadata({"t": 1}, user_data=cores).to_bytes() for name, cores in CORES.items()}

    found = given.assign(Cluster(topics, {}, cast(Any, SimpleNamespace(racks=None, **NOTHING))), metadata)

    assert {name: len(one.partitions) for name, one in found.items()} == {"a": 4, "b": 2}
    assert int(ConsumerMetadata.parse("", given.metadata(ConsumerMetadata({"t": 1}))).user_data) >= 1


CORES = {"a": b"8", "b": b"4"}
NOTHING = dict.fromkeys(("committed", "end_offsets", "beginning_offsets"))
