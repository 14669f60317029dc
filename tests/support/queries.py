"""A group with segments that are made by hand, and runs of queries over it that a test moves: no Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cuts import HandMadeRegion
from tests.support.sealed import SealedGroup
from tests.support.wait import Ahead, within
from zk_group.consumer.streaming.source.options import SourceConfig
from zk_group.consumer.streaming.source.planner import BatchPlanner, Planner
from zk_group.consumer.streaming.source.segment_index import Sealed, SourceOffset
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.session.kazoo_store import kazoo_factory, open_kazoo
from zk_group.coordinator.zk.store import Check, Create, SetData, Store, StoreFactory
from zk_group.coordinator.zk.znodes.partitions import LOST, RESET, Discontinuity
from zk_group.coordinator.zk.znodes.paths import segment_name

SESSION_MS = 2000
IN_TIMES_TO_COME = 2**60


def names(runs: list[list[Sealed]]) -> list[str]:
    return [sealed.name for run in runs for sealed in run]


def shortened(text: str) -> str:
    """With `s0` for the name of the first segment."""
    return re.sub(r"segment-0*(\d+)", r"s\1", text)


def later(planner: Planner, start: SourceOffset) -> SourceOffset:
    """The end of a batch after `start`, once the watch has fired: the next listing would only be after 10 s."""
    found = within(lambda: end if (end := planner.latest(start)) != start else None, 5, "something more is sealed")
    assert found is not None
    return found


def restarted(offset: SourceOffset) -> SourceOffset:
    """As Spark's checkpoint returns it."""
    return SourceOffset.of(json.loads(json.dumps(offset.to_dict())))


class QueryBench(SealedGroup):
    """A group, and planners of queries with a clock that a test moves."""

    def __init__(self, zk: str, folder: Path) -> None:
        super().__init__(open_kazoo(zk, SESSION_MS), folder)
        self.zk = zk
        self.clock = Ahead()
        self._planners: list[Planner] = []

    def _opener(self, front: Callable[[Store], Store] | None) -> StoreFactory:
        opener = kazoo_factory(self.zk, SESSION_MS)
        return opener if front is None else lambda: front(opener())

    def _config(self, **options: Any) -> SourceConfig:
        return SourceConfig(**({"zk": self.zk, "group": "g"} | options))

    def planner(self, query: str = "q", front: Callable[[Store], Store] | None = None, **options: Any) -> Planner:
        """A run of a query.

        :param front: a store in front of each of its sessions.
        """
        self._planners.append(Planner(self._config(query=query, **options), self._opener(front), self.clock))
        return self._planners[-1]

    def batch_planner(
        self,
        kind: type[BatchPlanner] = BatchPlanner,
        front: Callable[[Store], Store] | None = None,
        **options: Any,
    ) -> BatchPlanner:
        """One batch read."""
        planner = kind(self._config(**options), self._opener(front), ThreadRuntime())
        self._planners.append(planner)
        return planner

    def ran(self, query: str = "q", **options: Any) -> tuple[Planner, SourceOffset, SourceOffset]:
        """A run that has planned its first batch, with this batch's start and end."""
        planner = self.planner(query, **options)
        start = planner.initial()
        end = planner.latest(start)
        planner.plan(start, end)
        return planner, start, end

    def is_of_session(self, query: str) -> bool:
        node = self.store.get(self.paths.query(query))
        return node is not None and bool(node.stat.ephemeral_owner)

    def expire(self, query: str = "q") -> None:
        """As the coordinator marks a query that was silent for too long."""
        marked = replace(self.queries[query], expired_ms=1)
        self.store.commit([SetData(self.paths.queries, b""), SetData(self.paths.query(query), marked.to_bytes())])

    def close(self) -> None:
        for planner in self._planners:
            planner.close()
        self.store.close()


@dataclass
class Run:
    """A run of a query in a story.

    :ivar batches: how many it has had.  :ivar at: the end of the last one.  :ivar before: the begin of that.
    :ivar offered: the end of the next one.
    """

    planner: Planner
    batches: int
    at: SourceOffset
    before: SourceOffset
    offered: SourceOffset


