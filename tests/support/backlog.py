"""The backlog of a group, made by hand, and what a coordinator's segment collector makes of it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.support.cuts import HandMadeRegion
from tests.support.queries import shortened
from tests.support.sealed import SealedGroup, sweeping
from tests.support.terms import a_term
from tests.support.wait import Ahead
from tests.support.world import World
from zk_group.coordinator.planning.backpressure import Bounds, Retention
from zk_group.coordinator.retention.segments import SegmentCollector
from zk_group.coordinator.service import CoordinatorService
from zk_group.coordinator.term.term import ServerClock
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.lease import Lease
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.store import Create, SetData
from zk_group.coordinator.zk.znodes.paths import COORDINATOR_EPOCH, GroupPaths, segment_name
from zk_group.coordinator.zk.znodes.records import EpochRecord
from zk_group.coordinator.zk.znodes.segments import Query, Segment, SegmentsRecord

PATHS = GroupPaths("g")
KIB = 1024
YEAR_S = 365 * 86_400
LARGE = Bounds(1000, 1 << 30)
NOT_RETAINED = Retention(0, 0)
AN_HOUR = Retention(3_600_000, 1 << 20)


class Backlog(SealedGroup):
    """Segments and queries of a group: tiny files, independent of the sizes in the znodes."""

    def __init__(self, world: World, folder: Path) -> None:
        super().__init__(world.store, folder)
        self.world = world
        self.root = folder

    def seals(self, count: int = 1, size: int = KIB, folder: str = "") -> list[str]:
        """So many more segments; their names.

        :param folder: another one than that of the files.
        """
        names = []
        for _ in range(count):
            self._number += 1
            file = f"g/c/abc-{self._number:010d}.arrow"
            if not folder:
                (self.root / file).parent.mkdir(parents=True, exist_ok=True)
                (self.root / file).write_bytes(b"x")
            names.append(self.name(Segment(file, folder or str(self.root), 1, size, (), "c", "abc", 1)))
        return names

    @property
    def files(self) -> int:
        return len(list(self.root.rglob("*.arrow")))

    def finishes(self, name: str, finished: int = 0) -> None:
        """A query has finished up to there; it registers when it is new."""
        data = Query("run", finished, 0).to_bytes()
        if self.store.get(PATHS.query(name)) is None:
            self.store.commit([SetData(PATHS.queries, b""), Create(PATHS.query(name), data)])
        else:
            self.store.commit([SetData(PATHS.query(name), data)])

    @property
    def record(self) -> SegmentsRecord:
        return SegmentsRecord.parse("segments", self.world.data(PATHS.segments) or b"")


def a_machine() -> Ahead:
    """Its wall clock is a year ahead."""
    return Ahead(wall_ahead_s=YEAR_S)


class WrongClock(ServerClock):
    """As if the server that wrote the epoch had been a year ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 1000 * YEAR_S


def coordinator(world: World, **options: Any) -> CoordinatorService:
    defaults: dict[str, Any] = {"backlog_interval_ms": 50, "sweep_interval_ms": 100, "segment_retention_ms": 0}
    return world.elected(world.coordinator(**defaults | options))


def collector_on(
    world: World,
    machine: Ahead | None = None,
    bounds: Bounds = LARGE,
    sweep_interval_ms: int = 0,
    retention: Retention = NOT_RETAINED,
    clock: type[ServerClock] = ServerClock,
) -> SegmentCollector:
    """A coordinator's segment collector, for a test to call round by round."""
    if world.store.get(COORDINATOR_EPOCH) is None:
        world.put(COORDINATOR_EPOCH, EpochRecord(1).to_bytes())
    node = world.store.get(COORDINATOR_EPOCH)
    assert node is not None
    machine = machine or a_machine()
    term = a_term(
        world.store, machine, 1, node.stat.version,
        max_backlog_segments=bounds.segments, max_backlog_bytes=bounds.size,
        segment_retention_ms=retention.ms, segment_retention_bytes=retention.size,
    )  # fmt: skip
    term.lease = Lease(world.store, ThreadRuntime(), lambda: None, "coordinator")
    term.lease.renew()
    term.clock = clock(world.store, machine)
    return sweeping(SegmentCollector(term), sweep_interval_ms / 1000)


