"""A member of a consistent region: throttling of records, and its states."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from consumer.config import ConsumerConfig
from consumer.membership.call_guard import MemberContext
from consumer.operator.region import RegionMember
from consumer.operator.states import SCHEMA, State, StateFiles, own_state
from coordinator.zk.errors import BadData, UsageError
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import START_FETCHER, Channel, Command
from coordinator.zk.znodes.regions import Contribution, Order, Progress, StateFile
from tests.unit.manual import ManualRuntime

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Idle:
    """An application that does nothing."""

    def on_drain(self) -> None: ...
    def on_checkpoint(self, checkpoint: int) -> State:
        return State()

    def on_reset(self, checkpoint: int, state: State) -> None: ...


def a_member(runtime: ManualRuntime) -> RegionMember:
    config = ConsumerConfig(zk="z:1", group="g", consumer="c", region="r")
    return RegionMember(MemberContext(config, runtime), Idle())


def a_start(*partitions: TopicPartition) -> Command:
    return Command(START_FETCHER, 1, 1, "life", {"c-0": frozenset(partitions)}, region=Order(7, 4, ("c",)))


def order_of(start: Command) -> Order:
    assert start.region is not None
    return start.region


def test_records_are_throttled_for_a_second_after_a_reset_and_held_at_a_checkpoint() -> None:
    runtime = ManualRuntime()
    member = a_member(runtime)
    assert not member.may_take

    member.is_ready = True
    member._throttled_until = runtime.monotonic() + 1.0
    taken = []
    for _ in range(20):
        taken.append(member.may_take)
        runtime.now += 0.05

    assert 6 <= sum(taken) <= 11
    runtime.now += 0.1
    assert member.may_take
    member._draining_for = 7
    assert not member.may_take and member.state == "DRAINING"
    member._paused_for, member._draining_for = 7, 0
    assert not member.may_take and member.state == "DRAINED"


def test_claimed_start_is_applied_once_under_any_later_command_of_the_channel() -> None:
    member, start = a_member(ManualRuntime()), a_start(P0)
    order = order_of(start)
    claimed = Channel("life", command="command-1", running={P0: None}, region=Progress(7))
    asked = replace(claimed, command="command-2")  # a leader's `assign`, which does not wait for the state

    member.ordered(Channel("life"), order)
    assert not member.is_applied(Channel("life", region=Progress(7)), "command-1", start)
    member.started("command-1")
    assert member.is_applied(asked, "command-1", start)
    assert not member.is_applied(asked, "command-3", start)

    member.ordered(claimed, order)
    assert member.is_applied(claimed, "command-1", start), "its reply was lost, and the channel has it"
    assert member.is_applied(asked, "command-1", start)


def test_start_claimed_in_part_is_not_applied_unless_the_rest_was_refused() -> None:
    member, start = a_member(ManualRuntime()), a_start(P0, P1)
    part = Channel("life", command="command-1", running={P0: None}, region=Progress(7))

    member.ordered(Channel("life"), order_of(start))

    assert not member.is_applied(part, "command-1", start)
    assert member.is_applied(replace(part, refused=frozenset([P1])), "command-1", start)


def test_small_states_are_in_the_contribution_and_large_ones_in_a_readable_file(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path), "r")
    small, large = State({P0: b"1"}, b"m"), State({P0: b"x" * 5000, P1: b"y"}, b"m" * 10)

    for state, has_file in ((small, False), (large, True)):
        states, member, file = files.put(state, "0000000001-life-1", "1-1")
        assert (file is not None) == has_file
        given = Contribution("life", 1, dict.fromkeys(state.partitions, 5), {"t": "i"}, states, member, file)
        found = files.get("w", Contribution.parse("w", given.to_bytes()), {P0})
        assert (found.partitions, found.member) == ({P0: state.partitions[P0]}, state.member)


def test_unusable_state_file_or_missing_folder_is_bad_data_that_names_it(tmp_path: Path) -> None:
    files = StateFiles(str(tmp_path), "r")
    _, _, file = files.put(State({P0: b"x" * 5000}), "0000000001-life-1", "1-1")
    assert file is not None
    given = Contribution("life", 1, {P0: 5}, {"t": "i"}, file=file)
    with pytest.raises(BadData, match="there is no checkpoint_dir"):
        StateFiles("", "r").get("w", given, {P0})
    path = tmp_path / file.name
    path.write_bytes(b"z" * file.size)
    with pytest.raises(BadData, match="is damaged"):
        files.get("w", given, {P0})
    path.write_bytes(b"z")
    with pytest.raises(BadData, match="cannot be read"):
        files.get("w", given, {P0})
    path.unlink()
    with pytest.raises(BadData, match="cannot be read"):
        files.get("w", given, {P0})


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_state_file_is_refused_before_it_is_decompressed(tmp_path: Path, compression: str) -> None:
    sink = pa.BufferOutputStream()
    rows = {"topic": [""], "partition": [-1], "state": [bytes(20 << 20)]}
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(pa.table(rows, SCHEMA))
    data = sink.getvalue().to_pybytes()
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "a.arrow").write_bytes(data)
    file = StateFile("r/a.arrow", len(data), zlib.crc32(data))

    with pytest.raises(BadData, match="a batch is compressed"):
        StateFiles(str(tmp_path), "r").get("w", Contribution("life", 1, {P0: 5}, {"t": "i"}, file=file), {P0})


def test_large_states_without_a_folder_and_foreign_states_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="give checkpoint_dir a folder or a URI that all members share"):
        StateFiles("", "r").put(State({P0: b"x" * 5000}), "n", "")
    with pytest.raises(UsageError, match="which this member does not have"):
        own_state(State({P1: b"x"}), {P0: 5})
    with pytest.raises(UsageError, match="must return a State, not dict"):
        own_state({}, {P0: 5})  # type: ignore[arg-type]


def test_state_offsets_are_those_of_poll_unless_the_application_declares_less() -> None:
    assert own_state(State({P0: b"x"}), {P0: 5}).offsets == {P0: 5}
    assert own_state(State(offsets={P0: 3, P1: 0}), {P0: 5, P1: 0}).offsets == {P0: 3, P1: 0}
    for wrong in ({P0: 6, P1: 0}, {P0: 3}, {P0: -1, P1: 0}):
        with pytest.raises(UsageError, match="of which poll has returned the records below"):
            own_state(State(offsets=wrong), {P0: 5, P1: 0})
