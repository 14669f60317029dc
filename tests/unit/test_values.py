"""A value of a public constructor is parsed as in the environment and in files, or refused by its name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.group import GroupMember
from consumer.operator.consumer_operator import ConsumerOperator, Processor
from consumer.spark.fetchers.config import SlotConfig
from consumer.spark.fetchers.pool import slot_config, subscription_of
from consumer.spark.source.options import SourceConfig
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.errors import UsageError
from coordinator.zk.security.access import ZooKeeperAccess
from coordinator.zk.values import Values, load, typed
from tests.support.memlog import MemoryLog

GIVEN: dict[type[Values], dict[str, Any]] = {
    ConsumerConfig: {"zk": "zk:1", "group": "g"},
    CoordinatorConfig: {"zk": "zk:1"},
    SlotConfig: {"zk": "zk:1", "group": "g", "pool": "p", "log_dir": "/l", "segments_dir": "/s"},
    SourceConfig: {"zk": "zk:1", "group": "g"},
    Subscription: {"topics": {"t": 1}},
    ZooKeeperAccess: {},
}
FIELDS = [(kind, field.name, get_type_hints(kind)[field.name]) for kind in GIVEN for field in fields(kind)]  # type: ignore[arg-type]
OF_ANOTHER_TYPE: dict[Any, list[object]] = {
    int: ["soon", "", None, True, np.True_, 1.5, float("nan"), float("inf"), [1], "10000\x00"],
    float: ["soon", None, True, "nan", "inf", float("nan"), [1]],
    bool: ["perhaps", "", None, 0, 1, [True], np.int64(1)],
    str: [None, 5, True, ["a"], b"a"],
    tuple: [None, 5, True, {"a": 1}, [1], b"range"],
    dict: [None, 5, "a", ["a"], {"a": None}],
}


def other_types(hint: Any) -> list[object]:
    return OF_ANOTHER_TYPE[hint if hint in OF_ANOTHER_TYPE else tuple if get_origin(hint) is tuple else dict]


@pytest.mark.parametrize(("kind", "name", "hint"), [each for each in FIELDS if each[2] != str | int])
def test_a_value_of_another_type_is_refused_by_its_name(kind: type[Values], name: str, hint: Any) -> None:
    for value in other_types(hint):
        with pytest.raises(UsageError, match=name):
            kind(**{**GIVEN[kind], name: value})


@pytest.mark.parametrize(("kind", "name", "hint"), [each for each in FIELDS if each[2] in (int, float, bool)])
def test_text_means_what_it_means_in_the_environment(kind: type[Values], name: str, hint: type) -> None:
    given = kind(**GIVEN[kind])
    value = getattr(given, name)

    parsed = getattr(kind(**{**GIVEN[kind], name: str(value).lower()}), name)

    assert parsed == value and type(parsed) is hint


def test_constructor_environment_and_file_make_the_same_of_a_text(tmp_path: Path) -> None:
    values = {"enable_auto_commit": "false", "session_timeout_ms": "20000", "protocols": "range, sticky"}
    file = tmp_path / "config.toml"
    file.write_text("".join(f"{name} = '{value}'\n" for name, value in values.items()))
    given = {"zk": "zk:1", "group": "g", "consumer": "c"}

    made: list[ConsumerConfig] = [
        ConsumerConfig(**given, **values),  # type: ignore[arg-type]
        load(ConsumerConfig, given, env={f"ZK_GROUP_{name.upper()}": value for name, value in values.items()}),
        load(ConsumerConfig, given, file, env={}),
    ]

    assert made[0] == made[1] == made[2]
    assert made[0].enable_auto_commit is False
    assert (made[0].session_timeout_ms, made[0].protocols) == (20_000, ("range", "sticky"))


def test_numpy_numbers_and_paths_are_numbers_and_texts() -> None:
    config = ConsumerConfig("zk:1", "g", session_timeout_ms=np.int64(20_000), log_dir=Path("/a"))  # type: ignore[arg-type]

    assert (type(config.session_timeout_ms), config.session_timeout_ms, config.log_dir) == (int, 20_000, "/a")


@pytest.mark.parametrize("topics", [["one"], "one", {"one": "two"}, {"one": True}, {1: 1}, None, 5])
def test_topics_that_are_no_mapping_of_threads_are_refused(topics: Any) -> None:
    with pytest.raises(UsageError, match="topics"):
        Subscription(topics)


def test_threads_of_a_topic_are_parsed() -> None:
    assert Subscription({"one": "2"}).topics == {"one": 2}  # type: ignore[dict-item]


@pytest.mark.parametrize("topics", ["one", 5, True])
def test_a_pools_topics_are_a_list_or_a_mapping(topics: Any) -> None:
    with pytest.raises(UsageError, match="topics"):
        subscription_of(topics, None, None)


@pytest.mark.parametrize("protocols", ["sticky,range", ["sticky", "range"], ("sticky", "range")])
def test_a_pools_protocols_are_a_list_or_a_text_with_commas(protocols: Any) -> None:
    given = {"zk": "zk:1", "group": "g", "log_dir": "/l", "segments_dir": "/s", "protocols": protocols}

    assert slot_config(given, "p").consumer_config(0).protocols == ("sticky", "range")


@pytest.mark.parametrize("protocols", ["jobs", ["jobs"], {"jobs": "metadata"}, None, 5])
def test_a_members_protocols_are_a_mapping_of_bytes(protocols: Any) -> None:
    with pytest.raises(UsageError, match="protocols"):
        GroupMember("zk:1", "g", "jobs", protocols, lambda protocol, members: {})


def test_a_members_options_are_parsed_or_refused_by_their_names() -> None:
    def member(**options: Any) -> GroupMember:
        return GroupMember("zk:1", "g", "jobs", {"jobs": b""}, lambda protocol, members: {}, **options)

    member(session_timeout_ms="20000")
    with pytest.raises(UsageError, match="session_timeout_ms"):
        member(session_timeout_ms="soon")


@pytest.mark.parametrize(("kind", "name", "hint"), [each for each in FIELDS if each[2] in (int, float)])
def test_a_number_beyond_all_bounds_is_refused_by_its_name(kind: type[Values], name: str, hint: Any) -> None:
    for value in (2**70, -(2**70), str(2**70)):
        with pytest.raises(UsageError, match=name):
            kind(**{**GIVEN[kind], name: value})


def test_durations_fit_into_the_waits_and_the_messages_that_they_bound() -> None:
    with pytest.raises(UsageError, match="session_timeout_ms must be 2147483647 or less"):
        ConsumerConfig("zk:1", "g", session_timeout_ms=2**31)
    with pytest.raises(UsageError, match="connect_timeout_ms must be 1000000000000 or less"):
        CoordinatorConfig("zk:1", connect_timeout_ms=10**12 + 1)


def test_an_object_with_an_index_is_a_whole_number() -> None:
    class Index:
        def __index__(self) -> int:
            return 20_000

    assert ConsumerConfig("zk:1", "g", session_timeout_ms=Index()).session_timeout_ms == 20_000  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [5, None, b"a"])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(UsageError, match="protocol type"):
        GroupMember("zk:1", "g", name, {"jobs": b""}, lambda protocol, members: {})
    with pytest.raises(UsageError, match="protocol"):
        GroupMember("zk:1", "g", "jobs", {name: b""}, lambda protocol, members: {})


def test_operator_driven_is_a_switch() -> None:
    config = ConsumerConfig("zk:1", "g", region="r")

    def operator(is_driven: Any) -> ConsumerOperator:
        return ConsumerOperator(config, Subscription({"t": 1}), Processor(), is_driven, source=MemoryLog())

    assert operator("false")._defers is False
    with pytest.raises(UsageError, match="operator_driven"):
        operator("perhaps")


def test_each_type_of_a_field_has_its_parser() -> None:
    unparsed = [(name, hint) for _, name, hint in FIELDS if not get_args(hint) and hint not in OF_ANOTHER_TYPE]

    assert unparsed == []
    assert typed("start_position", np.int64(5), str | int) == 5
    with pytest.raises(UsageError, match="start_position"):
        typed("start_position", True, str | int)