class BacklogStory:
    """Steps of stories (see `stories.py`) about a group's backlog: with a coordinator, or its collector in rounds.

    The state that a round leaves is the segments that exist, and what the data of `segments` says.
    """

    errors: tuple[type[Exception], ...] = ()

    def __init__(self, backlog: Backlog, caplog: pytest.LogCaptureFixture) -> None:
        self._backlog = backlog
        self._world = backlog.world
        self._log = caplog
        self._machine = a_machine()
        self._collector: SegmentCollector | None = None
        self._service: CoordinatorService | None = None
        self._region: HandMadeRegion | None = None
        self._czxids = {"nothing": 0, "everything": 2**60}
        self._removed: dict[str, bytes] = {}

    def shown(self, text: str) -> str:
        return shortened(text)

    def _state(self) -> str:
        numbers = [int(name.rpartition("-")[2]) for name in self._backlog.left]
        parts = [_spans(numbers) or "nothing is left"]
        try:
            record = self._backlog.record
            names = {czxid: name for name, czxid in self._czxids.items()}
            parts += [f"collected up to {names.get(record.collected, record.collected)}"] if record.collected else []
            parts += [f"paused: {record.paused}"] if record.paused else []
        except BadData as error:
            parts.append(f"BadData: {error}")
        parts += [f"files: {self._backlog.files}"] if self._backlog.files != len(numbers) else []
        return "; ".join(parts)

    # ---- what others do

    def seal(self, count: int | str = 1, size: int = KIB) -> None:
        """So many segments; or one whose znode is `garbage`, or whose file is `elsewhere`."""
        if count == "garbage":
            self._world.store.commit([Create(PATHS.segment_prefix, b"garbage", sequential=True)])
            return
        names = self._backlog.seals(folder="/nowhere/on/this/host") if count == "elsewhere" else None
        for name in names or self._backlog.seals(int(count), size):
            self._czxids[shortened(name)] = self._backlog.czxid(name)

    def finishes(self, query: str, what: str) -> None:
        """Everything up to a segment. The query registers when it is new."""
        self._backlog.finishes(query, self._czxids[what])

    def begins(self, query: str) -> None:
        """A query without a name, or before its first batch: its znode goes with its session."""
        self._backlog.query(query, ephemeral=True)

    def ends(self, query: str) -> None:
        """Its session does."""
        self._world.remove(PATHS.query(query))

    def forget(self, query: str) -> None:
        """`queries remove`."""
        self._backlog.remove_query(query)

    def spoil(self, what: str) -> None:
        """The data of a segment, or of a query, are garbage."""
        path = PATHS.segment(segment_name(int(what[1:]))) if what.startswith("s") else PATHS.query(what)
        self._removed[what] = self._world.data(path) or b""
        self._world.put(path, b"garbage")

    def remove(self, segment: str) -> None:
        self._backlog.remove(segment_name(int(segment[1:])))

    def restore(self, segment: str) -> None:
        """As it was before it was spoilt."""
        self._world.put(PATHS.segment(segment_name(int(segment[1:]))), self._removed[segment])

    def says(self, what: str, data: str) -> None:
        """`segments says paused`, `state says ...`: the data of these znodes by hand."""
        self._world.put({"segments": PATHS.segments, "state": PATHS.state}[what], data.encode())

    def pauses(self, _: str) -> None:
        """`operator pauses`: by hand."""
        record = SegmentsRecord(paused="moving the storage")
        self._world.put(PATHS.segments, record.to_bytes())

    def drop(self, _: str) -> None:
        """`drop queries`: the znode."""
        self._world.remove(PATHS.queries)

    def cut(self) -> None:
        """A checkpoint of the group's region completes."""
        self._region = self._region or HandMadeRegion(self._world.store)
        self._region.cut()

    def retire(self, number: int) -> None:
        assert self._region is not None
        self._region.retire(number)

    def wait(self, seconds: int) -> None:
        """Time passes for the collector."""
        self._machine.ahead_s += seconds

    # ---- a collector

    def collector(self, segments: int = LARGE.segments, size: int = LARGE.size, sweep: int = 0, **other: str) -> None:
        """Of these bounds, and with an interval of sweeps in ms.

        :param other: `retention=hour` is `AN_HOUR`, `clock=wrong` a `WrongClock`.
        """
        self._collector = collector_on(
            self._world, self._machine, Bounds(segments, size), sweep,
            AN_HOUR if "retention" in other else NOT_RETAINED, WrongClock if "clock" in other else ServerClock,
        )  # fmt: skip

    def collects(self, _: str, rounds: int = 1) -> str:
        """`it collects`: so many rounds; the state after them."""
        if self._collector is None:
            self.collector()
        assert self._collector is not None
        for _round in range(rounds):
            self._collector.collect(["g"])
        return self._state()

    def problems(self) -> str:
        """What the collector or the coordinator reports."""
        collector, service = self._collector, self._service
        found = collector._term.problems if collector is not None else service.problems if service is not None else None
        assert found is not None
        return " ".join(sorted(path.removeprefix(PATHS.root) for path in found.current())) or "none"

    def queries(self) -> str:
        """Those that exist."""
        some = [f"{name}{' (expired)' if query.expired_ms else ''}" for name, query in self._backlog.queries.items()]
        return ", ".join(some) or "none"

    def changes(self) -> str:
        """How often the set of queries has changed."""
        return str(self._backlog.set_of_queries)

    def log(self) -> list[str]:
        return [each for each in self._log.messages if "checkpoint segments removed" in each]

    # ---- a coordinator

    def coordinator(self, **options: int) -> None:
        """It is elected."""
        self._service = coordinator(self._world, **options)

    def stops(self, _: str) -> None:
        """`it stops`: the coordinator."""
        assert self._service is not None
        self._world.stop_coordinator(self._service)

    def passes(self, _: str, seconds: int = 1) -> str:
        """`time passes`, in which the coordinator does all that is due; the state after it."""
        ThreadRuntime().sleep(seconds)
        return self._state()


def _spans(numbers: list[int]) -> str:
    """`s0 s2-s5`."""
    found = []
    for _, some in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [number for _, number in some]
        found.append(f"s{run[0]}" if len(run) == 1 else f"s{run[0]}-s{run[-1]}")
    return " ".join(found)
