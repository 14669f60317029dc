"""A value of a public constructor is parsed as in the environment and in files, or refused by its name."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

import click
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.property.group_world import GroupWorld
from tests.support.memlog import MemoryLog
from tests.unit.test_config import refused
from zk_group.consumer.cli import main as consumer_main
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.group import GroupMember
from zk_group.consumer.logs.base import MAX_TIMESTAMP_MS
from zk_group.consumer.logs.embedded.producer import PendingRecords, Producer, stored_batches
from zk_group.consumer.logs.kafka.options import kafka_options, with_sources
from zk_group.consumer.operator.consumer_operator import ConsumerOperator, Processor
from zk_group.consumer.streaming.fetchers.config import SlotConfig
from zk_group.consumer.streaming.fetchers.pool import slot_config, subscription_of
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.coordinator.admin.reset_offsets import ResetRequest
from zk_group.coordinator.cli import main as coordinator_main
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.zk import values
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.security.access import ZooKeeperAccess
from zk_group.coordinator.zk.values import MAX_NUMBER, Values, load, seconds, typed, whole
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import Topic

GIVEN: dict[type[Values], dict[str, Any]] = {
    ConsumerConfig: {"zk": "zk:1", "group": "g"},
    CoordinatorConfig: {"zk": "zk:1"},
    SlotConfig: {"zk": "zk:1", "group": "g", "pool": "p", "log_dir": "/l", "segments_dir": "/s"},
    SourceConfig: {"zk": "zk:1", "group": "g"},
    Subscription: {"topics": {"t": 1}},
    ZooKeeperAccess: {},
}
FIELDS = [(kind, field.name, get_type_hints(kind)[field.name]) for kind in GIVEN for field in fields(kind)]  # type: ignore[arg-type]
BEYOND = (2**70, -(2**70), str(2**70))
OF_ANOTHER_TYPE: dict[Any, list[object]] = {
    int: ["soon", "", None, True, np.True_, 1.5, float("nan"), float("inf"), [1], "10000\x00", *BEYOND],
    float: ["soon", None, True, "nan", "inf", float("nan"), [1], *BEYOND],
    bool: ["perhaps", "", None, 0, 1, [True], np.int64(1)],
    str: [None, 5, True, ["a"], b"a"],
    tuple: [None, 5, True, {"a": 1}, [1], b"range"],
    dict: [None, 5, "a", ["a"], {"a": None}],
}


def other_types(hint: Any) -> list[object]:
    return OF_ANOTHER_TYPE[hint if hint in OF_ANOTHER_TYPE else tuple if get_origin(hint) is tuple else dict]


@pytest.mark.parametrize(("kind", "name", "hint"), [each for each in FIELDS if each[2] != str | int])
def test_a_value_of_another_type_or_size_is_refused_by_name(kind: type[Values], name: str, hint: Any) -> None:
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


def member(protocols: Any = MappingProxyType({"jobs": b""}), kind: Any = "jobs", **options: Any) -> GroupMember:
    return GroupMember("zk:1", "g", kind, protocols, lambda protocol, members: {}, **options)


def test_an_option_that_a_consumer_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="sorce"):
        Consumer(ConsumerConfig("zk:1", "g"), Subscription({"t": 1}), **{"sorce": MemoryLog()})  # type: ignore[arg-type]


def operator(is_driven: Any) -> ConsumerOperator:
    config = ConsumerConfig("zk:1", "g", region="r")
    return ConsumerOperator(config, Subscription({"t": 1}), Processor(), is_driven, source=MemoryLog())


def protocols_of_a_pool(protocols: Any) -> tuple[str, ...]:
    given = {"zk": "zk:1", "group": "g", "log_dir": "/l", "segments_dir": "/s", "protocols": protocols}
    return slot_config(given, "p").consumer_config(0).protocols


class Index:
    """An object with an index."""

    def __index__(self) -> int:
        return 20_000


REFUSED: tuple[tuple[str, Callable[[Any], object], list[Any]], ...] = (
    ("topics", Subscription, [["one"], "one", {"one": "two"}, {"one": True}, {1: 1}, None, 5]),
    ("topics", lambda value: subscription_of(value, None, None), ["one", 5, True]),
    ("protocols", member, ["jobs", ["jobs"], {"jobs": "metadata"}, None, 5]),
    ("protocol", lambda value: member({value: b""}), [5, None, b"a"]),
    ("protocol type", lambda value: member(kind=value), [5, None, b"a"]),
    ("session_timeout_ms", lambda value: member(session_timeout_ms=value), ["soon"]),
    ("operator_driven", operator, ["perhaps"]),
    ("start_position", lambda value: typed("start_position", value, str | int), [True]),
    (
        "session_timeout_ms must be 2147483647 or less",
        lambda value: ConsumerConfig("zk:1", "g", session_timeout_ms=value),
        [2**31],
    ),
    (
        "connect_timeout_ms must be 1000000000000 or less",
        lambda value: CoordinatorConfig("zk:1", connect_timeout_ms=value),
        [10**12 + 1],
    ),
)
"""Words of a refusal, a call, and values that it refuses."""


@pytest.mark.parametrize(("words", "call", "value"), [(*each, value) for *each, values in REFUSED for value in values])
def test_a_value_that_a_call_does_not_take_is_refused(words: str, call: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(UsageError, match=words):
        call(value)


PARSED: tuple[tuple[Callable[[Any], object], Any, object], ...] = (
    (lambda value: Subscription(value).topics, {"one": "2"}, {"one": 2}),
    (protocols_of_a_pool, "sticky,range", ("sticky", "range")),
    (protocols_of_a_pool, ["sticky", "range"], ("sticky", "range")),
    (protocols_of_a_pool, ("sticky", "range"), ("sticky", "range")),
    (lambda value: member(member="m", session_timeout_ms=value).name, "20000", "m"),
    (lambda value: operator(value)._defers, "false", False),
    (lambda value: ConsumerConfig("zk:1", "g", log_dir=value).log_dir, Path("/a"), "/a"),
    (lambda value: ConsumerConfig("zk:1", "g", session_timeout_ms=value).session_timeout_ms, np.int64(20_000), 20_000),
    (lambda value: ConsumerConfig("zk:1", "g", session_timeout_ms=value).session_timeout_ms, Index(), 20_000),
    (lambda value: typed("start_position", value, str | int), np.int64(5), 5),
)
"""A call, a value, and what it is there."""


@pytest.mark.parametrize(("call", "value", "parsed"), PARSED)
def test_a_value_of_a_call_is_parsed(call: Callable[[Any], object], value: Any, parsed: object) -> None:
    found = call(value)

    assert (found, type(found)) == (parsed, type(parsed))


def test_each_type_of_a_field_has_its_parser() -> None:
    unparsed = [(name, hint) for _, name, hint in FIELDS if not get_args(hint) and hint not in OF_ANOTHER_TYPE]

    assert unparsed == []


# ---- offsets and times: any whole number from 0 to a bound, also numpy's; what is none is refused with the bound


T0 = TopicPartition("t", 0)
NO_NUMBERS = [-1, 2**63, True, np.True_, 1.0, float("nan"), float("inf"), "5", None, [1], np.float64(3)]


def consumer() -> Consumer:
    world = GroupWorld()
    config = ConsumerConfig("tree", "g", consumer="a")
    made = Consumer(
        config, Subscription({"t": 1}), source=MemoryLog(10), open_store=world.session, runtime=world.runtime
    )
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
    for polling in (consumer(), member()):
        with pytest.raises(UsageError, match="timeout_ms"):
            polling.poll(value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(UsageError, match="max_records"):
            consumer().poll(0, value)  # type: ignore[arg-type]


def test_a_poll_without_a_limit_waits_as_long_as_a_thread_can() -> None:
    assert seconds(math.inf) == 10**9 <= threading.TIMEOUT_MAX


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


# ---- a message says where a value is from; what Kubernetes writes for a Service is no value


LINKS = {
    "ZK_GROUP_METRICS_PORT": "tcp://10.0.0.1:9400",
    "ZK_GROUP_METRICS_PORT_9400_TCP": "tcp://10.0.0.1:9400",
    "ZK_GROUP_METRICS_PORT_9400_TCP_ADDR": "10.0.0.1",
    "ZK_GROUP_METRICS_SERVICE_HOST": "10.0.0.1",
    "ZK_GROUP_METRICS_SERVICE_PORT": "9400",
    "ZK_GROUP_KAFKA_PORT": "tcp://10.0.0.2:9092",
    "ZK_GROUP_KAFKA_PORT_9092_TCP": "tcp://10.0.0.2:9092",
    "ZK_GROUP_KAFKA_PORT_9092_TCP_ADDR": "10.0.0.2",
    "ZK_GROUP_KAFKA_PORT_9092_TCP_PORT": "9092",
    "ZK_GROUP_KAFKA_PORT_9092_TCP_PROTO": "tcp",
    "ZK_GROUP_KAFKA_SERVICE_HOST": "10.0.0.2",
    "ZK_GROUP_KAFKA_SERVICE_PORT": "9092",
    "ZK_GROUP_KAFKA_SERVICE_PORT_CLIENTS": "9092",
    "ZK_GROUP_KAFKA_UI_SERVICE_HOST": "10.0.0.3",
}


def test_text_is_shown_whole_up_to_its_bound() -> None:
    assert [values.shown("x" * length, 3) for length in (2, 3, 4)] == ["'xx'", "'xxx'", "'xxx…'"]


@pytest.fixture(autouse=True)
def unwarned() -> None:
    values._warn.cache_clear()


def test_a_value_of_the_environment_is_refused_with_its_variable() -> None:
    message = refused(CoordinatorConfig, {"zk": "zk:1"}, ZK_GROUP_METRICS_PORT="http")

    assert message == "metrics_port must be a whole number, not 'http' (metrics_port from ZK_GROUP_METRICS_PORT)"


def test_a_value_of_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('# a node\nzk = "zk:1"\n\nsession_timeout_ms = 50\nsession_timeout = 1\n')
    assert f"{file} has an unknown option 'session_timeout' in line 5" in refused(CoordinatorConfig, {}, file)

    file.write_text('# a node\nzk = "zk:1"\n\nsession_timeout_ms = 50\n')
    assert refused(CoordinatorConfig, {}, file).endswith(f"(session_timeout_ms from {file}, line 4)")


def test_a_rule_of_two_values_names_where_both_are_from(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("channel_retention_ms = 1000\n")

    with pytest.raises(UsageError) as raised:
        options = {"zk": "zk:1", "session_timeout_ms": 4000}
        load(CoordinatorConfig, options, file, {}, is_command=True)

    assert f"channel_retention_ms from {file}, line 1" in str(raised.value)
    assert "session_timeout_ms from --session-timeout-ms" in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [("GROUP", "a/b"), ("CONSUMER", ".."), ("ZK", "zk:1/a,zk:2/a"), ("PROTOCOLS", "a/b"), ("START_POSITION", "soon")],
)
def test_a_name_and_servers_are_refused_with_their_variable(variable: str, value: str) -> None:
    given = {"zk": "zk:1", "group": "g"}
    options = {name: text for name, text in given.items() if name != variable.lower()}

    message = refused(ConsumerConfig, options, **{f"ZK_GROUP_{variable}": value})

    assert message.endswith(f"({variable.lower()} from ZK_GROUP_{variable})")


def test_a_keyword_in_python_is_refused_by_its_name_alone() -> None:
    assert (
        refused(CoordinatorConfig, {"zk": "zk:1", "metrics_port": -1}) == "metrics_port must be from 0 (off) to 65535"
    )


def test_an_option_of_librdkafka_is_refused_with_its_variable() -> None:
    env = {"ZK_GROUP_KAFKA_GROUP_ID": "mine", "ZK_GROUP_KAFKA_NO_SUCH": "1"}

    with pytest.raises(UsageError, match=r"kafka.group.id cannot .* \(group.id from ZK_GROUP_KAFKA_GROUP_ID\)"):
        kafka_options({}, env)
    with pytest.raises(UsageError) as raised:
        kafka_options({"group.id": "mine"}, env)
    assert "ZK_GROUP" not in str(raised.value)
    refusal = 'No such configuration property: "no.such"'
    assert with_sources(refusal, env=env) == f"{refusal} (no.such from ZK_GROUP_KAFKA_NO_SUCH)"


def test_what_kubernetes_writes_for_a_service_is_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        config = load(CoordinatorConfig, {"zk": "zk:1"}, env=LINKS)
        assert config.metrics_port == 0
        assert kafka_options({}, LINKS) == kafka_options({}, {})

    warned = [message for message in caplog.messages if "variable=ZK_GROUP_METRICS_PORT " in message]
    assert len(warned) == 1 and "Kubernetes" in warned[0]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert len(caplog.messages) == len(set(caplog.messages)) == 10


def test_a_port_and_a_kerberos_service_of_the_user_are_values() -> None:
    config = load(ConsumerConfig, {"zk": "zk:1", "group": "g"}, env={"ZK_GROUP_METRICS_PORT": "9400"})
    assert config.metrics_port == 9400

    options = kafka_options({}, {"ZK_GROUP_KAFKA_SASL_KERBEROS_SERVICE_NAME": "kafka"})
    assert options["sasl.kerberos.service.name"] == "kafka"


def test_consumer_command_starts_beside_a_service_of_metrics() -> None:
    done = CliRunner().invoke(consumer_main, ["run", "--zk", "zk:1", "--group", "g", "--topics", "t"], env=LINKS)

    assert "name the log to read" in done.output
