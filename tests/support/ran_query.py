"""A query that has run, with its Spark checkpoint as files: no Spark."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cuts import HandMadeRegion
from tests.support.sealed import SealedGroup
from tests.support.world import World
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import Planner
from zk_group.consumer.streaming.source.rewind import PROVIDER, Rewinder
from zk_group.consumer.streaming.source.segment_index import SourceOffset
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.segments import Query

SESSION_MS = 2000
CONF = {PROVIDER: "org.apache.spark.X.HDFSBackedStateStoreProvider"}


class Ran:
    """Query `q` has read two segments for each of three checkpoints, in batches of one, and kept a state.

    :ivar ends: where each batch ended.  :ivar at: checkpoint -> the last batch that ended there.
    """

    def __init__(self, world: World, group: SealedGroup, region: HandMadeRegion, folder: Path) -> None:
        self.world = world
        self.group = group
        self.region = region
        self.folder = folder
        self.names: list[str] = []
        self._planners: list[Planner] = []
        for _ in range(3):
            self.names += [group.seal(), group.seal()]
            region.cut()
        self.planner = self.planned()
        self.ends: list[SourceOffset] = []
        self.read(self.planner, self.planner.initial())
        self.at = {end.checkpoint: number for number, end in enumerate(self.ends) if end.checkpoint}

    def planned(self) -> Planner:
        config = SourceConfig(zk=self.world.zk, group="g", query="q", align_checkpoints=True)
        self._planners.append(Planner(config, kazoo_factory(self.world.zk, SESSION_MS), ThreadRuntime()))
        return self._planners[-1]

    def read(self, planner: Planner, start: SourceOffset, max_rows: int = 10) -> None:
        """As Spark does, until nothing is left."""
        while (end := planner.latest(start, max_rows)) != start:
            planner.plan(start, end)
            self.wrote(len(self.ends), end)
            self.ends.append(end)
            start = end

    def wrote(self, number: int, end: SourceOffset, conf: object = CONF) -> None:
        self.file(f"offsets/{number}", "\n".join(["v1", json.dumps({"conf": conf}), json.dumps(end.to_dict())]))
        self.file(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
        for partition in (0, 1):
            self.file(f"state/0/{partition}/{number + 1}.delta", f"{number}")
            self.file(f"state/0/{partition}/_metadata/schema", "x")

    def file(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / f".{path.name}.crc").write_text("x")

    def rewinder(self, has_ended: bool = True, store: Store | None = None) -> Rewinder:
        return Rewinder(store or self.world.store, ThreadRuntime(), "g", "q", str(self.folder), has_ended)

    @property
    def files(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}

    @property
    def query(self) -> Query:
        return Query.parse("q", self.world.data(self.group.paths.query("q")) or b"")

    def close(self) -> None:
        for planner in self._planners:
            planner.close()
