"""Read tasks of the DataFrame source: garbage collection in their workers, and log ends in a query's progress."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from tests.property.tree import MemoryTree
from tests.support.memlog import MemoryLog
from zk_group.consumer.logs.base import LogError, TopicIdPartition
from zk_group.consumer.streaming.gc_tuning import fewer_collections
from zk_group.consumer.streaming.source.data_source import progress_of, stands_of
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import Channel, OffsetRecord

IN_A_WORKER = """
import gc
from zk_group.consumer.streaming.source.data_source import records

assert not list(records([], True))
frozen, left = gc.get_freeze_count(), len(gc.get_objects())
assert frozen > 100 * left, (frozen, left)

class Knot: ...
knot = Knot()
knot.itself = knot
del knot
gc.collect()
assert not any(isinstance(found, Knot) for found in gc.get_objects())

kept = [[number] for number in range(1000)]
assert not list(records([], True))
assert gc.get_freeze_count() <= frozen
"""


@pytest.mark.long
def test_worker_collects_only_objects_created_after_its_modules_were_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_WORKER], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_slot_collects_less_often_and_restores_the_process() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), fewer_collections():
        assert gc.get_threshold()[0] >= 20_000
        raise KeyError
    assert gc.get_threshold() == before


# ---- log ends in the progress of a query


PATHS = GroupPaths("g")


class Half(MemoryLog):
    """A log that ends at 100, and whose partition 1 cannot be read."""

    def latest(self, topic: str, topic_id: str, partition: int) -> int:
        if partition == 1:
            raise LogError("damaged")
        return 100


def test_position_of_a_group_is_read_from_channels_before_offsets() -> None:
    tree = MemoryTree()
    for parent in (PATHS.offsets_of("t"), PATHS.channels):
        tree.ensure(parent)
    for number in range(3):
        tree.put(PATHS.offset("t", number), OffsetRecord(10, "id", 1).to_bytes())
    tree.put(PATHS.offset("t", 3), b"{")
    running = {TopicPartition("t", 0): 40, TopicPartition("u", 0): 7, TopicPartition("v", 0): 1}
    tree.put(PATHS.channel("a"), Channel("life", running=running, topics={"t": "id", "u": "other"}).to_bytes())
    tree.put(PATHS.channel("b"), b"nonsense")

    found = stands_of(tree.open(), PATHS)

    assert found == {
        TopicIdPartition("t", "id", 0): 40,
        TopicIdPartition("t", "id", 1): 10,
        TopicIdPartition("t", "id", 2): 10,
        TopicIdPartition("u", "other", 0): 7,
    }


def test_unknown_group_has_no_position() -> None:
    assert stands_of(MemoryTree().open(), PATHS) == {}


def test_progress_has_the_readable_log_ends_and_the_unsealed_lag() -> None:
    progress = progress_of(Half(), {TopicIdPartition("t", "id", number): 90 + 20 * number for number in range(3)})

    assert progress == {"log_end": {"t": {"0": 100, "2": 100}}, "lag": 10}
