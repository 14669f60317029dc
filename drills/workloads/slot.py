"""A fetcher slot in its own process, without the Spark task, and the process that keeps the znode of their pool.

The hang is in its disk; with `misbehaves` the assignor `drill` hangs or raises on the group's leader: a built-in
strategy, offered by an entry point like a third party's assignor.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

import pyarrow as pa

import zk_group
from zk_group.consumer.assignment.base import Assignment, ClientAssignor, Cluster
from zk_group.consumer.assignment.consumers import ENTRY_POINTS, named
from zk_group.consumer.config import Subscription
from zk_group.consumer.logs import open_log
from zk_group.consumer.sealing.segment_files import SegmentFolder
from zk_group.consumer.streaming.fetchers.config import SlotConfig, SlotSpec
from zk_group.consumer.streaming.fetchers.slot import UNANSWERED, PoolPost, Slot
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.values import load, require
from zk_group.coordinator.zk.znodes.json_fields import Fields

from .process import HangGate, emit, topics_of

KEEP_S = 0.5


class HangingFolder(SegmentFolder):
    """A segment folder that blocks until `pass_through` returns, and has a quota.

    :param quota_bytes: of all files in the folder; 0 for no limit.
    """

    def __init__(self, url: str, pass_through: Callable[[], None], quota_bytes: int) -> None:
        super().__init__(url)
        self._pass_through = pass_through
        self._folder = Path(url)
        self._quota_bytes = quota_bytes

    def write(self, file: str, batches: Iterable[pa.RecordBatch]) -> int:
        self._pass_through()
        files = (path for path in self._folder.rglob("*") if path.is_file())
        if self._quota_bytes and sum(path.stat().st_size for path in files) >= self._quota_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(file, batches)


def main(fields: Fields) -> None:
    """Run slot `number` of the pool until SIGTERM or a stop request; `run` is the pool's run.

    `misbehaves`, `strategy` and `state_bytes` configure the assignor `drill`. The other fields are `topics` (topic ->
    threads), and those of `SlotConfig`.
    """
    gate = HangGate()
    misbehaves = fields.text("misbehaves", "")
    if misbehaves:
        install(fields.text("strategy"), gate, misbehaves, fields.number("state_bytes", 0))
    config = load(SlotConfig, fields.values, env={})
    number, topics = fields.number("number"), topics_of(fields)
    spec = SlotSpec(config, Subscription(topics), number, fields.text("run"), zk_group.__version__)
    opener = kazoo_factory(config.zk, config.session_timeout_ms, config.connect_timeout_ms / 1000)
    runtime = ThreadRuntime(config.consumer_config(number).recorder("slot"))
    source = open_log(config.log_dir, config.kafka_place)
    disk = (lambda: None) if misbehaves else gate.pass_through
    folder = HangingFolder(config.segments_dir, disk, fields.number("quota_bytes", 0))
    slot = Slot(spec, source, opener, runtime, folder)

    def end() -> None:
        gate.ended.wait()
        slot.stop("the drill stopped the slot", for_good=True)

    runtime.spawn(end, "end")
    emit("ended", **slot.run())
    source.close()


def keep_pool(fields: Fields) -> None:
    """Declare the slots below `slots` of `pool` in `group` as running, in its run `run`, until SIGTERM.

    The driver of a Spark application does so for its pool.
    """
    gate = HangGate()
    opener = kazoo_factory(fields.text("zk"), fields.number("session_timeout_ms"))
    post = PoolPost(opener, ThreadRuntime(), fields.text("group"), fields.text("pool"), fields.text("run"))
    is_posted = False
    while not gate.ended.wait(KEEP_S if is_posted else 0.05):
        try:
            post.keep(fields.number("slots"))
        except UNANSWERED:
            continue  # retried
        if not is_posted:
            is_posted = True
            emit("posted")
    post.close()


# ---- the assignor

NAME = "drill"
HANGS = "hangs"
RAISES = "raises"

installed: DrillAssignor | None = None
"""The target of the entry point, after `install`."""


class DrillAssignor(ClientAssignor):
    """Assigns by `strategy`.

    :param misbehaves: the behaviour of `assign` while the gate is shut: `hangs` until it is open, or `raises`.
    :param state_bytes: size of each member's state; large states split a proposed assignment into several transactions.
    """

    name = NAME

    def __init__(self, strategy: ClientAssignor, gate: HangGate, misbehaves: str, state_bytes: int = 0) -> None:
        self.is_cooperative = strategy.is_cooperative
        self._strategy = strategy
        self._gate = gate
        self._misbehaves = misbehaves
        self._state = bytes(state_bytes)

    def assign(self, cluster: Cluster, metadata: Mapping[str, bytes]) -> Mapping[str, Assignment]:
        """
        :raises RuntimeError: when it misbehaves so.
        """
        if not self._gate.is_open:
            emit("misbehaves", how=self._misbehaves)
            if self._misbehaves == RAISES:
                raise RuntimeError("the drill requested a failure")
            self._gate.pass_through()
        assignments = self._strategy.assign(cluster, metadata)
        return {consumer: replace(one, member_state=self._state) for consumer, one in assignments.items()}


def install(strategy: str, gate: HangGate, misbehaves: str, state_bytes: int = 0) -> None:
    """Install the assignor `drill` in this process, as a package would.

    :param strategy: the strategy while the gate is open.  :param state_bytes: size of each member's state.
    :raises UsageError: when the strategy or the misbehaviour is unknown.
    """
    global installed
    require(misbehaves in (HANGS, RAISES), f"misbehaves must be {HANGS} or {RAISES}, not {misbehaves!r}")
    (builtin,) = named([strategy])
    installed = DrillAssignor(builtin, gate, misbehaves, state_bytes)
    sys.meta_path.append(_Package)


class _Package(Distribution):
    """The metadata of a package without a folder; the class is also its finder."""

    FILES = {  # noqa: RUF012
        "METADATA": "Metadata-Version: 2.1\nName: zk-group-drill-assignor\nVersion: 0\n",
        "entry_points.txt": f"[{ENTRY_POINTS}]\n{NAME} = {__name__}:installed\n",
    }

    def read_text(self, filename: str) -> str | None:
        return self.FILES.get(filename)

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)

    @classmethod
    def find_distributions(cls, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        return [cls()]

    @staticmethod
    def find_spec(fullname: str, path: object = None, target: object = None) -> None:
        """It finds no module."""
