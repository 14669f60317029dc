"""A value of a public constructor is parsed as in the environment and in files, or refused by its name."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click
import numpy as np
import pyarrow as pa
import pytest

from consumer.cli import main as consumer_main
from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.group import GroupMember
from consumer.logs.base import MAX_TIMESTAMP_MS
from consumer.logs.embedded.producer import PendingRecords, Producer, stored_batches
from consumer.operator.consumer_operator import ConsumerOperator, Processor
from consumer.spark.fetchers.config import SlotConfig
from consumer.spark.fetchers.pool import slot_config, subscription_of
from consumer.spark.source.options import SourceConfig
from coordinator.admin.reset_offsets import ResetRequest, parse_plans
from coordinator.cli import main as coordinator_main
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.errors import UsageError
from coordinator.zk.security.access import ZooKeeperAccess
from coordinator.zk.values import MAX_NUMBER, Values, load, seconds, typed, whole
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import Topic
from tests.property.group_world import GroupWorld
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


# ---- offsets and times: any whole number from 0 to a bound, also numpy's; what is none is refused with the bound


T0 = TopicPartition("t", 0)
NO_NUMBERS = [-1, 2**63, True, np.True_, 1.0, float("nan"), float("inf"), "5", None, [1], np.float64(3)]


def consumer() -> Consumer:
    world = GroupWorld()
    config = ConsumerConfig("tree", "g", consumer="a")
    made = Consumer(config, Subscription({"t": 1}), None, MemoryLog(10), world.session, world.runtime)
    made._check_held = lambda partitions: None  # type: ignore[method-assign]
    return made


CALLS: dict[str, Callable[[object], object]] = {
    "commit": lambda value: consumer().commit({T0: value}),  # type: ignore[dict-item]
    "seek": lambda value: consumer().seek(T0, value),  # type: ignore[arg-type]
    "offsets_for_times": lambda value: consumer().offsets_for_times({T0: value}),  # type: ignore[dict-item]
    "start_position": lambda value: ConsumerConfig("zk:1", "g", start_position=value),  # type: ignore[arg-type]
    "reset-offsets": lambda value: ResetRequest(to_offset=value, all_topics=True),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_no_offset_and_no_time_is_a_usage_error(call: str, value: object) -> None:
    if call == "start_position" and (value == "5" or (isinstance(value, float) and value in (1, 3))):
        return  # it is parsed there, as in a file
    if call == "reset-offsets" and value is None:
        return
    with pytest.raises(UsageError):
        CALLS[call](value)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", [-1, 2**63], ids=repr)
def test_a_number_out_of_bounds_is_refused_with_the_bound(call: str, value: int) -> None:
    bound = 10**15 - 1 if call == "start_position" else 2**63 - 1
    with pytest.raises(UsageError, match=f"from 0 to {bound}"):
        CALLS[call](value)


def test_a_record_or_a_column_of_a_bad_time_is_refused_with_the_bound() -> None:
    for value in [*NO_NUMBERS, MAX_TIMESTAMP_MS + 1]:
        if value is not None:
            with pytest.raises(UsageError, match=f"from 0 to {MAX_TIMESTAMP_MS}"):
                PendingRecords().add(b"a", None, value, ())  # type: ignore[arg-type]
            with pytest.raises(UsageError, match=f"from 0 to {MAX_TIMESTAMP_MS}"):
                stored_batches([b"a"], timestamps_ms=value)
    for stamp in (-1, MAX_TIMESTAMP_MS + 1):
        with pytest.raises(UsageError, match=f"from 0 to {MAX_TIMESTAMP_MS}"):
            stored_batches([b"a", b"b"], timestamps_ms=pa.array([0, stamp]))


@pytest.mark.parametrize("value", [each for each in [*NO_NUMBERS, 2**70] if each != [1]], ids=repr)
def test_a_partition_or_a_size_of_a_producer_is_a_whole_number(value: object, tmp_path: Path) -> None:
    producer = Producer(tmp_path, {"t": Topic("t", "id", (0, 1, 2))})

    if value is not None:
        with pytest.raises(UsageError, match="partition"):
            producer.send("t", b"a", partition=value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="partition"):
        producer.send_batch("t", value, [b"a"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="batch_bytes"):
        Producer(tmp_path, {}, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["soon", None, float("nan"), True, 2**70], ids=repr)
def test_a_poll_takes_numbers_only(value: object) -> None:
    member = GroupMember("tree", "g", "jobs", {"jobs": b""}, lambda protocol, members: {})

    for polling in (consumer(), member):
        with pytest.raises(UsageError, match="timeout_ms"):
            polling.poll(value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(UsageError, match="max_records"):
            consumer().poll(0, value)  # type: ignore[arg-type]


def test_a_poll_without_a_limit_waits_as_long_as_a_thread_can() -> None:
    assert seconds(math.inf) == 10**9 <= threading.TIMEOUT_MAX


def test_an_offset_in_a_file_of_a_reset_is_bounded(tmp_path: Path) -> None:
    assert parse_plans(f"t,0,{MAX_NUMBER}\n", ["g"]) == {"g": {T0: MAX_NUMBER}}
    for offset in ("-1", "9223372036854775808"):
        with pytest.raises(UsageError, match="line 1"):
            parse_plans(f"t,0,{offset}\n", ["g"])


@pytest.mark.parametrize("value", [0, np.int64(7), np.uint8(7), MAX_NUMBER])
def test_any_object_with_an_index_is_a_whole_number(value: int) -> None:
    assert whole("offset", value) == int(value)
    assert type(whole("offset", value)) is int
    assert ConsumerConfig("zk:1", "g", start_position=min(value, 10**15 - 1)).start_rule.position is not None
    PendingRecords().add(b"a", None, np.int64(7), ())  # type: ignore[arg-type]
    stored_batches([b"a"], timestamps_ms=np.int64(7))


def _options(command: click.Command, name: str) -> Iterator[tuple[str, click.Parameter]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _options(found, f"{name} {below}")
    for each in command.params:
        yield name, each


def test_no_option_of_a_command_takes_seconds_that_no_wait_takes() -> None:
    mains = {"zk-coordinator": coordinator_main, "zk-consumer": consumer_main}
    options = [(name, one) for main, command in mains.items() for name, one in _options(command, main)]
    of_seconds = [(name, one) for name, one in options if isinstance(one.type, click.types.FloatParamType)]

    assert len(of_seconds) >= 8
    for name, one in of_seconds:
        for value in ("nan", "inf", "1e300", "-1"):
            with pytest.raises(click.BadParameter):
                one.type.convert(value, one, None)
                pytest.fail(f"{name} {one.name} takes {value}")
