"""What a query has delivered: however a history is divided into batches and runs, the same is delivered and refused.

And batches that end at checkpoints, for any listing of the query: none has segments from both sides of a cut.
"""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random
from typing import NamedTuple

from tests.property.effort import Draw, tried
from zk_group.consumer.streaming.source.planner import at_cut, batch_end
from zk_group.consumer.streaming.source.segment_index import Sealed, SourceOffset, delivered, joined
from zk_group.coordinator.zk.znodes.cuts import Cut
from zk_group.coordinator.zk.znodes.partitions import LOST, RESET, Discontinuity, TopicPartition
from zk_group.coordinator.zk.znodes.segments import SealedRange, Segment

IDS = ("one", "two")


class Story(NamedTuple):
    """A group's segments in order, and the same ranges one by one: each with what is wrong with it for a reader that
    registered at a zxid."""

    segments: list[Sealed]
    ends: list[int]
    runs: list[int]
    began: int


def story(draw: Draw) -> Story:
    """Segments of two partitions of a topic that is recreated; resets, losses and discontinuities without a cause."""
    positions: dict[tuple[str, int], int] = {}
    causes: dict[tuple[str, int], Discontinuity] = {}
    segments = []
    for number in range(draw.upto(30, 2)):
        topic_id = IDS[number > 20]
        ranges, carried = [], {}
        for partition in draw.some((0, 1, 2), least=1):
            key = topic_id, partition
            first = positions.get(key, 0)
            if draw.random() < 0.2:
                first = draw.upto(300)
                cause = draw.choice((None, Discontinuity(LOST, 7), Discontinuity(RESET, 10 * number - 5)))
                if cause is not None:
                    causes[key] = cause
            if key in causes:
                carried[TopicPartition("t", partition)] = causes.pop(key)
            positions[key] = first + draw.upto(50, 1)
            ranges.append(SealedRange("t", topic_id, partition, first, positions[key]))
        segment = Segment("g/c/f", "/s", 1, 1, tuple(ranges), "c", "i", 1, discontinuities=carried)
        segments.append(Sealed(10 * number, f"segment-{number:010d}", segment))
    ends = sorted({*draw.some(range(len(segments))), len(segments) - 1})
    return Story(segments, ends, [draw.randint(0, 10 * end) for end in ends], draw.upto(10 * ends[-1]))


def chain(story: Story) -> list[SourceOffset]:
    """The offsets of all batches, from the initial one on, each as it comes back from the checkpoint."""
    offsets = [SourceOffset(-1, 1, "q", began=story.began)]
    for end, registered in zip(story.ends, story.runs, strict=True):
        last = story.segments[end]
        batch = [sealed for sealed in story.segments if offsets[-1].czxid < sealed.czxid <= last.czxid]
        chosen = delivered(offsets[-1], SourceOffset(last.czxid, 1, "q", last.name), batch, registered)
        offsets.append(SourceOffset.of(json.loads(json.dumps(chosen.to_dict()))))
    return offsets


def planned(story: Story, start: SourceOffset, end: SourceOffset, registered: int) -> list[str]:
    """What a plan of a batch refuses, in a process that knows nothing but the two offsets and the segments."""
    batch = [sealed for sealed in story.segments if start.czxid < sealed.czxid <= end.czxid]
    return joined(start.ends, batch, end.began, registered)[0]


@tried(300, story)
def test_any_division_into_batches_has_the_same_ends_and_refuses_the_same_places(story: Story) -> None:
    offsets = chain(story)
    whole, ends = joined({}, story.segments, story.began, 77)
    in_batches = [planned(story, *pair, 77) for pair in pairwise(offsets)]

    assert [problem for problems in in_batches for problem in problems] == whole
    assert offsets[-1].ends == ends


