"""A member of a consistent region: throttling of records, and its states."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.manual import Forever, ManualRuntime
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.fetching.record_buffer import Record
from zk_group.consumer.membership.call_guard import MemberContext
from zk_group.consumer.operator.consumer_operator import DRAIN, RESET, Message, MessageQueue
from zk_group.consumer.operator.region import RegionMember
from zk_group.consumer.operator.states import SCHEMA, State, StateFiles, own_state
from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import START_FETCHER, Channel, Command
from zk_group.coordinator.zk.znodes.regions import Contribution, Order, Progress, StateFile

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
    claimed = Channel("life", command="command-1", running={P0: None}, region=Progress(7))
    asked = replace(claimed, command="command-2")  # a leader's `assign`, which does not wait for the state

    member.ordered(Channel("life"), start)
    assert member.admits(Channel("life", region=Progress(7)), "command-1", start) is True
    member.started("command-1", start)
    assert member.admits(asked, "command-1", start) is None
    assert member.admits(asked, "command-3", start) is True

    member.ordered(claimed, start)
    assert member.admits(claimed, "command-1", start) is None, "its reply was lost, and the channel has it"
    assert member.admits(asked, "command-1", start) is None

    both = a_start(P0, P1)
    member.ordered(Channel("life"), both)
    assert member.admits(claimed, "command-1", both) is True, "claimed in part"
    assert member.admits(replace(claimed, refused=frozenset([P1])), "command-1", both) is None


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


# ---- the message queue: one permit, the offset manager, and the conditions of a cut


def records(partition: TopicPartition, *offsets: int) -> list[Record]:
    return [Record(partition.topic, partition.partition, offset, 0, 0, None, b"", ()) for offset in offsets]


def a_queue(capacity: int = 100) -> MessageQueue:
    made = MessageQueue(ManualRuntime(), capacity, 1000, lambda: True)
    made.clear({P0: 3, P1: 0})
    return made


def taken(queue: MessageQueue, processed: Message | None = None) -> Message:
    found = queue.take(processed)
    assert found is not None
    return found


def finish(queue: MessageQueue, message: Message) -> None:
    """The message was processed, and the queue has no other."""
    with pytest.raises(Forever):
        queue.take(message)


def test_a_partitions_offset_is_that_after_the_last_record_that_was_processed() -> None:
    queue = a_queue()
    queue.put({P0: records(P0, 3, 7), P1: records(P1, 0)})

    first = taken(queue)
    assert queue.offsets == {P0: 3, P1: 0} and len(queue) == 2, "it is in the making"
    partition, record = taken(queue, first)
    assert (partition, record.offset) == (P0, 7) and queue.offsets == {P0: 4, P1: 0}
    taken(queue, (partition, record))
    assert queue.offsets == {P0: 8, P1: 0}


def test_many_or_large_records_leave_no_room_until_taken_or_dropped() -> None:
    queue = a_queue(capacity=3)
    queue.put({P0: records(P0, 3, 4)})
    assert queue.has_room(1) and not queue.has_room(2), "for another poll"
    queue = a_queue()
    large = [record._replace(value=b"v" * 600) for record in records(P0, 3, 4)]

    queue.put({P0: large[:1]})
    assert queue.has_room(1)
    queue.put({P0: large[1:]})
    assert not queue.has_room(1)
    message = taken(queue)
    assert queue.has_room(1)
    queue.put({P0: large})
    taken(queue, message)
    assert not queue.has_room(1)
    queue.failed()
    queue.clear()
    assert queue.has_room(1)


def test_cut_waits_for_the_current_record_and_for_queued_ones_unless_deferred() -> None:
    queue = a_queue()
    queue.put({P0: records(P0, 3, 4)})
    message = taken(queue)

    assert not queue.is_drained(is_deferred=False) and not queue.is_drained(is_deferred=True)
    finish(queue, message)
    assert not queue.is_drained(is_deferred=False) and queue.is_drained(is_deferred=True)
    with pytest.raises(Forever):
        queue.take()
    queue.allow(DRAIN)
    finish(queue, taken(queue))
    assert queue.is_drained(is_deferred=False)


def test_requested_reset_blocks_cuts_and_processing_until_it_arrives() -> None:
    queue = a_queue()
    queue.put({P0: records(P0, 3)})
    queue.withhold(RESET)

    assert not queue.is_drained(is_deferred=True)
    queue.allow(DRAIN)
    with pytest.raises(Forever):
        queue.take()
    queue.clear({P0: 3})
    queue.allow(RESET)
    assert len(queue) == 0 and queue.offsets == {P0: 3} and queue.is_drained(is_deferred=False)


def test_no_cut_is_taken_after_a_record_has_failed() -> None:
    queue = a_queue()
    queue.put({P0: records(P0, 3, 4)})
    taken(queue)

    queue.failed()

    assert queue.offsets == {P0: 3, P1: 0}
    assert not queue.is_drained(is_deferred=True)
    with pytest.raises(Forever):
        queue.take()


def test_cleared_records_are_not_processed_and_the_current_record_is_awaited() -> None:
    queue = a_queue()
    queue.put({P0: records(P0, 3, 4)})
    message = taken(queue)

    with pytest.raises(Forever):
        queue.clear()
    assert len(queue) == 0
    finish(queue, message)
    queue.clear()
    assert queue.offsets == {}


def test_records_are_not_processed_while_partitions_may_be_lost_or_after_close() -> None:
    runtime, looks = ManualRuntime(), iter([False, False, True])
    queue = MessageQueue(runtime, 100, 1000, lambda: next(looks))
    queue.put({P0: records(P0, 3)})
    began = runtime.now

    assert taken(queue)[1].offset == 3 and runtime.now > began
    queue.close()
    assert queue.take() is None
