"""Offsets and times: any whole number from 0 to a bound, also numpy's; what is none is refused with the bound."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

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
from coordinator.admin.reset_offsets import ResetRequest, parse_plans
from coordinator.cli import main as coordinator_main
from coordinator.zk.errors import UsageError
from coordinator.zk.values import MAX_NUMBER, seconds, whole
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import Topic
from tests.property.group_world import GroupWorld
from tests.support.memlog import MemoryLog

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
