"""Fetching from a log that is slow, hangs, or has a partition that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.fetcher import LONGEST_WAIT_S, LOOK_FOR_DATA_S, Fetcher, Looks
from consumer.holder import Start
from consumer.logs.append import Appender
from consumer.logs.columns import stored_batches
from consumer.logs.embedded import EmbeddedLog
from consumer.logs.layout import topic_folder
from consumer.offsets import Offsets
from coordinator.zk.partitions import TopicPartition
from coordinator.zk.paths import GroupPaths
from coordinator.zk.records import Channel
from tests.property.tree import Tree
from tests.unit.manual import ManualRuntime

BROKEN, WHOLE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("look_s", "wait_s"), [(0.0, LOOK_FOR_DATA_S), (0.01, 0.09), (60.0, LONGEST_WAIT_S)], ids=["quick", "slow", "hung"]
)
def test_an_empty_log_is_looked_at_again_soon_however_long_the_last_look_took(look_s: float, wait_s: float) -> None:
    runtime = ManualRuntime()
    looks = Looks(runtime)
    began = runtime.monotonic()
    runtime.now += look_s
    looks.note(began, is_empty=True)
    assert looks.wait_s == pytest.approx(wait_s)


def test_a_partition_whose_folder_cannot_be_listed_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, "t", "id")
    folder.mkdir(parents=True)
    (folder / "0").write_text("a file where the partition's folder should be")
    Appender(tmp_path, "t", "id", 1).append(stored_batches([b"1", b"2"]))
    fetcher = Fetcher(EmbeddedLog(tmp_path))
    fetcher.begin({BROKEN: Start("id", 0), WHOLE: Start("id", 0)})

    assert [(fetch.partition, fetch.rows) for fetch in fetcher.fetch(100, 1 << 20)] == [(WHOLE, 2)]
    assert "Not a directory" in fetcher.complaints[BROKEN]


def test_a_partition_whose_first_offset_cannot_be_found_waits_and_the_others_do_not() -> None:
    def earliest(topic: str, topic_id: str, partition: int) -> int:
        if partition == BROKEN.partition:
            raise PermissionError("no access")
        return 7

    offsets = Offsets(ManualRuntime(), GroupPaths("g"), earliest)
    running = Channel("abc", running={BROKEN: None, WHOLE: None}, topics={"t": "id"})

    read = offsets.read(Tree().open(), running, running.running)

    assert read.running == {BROKEN: None, WHOLE: 7}
    assert offsets.complaints == {BROKEN: "no access"}