class QueryStory:
    """Steps of stories (see `stories.py`) about a group's queries. Segment 0 is `s0`; a name that a query gave itself
    is `query-1`."""

    errors: tuple[type[Exception], ...] = (CoordinatorError,)

    def __init__(self, bench: QueryBench, caplog: pytest.LogCaptureFixture) -> None:
        self._bench = bench
        self._log = caplog
        self._region: HandMadeRegion | None = None
        self._runs: dict[str, Run] = {}
        self._planners: dict[str, Planner] = {}
        self._sealed = {0: "nothing"}
        self._given: list[str] = []
        self._reset = Discontinuity(RESET, IN_TIMES_TO_COME)
        self._set = 0
        self._written: dict[str, int] = {}

    def shown(self, text: str) -> str:
        self._given += [name for name in re.findall(r"query-[0-9a-f]{12}", text) if name not in self._given]
        for number, name in enumerate(self._given, 1):
            text = text.replace(name, f"query-{number}")
        text = re.sub(r"bytes, not \d+", "bytes, not as many", text.replace(self._bench.folder.url, "FOLDER"))
        return shortened(text)

    @staticmethod
    def _name(short: str) -> str:
        return segment_name(int(short[1:]))

    # ---- what others do

    def seal(
        self, *rows: int | str, partition: int = 0, first: int | None = None, cause: str = "", lost: int = -1
    ) -> None:
        """A segment for each number of rows; of 10 without any. `cause=reset` is the last reset, or one to come.

        `seal garbage` makes one that cannot be understood.
        """
        if rows == ("garbage",):
            self._bench.store.commit([Create(self._bench.paths.segment_prefix, b"garbage", sequential=True)])
            return
        reset = self._reset if cause else None
        for each in rows or (10,):
            name = self._bench.seal(int(each), partition, first, Discontinuity(LOST, lost) if lost >= 0 else reset)
            self._sealed[self._bench.czxid(name)] = name

    def refuse(self, *_: str) -> None:
        """A multi with a segment is refused."""
        self._bench.store.commit(
            [Create(self._bench.paths.segment_prefix, b"", sequential=True), Check(self._bench.paths.segments, 77)]
        )

    def reset(self) -> None:
        """An operator sets the group's offsets, now."""
        self._reset = self._bench.reset()

    def collect(self, *segments: str) -> None:
        self._bench.collect([self._name(short) for short in segments])

    def remove(self, segment: str) -> None:
        """As a hand does."""
        self._bench.remove(self._name(segment))

    def unlink(self, segment: str) -> None:
        self._bench.path(self._name(segment)).unlink()

    def damage(self, segment: str) -> None:
        self._bench.path(self._name(segment)).write_bytes(b"damaged")

    def cut(self, checkpoints: int = 1) -> None:
        """So many checkpoints of the group's region complete: they are 1, 2 and so on."""
        self._region = self._region or HandMadeRegion(self._bench.store)
        for _ in range(checkpoints):
            self._region.cut()

    def retire(self, checkpoint: int) -> None:
        assert self._region is not None
        self._region.retire(checkpoint)

    def again(self) -> None:
        """The region is removed, and made again."""
        assert self._region is not None
        self._region.again()

    def forget(self, query: str) -> None:
        """`queries remove`."""
        self._bench.remove_query(query)

    def expire(self, query: str) -> None:
        self._bench.expire(query)

    def wait(self, seconds: int) -> None:
        """Time passes by the clock of all queries, and nothing else happens."""
        self._bench.clock.ahead_s += seconds

    def watches(self, _: str) -> None:
        """`watches fire`: long before anything is read again without one."""
        ThreadRuntime().sleep(0.2)

    # ---- what there is

    def queries(self) -> list[str]:
        """The znode of each query, and how far it lets segments be collected."""
        return [
            f"{name}: finished {self._sealed[query.finished]}"
            + (", of its session" if self._bench.is_of_session(name) else "")
            + (", expired" if query.expired_ms else "")
            for name, query in self._bench.queries.items()
        ] or ["none"]

    def changes(self) -> str:
        """How often the set of queries has changed since this was asked before."""
        before, self._set = self._set, self._bench.set_of_queries
        return str(self._set - before)

    def signs(self, _: str, query: str) -> str:
        """`signs of q`: whether its znode was written since this was asked before."""
        node = self._bench.store.get(self._bench.paths.query(query))
        assert node is not None
        before, self._written[query] = self._written.get(query, 0), node.stat.mzxid
        return "written" if self._written[query] > before else "not written"

    def warnings(self) -> list[str]:
        """What readers have logged as removed, since this was asked before."""
        found = [record.getMessage() for record in self._log.records if "already removed" in record.getMessage()]
        self._log.clear()
        return found or ["none"]

    # ---- runs of queries

    def _shown(self, offset: SourceOffset) -> str:
        place = offset.segment or self._sealed.get(offset.czxid, "no segment")
        place += f", checkpoint {offset.checkpoint}" if offset.checkpoint else ""
        return f"{place} of {offset.query}" if offset.query.startswith("query-") else place

    def _begin(self, offset: SourceOffset) -> str | None:
        is_named = not offset.query.startswith("query-")
        return None if is_named and not offset.czxid else f"after {self._shown(offset)}"

    def takes(self, run: str, *_: str, query: str = "q", **options: Any) -> None:
        """`q takes what is there now`: `availableNow`, of a run that has not begun."""
        self._planners[run] = self._bench.planner(query, **options)
        self._planners[run].prepare_available_now()

    def _run(self, run: str, **options: Any) -> Run:
        """One that has begun."""
        if run not in self._runs:
            self.begins(run, **options)
        return self._runs[run]

    def begins(self, run: str, query: str = "q", **options: Any) -> str | None:
        """A run without a Spark checkpoint; where it begins, when that is not the beginning.

        Its first offer or batch begins it, too, with the same options.
        """
        planner = self._planners.pop(run, None) or self._bench.planner(query, **options)
        start = planner.initial()
        self._runs[run] = Run(planner, 0, start, start, start)
        return self._begin(start)

    def resumes(self, run: str, other: str, query: str = "q", **options: Any) -> None:
        """A run with the Spark checkpoint of another one."""
        last = self._runs[other]
        places = [restarted(place) for place in (last.at, last.before, last.offered)]
        self._runs[run] = Run(self._bench.planner(query, **options), last.batches, *places)

    def restarts(self, run: str, query: str = "q", **options: Any) -> None:
        self.resumes(run, run, query, **options)

    def asks(self, run: str, *_: str) -> str | None:
        """`q asks where to begin`: Spark does so though it has a checkpoint, and plans a first batch from there."""
        one = self._runs[run]
        start = one.planner.initial()
        if one.batches == 0:
            one.at = start
        elif one.batches == 1:
            one.before = start
        return self._begin(start)

    def offers(self, run: str, max_rows: int = 0, **options: Any) -> str:
        """The end of the next batch by now."""
        one = self._run(run, **options)
        one.offered = one.planner.latest(one.at, max_rows)
        return f"up to {self._shown(one.offered)}" if one.offered != one.at else "nothing"

    def plans(self, run: str, how: str = "") -> str:
        """The batch that was offered, the last one `again`, or one `beyond` what there is."""
        one = self._runs[run]
        beyond = replace(one.at, czxid=one.at.czxid + 100)
        start, end = {"again": (one.before, one.at), "beyond": (one.at, beyond)}.get(how, (one.at, one.offered))
        found = names(one.planner.plan(start, end))
        if not how:
            one.batches, one.before, one.at = one.batches + 1, start, end
        return " ".join(found) or "nothing"

    def reads(self, run: str, max_rows: int = 0, **options: Any) -> str:
        """The next batch, once its watch has fired; with a bound, the one that is there by now."""
        one = self._run(run, **options)
        one.offered = later(one.planner, one.at) if not max_rows else one.planner.latest(one.at, max_rows)
        return self.plans(run)

    def streams(self, run: str, max_rows: int = 0, **options: Any) -> str:
        """Every batch that there is now, and behind it `|1` where it ends at checkpoint 1."""
        one, found = self._run(run, **options), []
        one.planner.close()  # the next question is of a session that has listed everything
        while self.offers(run, max_rows) != "nothing":
            assert ("checkpoint" in one.offered.to_dict()) == bool(one.offered.checkpoint)
            found.append(self.plans(run) + (f" |{one.at.checkpoint}" if one.at.checkpoint else ""))
        return ", ".join(found) or "nothing"

    def stands(self, run: str) -> str:
        """The offsets that it has delivered."""
        return " ".join(f"{partition}:{end}" for partition, (_, end) in sorted(self._runs[run].at.ends.items()))

    def loses(self, run: str, *_: str) -> None:
        """`q loses its session`."""
        living = self._runs[run].planner._sessions.living
        assert living is not None
        living.close()

    def ends(self, run: str) -> None:
        (self._runs[run].planner if run in self._runs else self._planners[run]).close()

    # ---- batch reads

    def batch(self, **options: Any) -> str:
        """What a batch read plans."""
        options = {key: self._name(text) if re.match(r"s\d", str(text)) else text for key, text in options.items()}
        return " ".join(names(self._bench.batch_planner(**options).plan_all())) or "nothing"
