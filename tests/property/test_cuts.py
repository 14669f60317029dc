"""Batches that end at checkpoints, whatever a query has listed when: none has segments from both sides of a cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from consumer.spark.source.cuts import at_cut, batch_end
from consumer.spark.source.offset import SourceOffset
from consumer.spark.source.segment_index import Sealed
from coordinator.zk.znodes.cuts import Cut
from coordinator.zk.znodes.segments import Segment

SEAL, CUT, LOOK = "seal", "cut", "look"
EVENTS = st.lists(st.sampled_from([SEAL, CUT, LOOK]), min_size=1, max_size=25)


def sealed(czxid: int) -> Sealed:
    return Sealed(czxid, f"segment-{czxid:010d}", Segment("f", "d", 10, 1, (), "c", "i", 1))


@given(EVENTS, st.data())
def test_batch_never_spans_a_cut_and_checkpoint_offsets_hold_just_its_segments(
    events: list[str], data: st.DataObject
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
            known = data.draw(st.integers(0, len(cuts)), "known")
            least = sum(each.czxid < cuts[known - 1].czxid for each in segments) if known else 0
            least = max(least, sum(each.czxid <= offset.czxid for each in segments))
            listed = data.draw(st.integers(least, len(segments)), "listed")
            look(known, listed, data.draw(st.sampled_from([0, 15, 25]), "max_rows"))
    for _ in range(2 * len(events)):
        look(len(cuts), len(segments), 0)

    assert read == [each.czxid for each in segments], "everything is read, once and in order"
    with_news = {max(c.sequence for c in cuts if _below(segments, c) == _below(segments, cut)) for cut in cuts}
    skipped = with_news - set(reached)
    held = {_below(segments, cut) for cut in cuts if cut.sequence in reached}
    assert all(_below(segments, cuts[number - 1]) in held for number in skipped), "every cut is reached, or its like"


def _below(segments: list[Sealed], cut: Cut) -> int:
    return sum(each.czxid < cut.czxid for each in segments)
