"""S5, first half: sealed ranges join without gap or overlap, and nothing is collected too early."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import BegunRecord, OffsetRecord
from coordinator.zk.znodes.segments import Query, SealedRange
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, held, holds, names, only, spoilt

P2 = TopicPartition("flights", 2)
CITIES = TopicPartition("cities-1", 0)
TWICE = "c1#1 commit channel/c1, c1#1 commit channel/c1"


def part(number: int, first: int, following: int, topic_id: str = "T1") -> SealedRange:
    return SealedRange("flights", topic_id, number, first, following)


def set_position(history: StoryHistory, consumer: str, partition: TopicPartition, offset: int | None) -> None:
    """The offsets that a consumer reports as its position."""
    life = history.lives[consumer]
    life.channel = replace(life.channel, running={**life.channel.running, partition: offset})


@pytest.mark.parametrize(("first", "kind"), [(120, "a gap in flights-2"), (90, "an overlap in flights-2")])
def test_a_seal_by_the_next_holder_that_does_not_join_breaks_it(first: int, kind: str) -> None:
    """s1 has sealed flights-2 up to 100; s3, which owns it after the eviction, continues at another offset."""

    def happen(history: StoryHistory) -> None:
        history.sealed("s3", [part(2, first, first + 5)])

    finding = only(spoilt("handed on, unsealed", happen), "S5")

    assert names(finding) == ["s1#1 commit channel/s1", "s3#1 commit channel/s3"]
    assert kind in finding.why and f"{first} to {first + 5} was committed" in finding.why
    assert "100 was reached at 3.02 s" in finding.why


@breaks("S5", "went from 120 to 140", "its segment has 130 to 140", at="joined", witness="s1#1 commit channel/s1")
def test_a_seal_by_the_same_holder_that_does_not_join_breaks_it(history: StoryHistory) -> None:
    history.sealed("s1", [part(2, 100, 120)])
    set_position(history, "s1", P2, 130)
    history.sealed("s1", [part(2, 130, 140)])


@breaks("S5", "flights-2 (id T1) of group g went from 100 to 150", at="joined", witness="s1#1 commit channel/s1")
def test_segment_with_another_range_than_its_commit_breaks_it(history: StoryHistory) -> None:
    history.sealed("s1", [part(2, 100, 120)], to=[part(2, 100, 150)])


@breaks("S5", "has flights-2 from 100 to 120, which its commit", at="joined")
def test_a_segment_whose_commit_advances_nothing_breaks_it(history: StoryHistory) -> None:
    history.sealed("s1", [part(2, 100, 120)], to=[])


@breaks("S5", "its segment has 100 to 120 of id T0$", at="joined")
def test_a_segment_of_another_topic_id_breaks_it(history: StoryHistory) -> None:
    history.sealed("s1", [part(2, 100, 120, topic_id="T0")])


@breaks("S5", "went from 100 to 120 at", "without a segment$", at="joined", witness="s1#1 commit channel/s1")
def test_a_slot_that_advances_without_a_segment_breaks_it(history: StoryHistory) -> None:
    history.advance("s1", 20, 2)


@breaks("S5", "were sealed in one commit", at="joined", witness="s0#1 commit channel/s0")
def test_two_segments_in_one_commit_break_it(history: StoryHistory) -> None:
    life = history.lives["s0"]
    some = [part(0, 110, 120), part(1, 130, 140)]
    history.sealed("s0", some[:1])
    del history.events[-1]
    history.zxid -= 1
    texts = []
    for each in some:
        history.sealed("s0", [each])
        texts.append(history.events.pop()["ops"][1]["data"].encode())
    creates = [Create(G.segment_prefix, text, sequential=True) for text in texts]
    history.set_channel(life, life.channel, *creates)


@breaks(
    "S5", "a gap in flights-2 of group g: 4 to 20", "nothing was before", at="stable", witness="s1#1 commit channel/s1"
)
def test_first_seal_of_a_partition_after_its_beginning_breaks_it(history: StoryHistory) -> None:
    history.sealed("s1", [part(2, 4, 20)])


@holds(at="stable")
def test_first_seal_of_a_partition_may_begin_at_the_log_start(history: StoryHistory) -> None:
    history.event("earliest", "server", topic="flights", topic_id="T1", partition=2, offset=4)
    history.sealed("s1", [part(2, 4, 20)])


def again(history: StoryHistory, offset: int) -> None:
    """c1, at offset 7, releases its partition, gets it again, and begins at another offset."""
    share = {"cities-1": "0-2"}
    history.fenced("h", history.states["h"], history.stop("c1"))
    history.obey("c1")
    history.fenced("h", history.states["h"], history.start("c1", share))
    history.obey("c1", begins=False)
    history.begin(history.lives["c1"], [CITIES], at=offset)
    history.advance("c1", 3, 0, topic="cities-1")


def back(history: StoryHistory, offset: int, to: int) -> None:
    """c1, at offset 7, announces the commit of an offset, and commits that or another one."""
    life = history.lives["c1"]
    own = {"group": "h", "consumer": "c1", "incarnation": life.channel.incarnation}
    history.event("sought", "c1#1", **own, partitions={"cities-1": {"0": offset}})
    history.set_channel(life, replace(life.channel, running={**life.channel.running, CITIES: to}))
    history.advance("c1", 3, 0, topic="cities-1")


@holds(at="grown", sought=5)
@breaks("S5", "an overlap in cities-1-0 of group h: 7 to 5", at="grown", sought=4)
def test_consumer_without_sealing_may_rewind_to_the_position_of_a_seek(history: StoryHistory, sought: int) -> None:
    back(history, sought, 5)


@holds(at="grown", offset=7)
@breaks("S5", "a gap in cities-1-0 of group h: 9 to 12", at="grown", witness=TWICE, offset=9)
@breaks("S5", "an overlap in cities-1-0 of group h: 5 to 8", at="grown", witness=TWICE, offset=5)
def test_consumer_without_sealing_that_skips_offsets_breaks_it(history: StoryHistory, offset: int) -> None:
    again(history, offset)


@breaks("S5", "an overlap in cities-1-0 of group h: 7 to 5", at="plain")
def test_consumer_without_sealing_that_rewinds_breaks_it(history: StoryHistory) -> None:
    life = history.lives["c1"]
    history.set_channel(life, replace(life.channel, running={**life.channel.running, CITIES: 5}))


def commits(history: StoryHistory, to: int, *events: tuple[str, dict[str, Any]]) -> None:
    """c1, at offset 7, records these events and commits."""
    life = history.lives["c1"]
    own = {"group": "h", "consumer": "c1", "incarnation": life.channel.incarnation}
    for kind, fields in events:
        history.event(kind, "c1#1", **own, **fields)
    history.set_channel(life, replace(life.channel, running={**life.channel.running, CITIES: to}))


def records(kind: str, first: int, following: int, **more: int) -> tuple[str, dict[str, Any]]:
    item = {"topic": "cities-1", "topic_id": "C1", "partition": 0, "first": first, "next": following}
    return kind, {"ranges": [item | more]}


FETCHED, RETURNED = records("fetch", 7, 12), records("returned", 7, 10)
SOUGHT = "sought", {"partitions": {"cities-1": {"0": 12}}}
JUMPED = "jump", {"topic": "cities-1", "topic_id": "C1", "partition": 0, "before": 10, "after": 12}
EMPTY = records("fetch", 10, 12, records=0)


def test_commit_of_fetched_records_that_were_not_returned_breaks_it() -> None:
    held(spoilt("grown", lambda history: commits(history, 10, FETCHED, RETURNED)))

    finding = only(spoilt("grown", lambda history: commits(history, 11, FETCHED, RETURNED)), "S5")

    assert "11 of cities-1-0 was committed in group h" in finding.why
    assert "c1#1 was given the records below 10 only" in finding.why
    assert names(finding) == ["c1#1 returned", "c1#1 commit channel/c1"]


@pytest.mark.parametrize("passed", [SOUGHT, JUMPED, EMPTY], ids=["sought", "jump", "no record"])
def test_commit_may_skip_offsets_that_hold_no_record(passed: tuple[str, dict[str, Any]]) -> None:
    held(spoilt("grown", lambda history: commits(history, 12, RETURNED, passed)))

    only(spoilt("grown", lambda history: commits(history, 13, RETURNED, passed)), "S5")


def test_offsets_without_a_record_are_committed_unless_records_are_buffered() -> None:
    behind = records("fetch", 12, 14, records=0)

    only(spoilt("grown", lambda history: commits(history, 14, FETCHED, behind, RETURNED)), "S5")
    held(spoilt("grown", lambda history: commits(history, 14, FETCHED, behind, records("returned", 7, 14))))


@holds(at="grown")
def test_process_that_records_no_returned_offsets_is_not_judged_by_them(history: StoryHistory) -> None:
    commits(history, 12, FETCHED)


@breaks(
    "S5", "s1 of group g gave up flights-2 at 100", "`offsets` has none", at="joined", witness="b#1 commit channel/s1"
)
def test_a_hold_that_ends_without_its_offset_breaks_it(history: StoryHistory) -> None:
    life = history.lives["s1"]
    ended = replace(life.channel, running={}, topics={}, ended="gone")
    history.halt(life, frozenset(life.channel.running), "lost")
    history.close("s1#1")
    history.commit(history.coordinator, SetData(G.channel("s1"), ended.to_bytes()))


@breaks(
    "S5", "was set to 99", "100 was reached at 3.02 s", at="joined",
    witness="s1#1 commit channel/s1, s1#1 commit flights/2",
)  # fmt: skip
def test_incorrectly_written_offset_breaks_it(history: StoryHistory) -> None:
    data = OffsetRecord(99, "T1", 2).to_bytes()
    history.commit("s1#1", Create(G.offset("flights", 2), data))


@breaks("S5", "a gap in cities-1-0 of group h: 7 to 10", "nothing was before", at="starts of the recreated topic")
def test_partition_under_another_topic_id_starts_over(history: StoryHistory) -> None:
    """In the story it does; here it continues at the offset of the old topic."""
    history.obey("c1", begins=False)
    history.begin(history.lives["c1"], [CITIES], at=7)
    history.advance("c1", 3, 0, topic="cities-1")


@holds(at="joined", continues=False)
@breaks("S5", at="joined", alone=False, continues=True)
def test_manually_set_offset_is_the_new_position(history: StoryHistory, continues: bool) -> None:
    """From there on it is judged again."""
    life = history.lives["s1"]
    history.halt(life, frozenset(life.channel.running), "lost")
    history.register(life, "s1-x")
    history.hand(SetData(G.offset("flights", 2), OffsetRecord(500, "T1", 1).to_bytes()))
    shares = {"s0": {"flights": "0-1"}, "s1": {"flights": "2"}, "s2": {"flights": "3"}}
    history.turn("g", shares, history.start("s1", shares["s1"], generation=history.states["g"].generation + 1))
    history.obey("s1")
    history.seal("s1", 10, 2)
    if continues:
        set_position(history, "s1", P2, 700)
    history.sealed("s1", [part(2, 700, 710)] if continues else [part(2, 510, 520)])


@breaks(
    "S5", "query q has finished 0", at="queried",
    witness="s0#1 commit channel/s0, q#1 commit g/queries, a#1 commit g/segments", alone=False,
)  # fmt: skip
def test_a_segment_that_is_collected_before_a_query_has_finished_it_breaks_it(history: StoryHistory) -> None:
    history.collect("g", history.zxid)


def test_a_segment_that_is_collected_while_no_query_reads_the_group_breaks_it() -> None:
    def happen(history: StoryHistory) -> None:
        history.collect("g", history.zxid)

    findings = spoilt("sealed", happen)["S5"].findings

    assert names(findings[0]) == ["s0#1 commit channel/s0", "a#1 commit g/segments"]
    assert findings[0].why.endswith("and no query reads the group")


@breaks(
    "S5", "query q cannot be read", at="finished",
    witness="s0#1 commit channel/s0, hand commit queries/q, a#1 commit g/segments", alone=False,
)  # fmt: skip
def test_unreadable_query_retains_every_segment(history: StoryHistory) -> None:
    history.hand(SetData(G.query("q"), b"?"))
    history.collect("g", history.zxid)


@holds(at="finished", goes_on=True)
def test_expired_query_retains_no_segment(history: StoryHistory) -> None:
    history.query("p#1", "g", "p", "r9", 0)
    expired = Query("r9", 0, 0, 1).to_bytes()
    history.commit(history.coordinator, SetData(G.queries, b""), SetData(G.query("p"), expired))


@holds(at="sealed")
def test_manual_removal_of_segments_is_not_judged(history: StoryHistory) -> None:
    first = min(path for path in history.tree if path.startswith(G.segment_prefix))
    history.hand(Delete(first))
    history.query("p#1", "g", "p", "r9", 0)
    history.batch("p#1", "g", "p", "r9", 0, 0)


# ---- start offsets of a group


def begins_at(
    history: StoryHistory, offset: int, start: str = "end", there: frozenset[int] = frozenset({0, 1, 2})
) -> None:
    """s1 records the group's start offset of flights-2; the coordinator has recorded the partitions before that."""
    history.commit(history.coordinator, history.put(G.offsets_of("flights"), BegunRecord("T1", there).to_bytes()))
    history.commit("s1#1", history.put(G.offset("flights", 2), OffsetRecord(offset, "T1", 2, start).to_bytes()))


