"""Batches that end at checkpoints, for any listing of the query: no batch has segments from both sides of a cut."""

from __future__ import annotations

from random import Random

from consumer.spark.source.planner import at_cut, batch_end
from consumer.spark.source.segment_index import Sealed, SourceOffset
from coordinator.zk.znodes.cuts import Cut
from coordinator.zk.znodes.segments import Segment
from tests.property.effort import Draw, tried

SEAL, CUT, LOOK = "seal", "cut", "look"


def sealed(czxid: int) -> Sealed:
    return Sealed(czxid, f"segment-{czxid:010d}", Segment("f", "d", 10, 1, (), "c", "i", 1))


@tried(500, lambda draw: draw.many(lambda draw: draw.choice([SEAL, CUT, LOOK]), 30, 1), Draw.another)
def test_batch_never_spans_a_cut_and_checkpoint_offsets_hold_just_its_segments(
    events: list[str], random: Random
) -> None:
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
