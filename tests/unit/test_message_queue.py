"""The message queue of a consumer operator: one permit, the offset manager, and the conditions of a cut."""

from __future__ import annotations

import pytest

from consumer.fetching.record_buffer import Record
from consumer.operator.consumer_operator import DRAIN, RESET, Message, MessageQueue
from coordinator.zk.znodes.partitions import TopicPartition
from tests.unit.manual import Forever, ManualRuntime

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


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


def test_queue_has_space_for_another_poll_or_is_full() -> None:
    queue = a_queue(capacity=3)
    queue.put({P0: records(P0, 3, 4)})

    assert queue.has_room(1) and not queue.has_room(2)


def test_large_records_leave_no_room_for_others_until_they_are_taken_or_dropped() -> None:
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
