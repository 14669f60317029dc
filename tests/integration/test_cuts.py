"""Queries of a group in a consistent region: they begin at checkpoints, end there, and hold the same records there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path

import pytest

from consumer.errors import SegmentError
from consumer.spark.source.options import SourceConfig
from consumer.spark.source.planner import BatchPlanner, Planner
from consumer.spark.source.segment_index import Sealed, SourceOffset
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.session.kazoo_store import kazoo_factory
from coordinator.zk.store import Delete, SetData, Store
from coordinator.zk.znodes.segments import SegmentsRecord
from tests.support.cuts import REGION, HandMadeRegion
from tests.support.sealed import SealedGroup
from tests.support.stores import Reads
from tests.support.wait import eventually
from tests.support.world import World

SESSION_MS = 2000


class Cuts:
    """Queries of group `g`, whose segments and checkpoints are made by hand.

    A history has a letter for each segment, in capitals for one of partition 1, and `|` for each complete checkpoint:
    they are 1, 2 and so on. The group is in a region from the first one on.
    """

    def __init__(self, world: World, folder: Path) -> None:
        self.world = world
        self.group = SealedGroup(world.store, folder)
        self._names: dict[str, str] = {}
        self._planners: list[Planner] = []

    @cached_property
    def region(self) -> HandMadeRegion:
        return HandMadeRegion(self.world.store)

    def happens(self, history: str) -> None:
        for each in history:
            if each == "|":
                self.region.cut()
            else:
                self._names[self.group.seal(partition=int(each.isupper()))] = each

    def collect(self, letters: str) -> None:
        """As the coordinator does."""
        paths, names = self.group.paths, [name for name, letter in self._names.items() if letter in letters]
        record = SegmentsRecord(collected=self.group.czxid(names[-1])).to_bytes()
        self.world.store.commit([SetData(paths.segments, record), *(Delete(paths.segment(name)) for name in names)])

    # ---- what is read

    def letters(self, planned: Iterable[Iterable[Sealed]]) -> str:
        """Of the segments in a batch."""
        return "".join(self._names[sealed.name] for run in planned for sealed in run)

    def config(self, asked: Mapping[str, str], query: str = "") -> SourceConfig:
        """Its `from` and `to` are numbers of checkpoints."""
        words = {"starting_segments": "from", "ending_segments": "to"}
        ends = {option: f"checkpoint:{asked[word]}" for option, word in words.items() if word in asked}
        is_aligned = "aligned" in asked
        return SourceConfig(zk=self.world.zk, group="g", query=query, align_checkpoints=is_aligned, **ends)

    def planner(self, what: str = "aligned", wrap: Callable[[Store], Store] = lambda store: store) -> Planner:
        """Of a query, `q` by default."""
        asked, opener = options(what), kazoo_factory(self.world.zk, SESSION_MS)
        config = self.config(asked, asked.get("query", "q"))
        self._planners.append(Planner(config, lambda: wrap(opener()), ThreadRuntime()))
        return self._planners[-1]

    def batch(self, what: str, wrap: Callable[[Store], Store] = lambda store: store) -> str:
        """The segments of a batch read."""
        opener = kazoo_factory(self.world.zk, SESSION_MS)
        planner = BatchPlanner(self.config(options(what)), lambda: wrap(opener()), ThreadRuntime())
        with closing(planner):
            return self.letters(planner.plan_all())

    def stream(self, what: str) -> str:
        """Every batch that there is now, and behind it `|1` where it ends at checkpoint 1."""
        planner, found = self.planner(what), []
        planner.close()  # the next question uses a session that has listed everything
        start, most = planner.initial(), int(options(what).get("rows", 0))
        while (end := planner.latest(start, most)) != start:
            assert ("checkpoint" in end.to_dict()) == bool(end.checkpoint)
            found.append(self.letters(planner.plan(start, end)) + (f"|{end.checkpoint}" if end.checkpoint else ""))
            start = end
        return " ".join(found)

    def read(self, what: str) -> str:
        return self.batch(what) if what.startswith("batch") else self.stream(what)

    def close(self) -> None:
        for planner in self._planners:
            planner.close()


def options(what: str) -> dict[str, str]:
    """`aligned rows=20` is two of them."""
    return dict(word.partition("=")[::2] for word in what.split())


@pytest.fixture
def cuts(world: World, tmp_path: Path) -> Iterator[Cuts]:
    with closing(Cuts(world, tmp_path)) as made:
        yield made


READS: dict[str, tuple[str, dict[str, str]]] = {
    "batch_reads_up_to_and_from_a_checkpoint_are_disjoint_and_complete": (
        "aB|cd", {"batch to=1": "aB", "batch from=1": "cd"},
    ),
    "batch_read_between_two_checkpoints_has_the_segments_between_them": (
        "a|bc|d", {"batch from=1 to=2": "bc", "batch from=2 to=2": ""},
    ),
    "new_queries_that_start_at_a_checkpoint_read_the_same_segments": (
        "a|bc", {"query=one from=1": "bc", "query=other from=1": "bc"},
    ),
    "a_checkpoint_before_the_first_segment_is_where_everything_begins": ("|ab", {"from=1": "ab"}),
    "batch_ends_at_every_checkpoint_and_its_offset_names_it": ("ab|c|d", {"aligned": "ab|1 c|2 d"}),
    "an_aligned_batch_is_no_longer_than_asked_for_either": ("abc|d", {"aligned rows=20": "ab c|1 d"}),
    "without_alignment_checkpoints_change_nothing": ("a|b", {"": "ab"}),
}  # fmt: skip


@pytest.mark.parametrize(("history", "reads"), READS.values(), ids=READS)
def test_what_is_read(cuts: Cuts, history: str, reads: dict[str, str]) -> None:
    cuts.happens(history)

    assert {what: cuts.read(what) for what in reads} == reads


UNKEPT = "region r has no complete checkpoint "
COLLECTED = "segments after checkpoint 1 of group g's region were collected; there are: 2$"
REFUSED: dict[str, tuple[str, dict[str, str]]] = {
    "unkept_checkpoint_is_refused_with_the_kept_ones": (
        "a|b|c|",
        {"from=1": f"{UNKEPT}1, any more or yet; there are: 2, 3", "batch to=9": f"endingSegments: {UNKEPT}9"},
    ),
    "checkpoint_with_collected_segments_is_refused_listing_complete_ones": (
        "x|y|z", {"from=1": COLLECTED, "batch from=1": COLLECTED},
    ),
    "a_group_that_is_in_no_region_has_no_checkpoints_to_begin_at": (
        "a", {"from=1": "startingSegments: group g is in no consistent region"},
    ),
    "a_batch_read_that_begins_after_its_end_is_refused": ("a|b|", {"batch from=2 to=1": "comes after endingSegments"}),
}  # fmt: skip
"""Of three checkpoints, the first one is retired; segments x and y are collected."""


@pytest.mark.parametrize(("history", "refusals"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(cuts: Cuts, history: str, refusals: dict[str, str]) -> None:
    cuts.happens(history)
    if history.count("|") == 3:
        cuts.region.retire(1)
    if "x" in history:
        cuts.collect("xy")

    for what, reason in refusals.items():
        with pytest.raises(SegmentError, match=reason):
            cuts.read(what)


def test_first_batch_is_repeated_after_its_checkpoint_was_retired(cuts: Cuts) -> None:
    cuts.happens("a|bc")
    planner = cuts.planner("from=1")
    end = planner.latest(planner.initial())
    planner.plan(planner.initial(), end)  # it is in Spark's checkpoint, and the driver dies
    planner.close()
    cuts.happens("|")
    cuts.region.retire(1)

    again = cuts.planner("from=1")

    assert cuts.letters(again.plan(again.initial(), end)) == "bc"
    assert again.latest(end) == end


# ---- aligned batches


def moved(planner: Planner, end: SourceOffset) -> SourceOffset:
    """Where the query is next."""
    return eventually(lambda: (now := planner.latest(end)) != end and now, 10, "it has reached the newest checkpoint")


def test_a_checkpoint_with_nothing_new_is_reached_by_a_batch_without_records(cuts: Cuts) -> None:
    cuts.happens("a|")
    planner = cuts.planner()
    end = planner.latest(planner.initial())
    assert (cuts.letters(planner.plan(planner.initial(), end)), end.checkpoint) == ("a", 1)
    cuts.happens("||")

    after = moved(planner, end)

    assert (after.checkpoint, after.czxid) == (3, end.czxid) and planner.plan(end, after) == []
    assert planner.latest(after) == after


def test_a_query_that_begins_before_its_group_is_in_a_region_is_aligned_once_it_is(cuts: Cuts) -> None:
    cuts.happens("a")
    planner = cuts.planner()
    end = planner.latest(planner.initial())
    cuts.happens("|")

    at = moved(planner, end)

    assert end.segment == at.segment != ""
    assert (end.checkpoint, at.checkpoint) == (0, 1)


def test_available_now_run_ends_while_further_checkpoints_complete(cuts: Cuts) -> None:
    cuts.happens("a|")
    planner = cuts.planner()
    start = planner.initial()
    planner.prepare_available_now()
    ends = []
    for _ in range(5):
        cuts.happens("|")
        planner.close()  # each question uses a new session, which reads everything again
        ends.append(planner.latest(ends[-1] if ends else start))

    assert ends[0].checkpoint == 1 and set(ends) == {ends[0]}


def test_a_region_that_was_made_again_and_counts_from_1_has_cuts_of_its_own(cuts: Cuts) -> None:
    cuts.happens("a|")
    planner = cuts.planner()
    end = planner.latest(planner.initial())
    planner.plan(planner.initial(), end)
    cuts.region.retire(end.checkpoint)
    cuts.region.again()
    cuts.happens("b|c|")

    planner = cuts.planner()
    after = planner.latest(end)

    assert (cuts.letters(planner.plan(end, after)), after.checkpoint) == ("b", 1)


def test_idle_aligned_query_sends_few_requests_for_any_number_of_checkpoints(cuts: Cuts) -> None:
    cuts.happens("a")
    for _ in range(10):
        cuts.region.abort()
        cuts.happens("|")
    stores: list[Reads] = []
    planner = cuts.planner("aligned", lambda store: stores.append(Reads(store)) or stores[-1])
    end = planner.latest(planner.initial())
    planner.plan(planner.initial(), end)
    end = planner.latest(end)
    before = len(stores[0].paths)

    for _ in range(100):
        assert planner.latest(end) == end

    assert len(stores[0].paths) - before < 50


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_batch_read_between_checkpoints_loses_no_segment_collected_meanwhile(cuts: Cuts, nth: int) -> None:
    cuts.happens("a|bc|")

    def collecting(store: Store) -> Store:
        return Reads(store).after(cuts.group.paths.segments, lambda: cuts.collect("ab"), nth)

    try:
        assert cuts.batch("from=1 to=2", collecting) == "bc"
    except SegmentError as error:
        assert "were collected" in str(error)


@pytest.mark.parametrize("place", ["checkpoints", "segments"])
def test_batch_never_spans_a_checkpoint_that_completes_while_a_query_plans(cuts: Cuts, place: str) -> None:
    cuts.happens("a")
    path = {"checkpoints": REGION.checkpoints, "segments": cuts.group.paths.segments}[place]
    assert cuts.region
    planner = cuts.planner()
    start = planner.initial()
    planner.close()
    planner = cuts.planner("aligned", lambda store: Reads(store).after(path, lambda: cuts.happens("b|c")))
    found = []
    for _ in range(6):
        end = planner.latest(start)
        found.append((cuts.letters(planner.plan(start, end)), end.checkpoint))
        start = end

    assert not any({"b", "c"} <= set(letters) for letters, _ in found), "no batch has both"
    assert "".join(letters for letters, _ in found) == "abc"
    at_cut = [number for number, (_, checkpoint) in enumerate(found) if checkpoint == 1]
    held = "".join(letters for letters, _ in found[: at_cut[0] + 1])
    assert held == "ab", "what it holds at the checkpoint is what belongs to that"