@tried(300, story)
def test_every_plan_of_a_batch_refuses_the_same_and_a_later_run_no_more(story: Story) -> None:
    offsets = chain(story)
    for start, end in pairwise(offsets):
        first = planned(story, start, end, end.registered)
        later = planned(story, start, end, end.registered + 1000)
        assert planned(story, start, end, end.registered) == first
        assert set(later) <= set(first)


@tried(300, story)
def test_a_range_continues_its_partition_or_follows_an_intended_reset(story: Story) -> None:
    offsets = chain(story)
    sink: dict[tuple[str, int], int] = {}
    for start, end in pairwise(offsets):
        is_refused = bool(planned(story, start, end, end.registered))
        wrong = 0
        for sealed in story.segments:
            for item in sealed.segment.ranges if start.czxid < sealed.czxid <= end.czxid else ():
                cause = sealed.segment.discontinuities.get(TopicPartition("t", item.partition))
                before = sink.get((item.topic_id, item.partition))
                is_meant = cause is not None and cause.cause == RESET and cause.number < end.registered
                is_late = cause is not None and sealed.czxid > story.began
                wrong += not is_meant and (is_late if before is None else item.first != before)
                sink[item.topic_id, item.partition] = item.next
        assert is_refused == (wrong > 0)


# ---- batches that end at checkpoints

SEAL, CUT, LOOK = "seal", "cut", "look"


def sealed(czxid: int) -> Sealed:
    return Sealed(czxid, f"segment-{czxid:010d}", Segment("f", "d", 10, 1, (), "c", "i", 1))


@tried(500, lambda draw: draw.many(lambda draw: draw.choice([SEAL, CUT, LOOK]), 30, 1), Draw.another)
def test_no_batch_spans_a_cut_whose_offsets_hold_just_its_segments(events: list[str], random: Random) -> None:
    segments: list[Sealed] = []
    cuts: list[Cut] = []
    offset = SourceOffset(0, 1, "q")
    read: list[int] = []
    reached: list[int] = []

    def look(known: int, listed: int, max_rows: int) -> None:
        """A query looks: cuts up to `known` are known to have all their segments among the first `listed`."""
        nonlocal offset
        found = [each for each in segments[:listed] if each.czxid > offset.czxid]
        end = batch_end(offset, found, cuts, max_rows)
        end = at_cut(end, offset, found, cuts[:known], cuts)
        batch = [each.czxid for each in found if each.czxid <= end.czxid]
        for cut in cuts:
            assert not (batch and batch[0] < cut.czxid < batch[-1])
        read.extend(batch)
        if end.checkpoint and end.checkpoint != offset.checkpoint:
            czxid = next(cut.czxid for cut in cuts if cut.sequence == end.checkpoint)
            assert read == [each.czxid for each in segments if each.czxid < czxid]
            reached.append(end.checkpoint)
        offset = end

    for czxid, event in enumerate(events, start=1):
        if event == SEAL:
            segments.append(sealed(czxid))
        elif event == CUT:
            cuts.append(Cut(len(cuts) + 1, czxid))
        else:
            known = random.randint(0, len(cuts))
            least = sum(each.czxid < cuts[known - 1].czxid for each in segments) if known else 0
            least = max(least, sum(each.czxid <= offset.czxid for each in segments))
            listed = random.randint(least, len(segments))
            look(known, listed, random.choice([0, 15, 25]))
    for _ in range(2 * len(events)):
        look(len(cuts), len(segments), 0)

    assert read == [each.czxid for each in segments], "everything is read, once and in order"
    with_news = {max(c.sequence for c in cuts if _below(segments, c) == _below(segments, cut)) for cut in cuts}
    skipped = with_news - set(reached)
    held = {_below(segments, cut) for cut in cuts if cut.sequence in reached}
    assert all(_below(segments, cuts[number - 1]) in held for number in skipped), "every cut is reached, or its like"


def _below(segments: list[Sealed], cut: Cut) -> int:
    return sum(each.czxid < cut.czxid for each in segments)