@holds(at="stable")
def test_existing_partition_may_begin_at_its_recorded_start(history: StoryHistory) -> None:
    begins_at(history, 40)
    history.sealed("s1", [part(2, 40, 60)])


@breaks("S5", "`offsets` of flights-2 in group g was set to 60", "40 was reached", at="stable")
def test_a_start_that_is_resolved_again_breaks_it(history: StoryHistory) -> None:
    begins_at(history, 40)
    begins_at(history, 60)


@breaks("S5", "a gap in flights-2 of group g: 60 to 70", at="stable")
def test_partition_with_another_first_offset_than_its_start_breaks_it(history: StoryHistory) -> None:
    begins_at(history, 40)
    history.sealed("s1", [part(2, 60, 70)])


@pytest.mark.parametrize(
    ("start", "there"), [("end", frozenset({0, 1})), ("beginning", frozenset({0, 1, 2}))], ids=["came later", "no end"]
)
@breaks("S5", "was set to 40", at="stable")
def test_start_after_records_that_were_not_deliberately_skipped_breaks_it(
    history: StoryHistory, start: str, there: frozenset[int]
) -> None:
    begins_at(history, 40, start, there)


@holds(at="joined", is_recorded=True)
@breaks("S5", "went from 120 to 200", at="joined", is_recorded=False)
def test_gap_in_the_log_may_be_skipped_when_it_is_recorded(history: StoryHistory, is_recorded: bool) -> None:
    history.sealed("s1", [part(2, 100, 120)])
    life = history.lives["s1"]
    where = {"topic": "flights", "topic_id": "T1", "partition": 2, "before": 120, "after": 200}
    if is_recorded:
        names = {"group": "g", "consumer": "s1", "incarnation": life.channel.incarnation}
        history.event("jump", "s1#1", **names, **where)
    history.set_channel(life, replace(life.channel, running={**life.channel.running, P2: 200}))
    history.sealed("s1", [part(2, 200, 210)])


def test_offset_of_what_a_liar_has_released_is_judged_again_after_an_honest_advance() -> None:
    """s9 lies that it runs flights-3, which s2 runs."""
    third = TopicPartition("flights", 3)

    def happen(history: StoryHistory, advances: bool) -> None:
        liar, honest = history.consumer("s9#1", "g", "liar"), history.lives["s2"]
        history.register(liar, "s9-a")
        history.set_channel(liar, replace(liar.channel, running={third: 7}, topics={"flights": "T1"}))
        ended = replace(liar.channel, running={}, topics={}, ended="removed by ann")
        history.fenced("g", history.states["g"], SetData(G.channel("s9"), ended.to_bytes()), Delete(G.id("s9")))
        if advances:
            history.seal("s2", 5, 3)
        history.set_channel(honest, honest.channel.without({third}))

    assert not spoilt("joined", lambda history: happen(history, advances=False))["S5"].findings
    (finding,) = spoilt("joined", lambda history: happen(history, advances=True))["S5"].findings
    assert "s2 of group g gave up flights-3 at 65" in finding.why
