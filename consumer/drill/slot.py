"""A fetcher slot as a process of its own: all of a slot but the Spark task around it.

What hangs is its disk; with `misbehaves` it is the assignor that it leads its group with, which hangs or raises.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

import coordinator
from consumer.config import Subscription
from consumer.logs import open_log
from consumer.segment_files import SegmentFolder
from consumer.spark.config import SlotConfig, SlotSpec
from consumer.spark.slot import Slot
from consumer.trace import recorder_of
from coordinator.zk.config import load
from coordinator.zk.fields import Fields
from coordinator.zk.kazoo_store import kazoo_factory
from coordinator.zk.runtime import ThreadRuntime

from . import assignor
from .process import Gate, run, tell, topics_of


class HangingFolder(SegmentFolder):
    """A folder for segments that does not answer until `pass_through` returns, and has no room beyond a quota.

    :param quota_bytes: of all files in the folder; 0 for no bound.
    """

    def __init__(self, url: str, pass_through: Callable[[], None], quota_bytes: int) -> None:
        super().__init__(url)
        self._pass_through = pass_through
        self._folder = Path(url)
        self._quota_bytes = quota_bytes

    def write(self, file: str, batches: Iterable[pa.RecordBatch]) -> int:
        """See `SegmentFolder`."""
        self._pass_through()
        if self._quota_bytes and self._used() >= self._quota_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(file, batches)

    def _used(self) -> int:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())


def main(fields: Fields) -> None:
    """Run slot `number` of the pool until SIGTERM, or until it is told to leave; `run` is the pool's life.

    `misbehaves`, `strategy` and `state_bytes` are of the assignor `drill` (`assignor.py`). The other fields are those
    of `SlotConfig`, and `topics`, topic -> threads.
    """
    gate = Gate()
    misbehaves = fields.text("misbehaves", "")
    if misbehaves:
        assignor.install(fields.text("strategy"), gate, misbehaves, fields.number("state_bytes", 0))
    config = load(SlotConfig, fields.values, env={})
    number, life = fields.number("number"), fields.text("run")
    topics = topics_of(fields)
    spec = SlotSpec(config, Subscription(topics), number, life, coordinator.__version__)
    opener = kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000)
    runtime = ThreadRuntime(recorder_of(config.consumer_config(number), "slot"))
    source = open_log(config.log_dir, config.consumer_config(spec.number).kafka_place)
    disk = (lambda: None) if misbehaves else gate.pass_through
    folder = HangingFolder(config.segments_dir, disk, fields.number("quota_bytes", 0))
    slot = Slot(spec, source, opener, runtime, folder)

    def end() -> None:
        gate.ended.wait()
        slot.stop("told to end", for_good=True)

    runtime.spawn(end, "end")
    tell("ended", **slot.run())
    source.close()


if __name__ == "__main__":
    run(main)
