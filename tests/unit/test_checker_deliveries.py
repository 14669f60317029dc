"""S5, fourth part: what all runs of a query together deliver continues, but where an operator has said otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.store import Check
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.paths import COORDINATOR_EPOCH
from coordinator.zk.znodes.records import BegunRecord, OffsetRecord
from coordinator.zk.znodes.segments import Query, SealedRange
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, holds, names, only, spoilt

P0 = TopicPartition("flights", 0)
P2 = TopicPartition("flights", 2)
"""Of s1; sealed, and delivered by the query, up to 100."""


def stand(history: StoryHistory, position: int | None) -> None:
    """The position of s1 in flights-2."""
    life = history.lives["s1"]
    history.set_channel(life, replace(life.channel, running={**life.channel.running, P2: position}))


def sealed_at(history: StoryHistory, first: int, position: int | None) -> None:
    """s1 goes on with flights-2 at another offset, which is its position by then, or is in `offsets/`."""
    stand(history, position)
    history.sealed("s1", [SealedRange("flights", "T1", 2, first, first + 10)])


def jump(history: StoryHistory, after: int, before: int = 100) -> None:
    """The log does not have the position of s1 any more."""
    life, place = history.lives["s1"], {"topic": "flights", "topic_id": "T1", "partition": 2}
    fields = {"group": "g", "consumer": "s1", "incarnation": life.channel.incarnation, **place}
    history.event("jump", "s1#1", **fields, before=before, after=after)
    sealed_at(history, after, after)


def reset(history: StoryHistory, offset: int) -> None:
    """An operator sets the offset of flights-2."""
    history.commit("operator#1", history.put(G.offset(*P2), OffsetRecord(offset, "T1", 2).to_bytes()))


def restart(history: StoryHistory, who: str = "q#2") -> None:
    history.query(who, "g", "q", f"run of {who}", history.finished_by("q"))


def deliver(history: StoryHistory, who: str = "q#2", number: int = 2, **more: object) -> None:
    """A batch with everything after the last one."""
    last = [event for event in history.events if event["event"] == "batch"][-1]
    history.batch(who, "g", "q", "r", number, last["upto"], **more)


def fail(history: StoryHistory, who: str, why: str) -> None:
    history.event("query-failed", who, group="g", query="q", why=f"query q of group g has lost records: {why}")


@pytest.mark.parametrize("place", [150, 60])
@pytest.mark.parametrize("who", ["q#1", "q#2"])
@breaks(
    "S5", "has flights-2 (id T1) from {place} on in segment-0000000006, and 100 should be next", at="joined",
    witness="s1#1 commit channel/s1, s1#1 commit channel/s1, {who} batch",
)  # fmt: skip
def test_a_run_that_delivers_a_gap_or_repetition_breaks_it(history: StoryHistory, who: str, place: int) -> None:
    jump(history, place)
    restart(history, who)
    deliver(history, who)


@holds(at="joined")
def test_a_run_that_bears_data_loss_delivers_anything_and_later_ones_continue(history: StoryHistory) -> None:
    jump(history, 150)
    restart(history)
    deliver(history, fail_on_data_loss=False)
    sealed_at(history, 160, 160)
    deliver(history, number=3)


@holds(at="joined")
def test_a_run_that_bears_data_loss_passes_segments_whose_files_are_missing(history: StoryHistory) -> None:
    sealed_at(history, 100, 100)
    history.event("fault", "server", kind="folder-lost", file="g/s")
    restart(history)
    deliver(history, fail_on_data_loss=False, segments=[], rows=[])
    sealed_at(history, 110, 110)
    deliver(history, number=3)


@holds(at="joined")
def test_a_run_that_bears_data_loss_passes_segments_that_were_collected(history: StoryHistory) -> None:
    sealed_at(history, 100, 100)
    newest = max(czxid for path, (_, _, _, czxid) in history.tree.items() if "/segment-" in path)
    read, other = Query("", history.finished_by("q"), 0, expired_ms=1), Query("other", newest, 0)
    history.commit(
        history.coordinator,
        Check(COORDINATOR_EPOCH, history.fence),
        history.put(G.queries, b""),
        history.put(G.query("q"), read.to_bytes()),
        history.put(G.query("other"), other.to_bytes()),
    )
    history.collect("g", newest)
    restart(history)
    first = history.lives["s0"].channel.running[P0]
    history.sealed("s0", [SealedRange("flights", "T1", 0, first, first + 10)])
    deliver(history, fail_on_data_loss=False)
    sealed_at(history, 110, 110)
    deliver(history, number=3)


@pytest.mark.parametrize("place", [150, 60])
@holds(at="joined")
def test_a_query_that_was_stopped_goes_on_where_a_reset_has_set_the_offset(history: StoryHistory, place: int) -> None:
    reset(history, place)
    sealed_at(history, place, None)
    restart(history)
    deliver(history)


def test_reset_under_a_query_that_runs_is_a_gap() -> None:
    def happen(history: StoryHistory) -> None:
        reset(history, 150)
        sealed_at(history, 150, None)
        deliver(history, "q#1")

    finding = only(spoilt("joined", happen), "S5")

    assert finding.why.endswith("100 should be next; a reset to 150 came after its run had registered")
    assert names(finding)[1:] == ["operator#1 commit flights/2", "s1#1 commit channel/s1", "q#1 batch"]


@breaks("S5", "100 should be next", at="joined")
def test_batch_is_judged_by_the_run_that_planned_it(history: StoryHistory) -> None:
    reset(history, 150)
    sealed_at(history, 150, None)
    restart(history)
    deliver(history, planned="q#1")


@pytest.mark.parametrize(
    ("resets", "read_from"),
    [((150,), 170), ((150, 130), 150)],
    ids=["the log did not have it", "a later one has replaced it"],
)
def test_reset_elsewhere_is_no_reason_to_begin_there(resets: tuple[int, ...], read_from: int) -> None:
    def happen(history: StoryHistory) -> None:
        for offset in resets:
            reset(history, offset)
        for position in (None, resets[-1]):
            stand(history, position)
        jump(history, read_from, before=resets[-1])
        restart(history)
        deliver(history)

    why = only(spoilt("joined", happen), "S5").why
    assert f"from {read_from} on in segment-0000000006, and 100 should be next" in why


# ---- partitions that are new to a query


def begins_late(history: StoryHistory, there: set[int], jumps: bool, place: int = 40, before: int = 0) -> None:
    """flights-2 is had from `place` on, whose log began there; the group began with the partitions `there`."""
    begun = BegunRecord("T1", frozenset(there)).to_bytes()
    history.commit(history.coordinator, history.put(G.offsets_of("flights"), begun))
    history.event("earliest", "server", topic="flights", topic_id="T1", partition=2, offset=place)
    jump(history, place, before=before) if jumps else sealed_at(history, place, None)


def reads(history: StoryHistory) -> None:
    history.query("q#1", "g", "q", "r1", 0, ephemeral=True)


@holds(at="stable", there={0, 1, 2})
@breaks(
    "S5", "has flights-2 (id T1) from 40 on in segment-0000000000, and it does not begin there", at="stable",
    witness="s1#1 commit channel/s1, q#1 batch", there={0, 1},
)  # fmt: skip
def test_partition_begins_anywhere_unless_it_came_later(history: StoryHistory, there: set[int]) -> None:
    reads(history)
    begins_late(history, there, jumps=False)
    history.batch("q#1", "g", "q", "r1", 0, 0)


@breaks("S5", "from 40 on", at="stable")
def test_partition_whose_first_records_were_lost_since_the_group_began_is_a_gap(history: StoryHistory) -> None:
    reads(history)
    begins_late(history, {0, 1, 2}, jumps=True)
    history.batch("q#1", "g", "q", "r1", 0, 0)


@holds(at="stable")
def test_query_that_is_younger_than_a_partition_has_it_from_anywhere(history: StoryHistory) -> None:
    begins_late(history, {0, 1}, jumps=True)
    reads(history)
    history.batch("q#1", "g", "q", "r1", 0, 0)


@holds(at="stable")
def test_partition_whose_older_copy_begins_at_0_lacks_nothing(history: StoryHistory) -> None:
    reads(history)
    begins_late(history, {0, 1}, jumps=True, place=0, before=54)
    history.batch("q#1", "g", "q", "r1", 0, 0)


@pytest.mark.parametrize(("first", "after"), [(100, 150), (100, 60)])
@breaks("S5", "has flights-2 (id T1) from {after} on in segment-0000000006", at="joined")
def test_query_lacks_what_the_log_lost_of_an_older_partition_since_it_began(
    history: StoryHistory, first: int, after: int
) -> None:
    """It began after the newest segment, and has had nothing of the partition."""
    newest = max(czxid for path, (_, _, _, czxid) in history.tree.items() if "/segment-" in path)
    history.query("q#9", "g", "late", "r9", newest, ephemeral=True)
    jump(history, after, before=first)
    history.batch("q#9", "g", "late", "r9", 0, newest)


# ---- failures


@breaks(
    "S5", "^query q of group g failed, and nothing is missing or sealed twice: query q of", at="joined",
    witness="q#1 batch, q#2 query-failed",
)  # fmt: skip
def test_a_query_that_fails_though_all_ranges_continue_breaks_it(history: StoryHistory) -> None:
    reset(history, 150)
    sealed_at(history, 150, None)
    restart(history)
    fail(history, "q#2", "segment-0000000006 has flights-2 from offset 150 on, and 100 should be next")


@holds(at="collected")
def test_query_that_began_after_a_collection_fails_because_of_a_later_loss(history: StoryHistory) -> None:
    """It has had nothing of the partition, whose records before the loss were collected before it began."""
    history.query("q#9", "g", "late", "r9", 0, ephemeral=True)
    first = history.lives["s0"].channel.running[P0]
    history.sealed("s0", [SealedRange("flights", "T1", 0, first, first + 10)])
    history.batch("q#9", "g", "late", "r9", 0, 0)
    jump(history, 150, before=history.lives["s1"].channel.running[P2])
    why = "query late of group g has lost records: segment-0000000003 has flights-2 from offset 150 on"
    history.event("query-failed", "q#9", group="g", query="late", why=why)


@holds(at="stable")
def test_query_fails_because_a_log_was_put_back_to_0_before_its_first_records(history: StoryHistory) -> None:
    history.query("q#1", "g", "q", "r1", 0, ephemeral=True)
    jump(history, 0, before=54)
    fail(history, "q#1", "segment-0000000000 has flights-2 from offset 0 on, and 54 should be next")


@holds(at="joined")
def test_query_fails_because_of_a_gap_and_because_of_a_damaged_file(history: StoryHistory) -> None:
    jump(history, 150)
    fail(history, "q#1", "segment-0000000006 has flights-2 from offset 150 on, and 100 should be next")
    history.event("fault", "server", kind="file-replaced", file="g/s1/x.arrow")
    fail(history, "q#1", "the file /segments/g/s1/x.arrow cannot be read: it has other records")
