"""S12: what a member says about itself moves nothing of another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from coordinator.zk.store import Delete, Operation, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import OffsetRecord
from coordinator.zk.znodes.segments import SealedRange
from tests.support.made_story import Enough, G, StoryHistory
from tests.support.spoilt import held, names, only, spoilt

NOT_ITS = TopicPartition("flights", 0)
FALSE = OffsetRecord(90, "T1", 1).to_bytes()


def ends_liar(
    moves: Callable[[StoryHistory], Sequence[Operation]] = lambda history: (), raised: int = 0
) -> Callable[[StoryHistory], None]:
    """s2 says that it runs flights-0, which s0 does, and is evicted; `moves` is what the eviction does besides."""

    def happen(history: StoryHistory) -> None:
        life = history.lives["s2"]
        history.event("start", "s2#1", kind="liar", group="g", consumer="s2")
        lie = replace(life.channel, running={**life.channel.running, NOT_ITS: 90})
        history.set_channel(life, lie)
        history.sealed("s0", [SealedRange("flights", "T1", 0, 110, 120)])
        history.pass_(9.5)
        own = replace(life.channel, running={part: at for part, at in lie.running.items() if part != NOT_ITS})
        life.channel = own
        state = history.states["g"]
        state = replace(state, marks=(history.mark(life),), generation=state.generation + raised)
        end = history.end_of(life, "evicted: it gave no sign of life")
        history.fenced("g", state, *end, Delete(G.id("s2")), *moves(history))
        raise Enough

    return happen


def offset_written(history: StoryHistory) -> Sequence[Operation]:
    return [history.put(G.offset(*NOT_ITS), FALSE)]


def test_an_eviction_that_leaves_the_others_as_they_are_holds_it() -> None:
    held(spoilt("joined", ends_liar()))


def test_an_offset_that_a_member_was_never_given_breaks_it() -> None:
    verdicts = spoilt("joined", ends_liar(offset_written))

    finding = verdicts["S12"].findings[0]
    assert "the offset of flights-0 of group g was written" in finding.why
    assert "as s2 (incarnation s2-a) had it in `running`" in finding.why
    assert names(finding)[-1] == "b#1 commit g/state"


def test_an_offset_that_was_never_given_may_count_once_the_state_is_lost() -> None:
    def happen(history: StoryHistory) -> None:
        history.hand(SetData(G.state, b"?"))
        ends_liar(offset_written)(history)

    held(spoilt("joined", happen))
    assert [verdict.invariant for verdict in spoilt("joined", ends_liar(offset_written)).broken] == ["S5", "S12"]


def test_the_owner_znode_of_a_living_member_that_is_removed_breaks_it() -> None:
    finding = only(spoilt("joined", ends_liar(lambda history: [Delete(G.owner(*NOT_ITS))])), "S12")

    assert "the owner znode of flights-0 of group g was removed" in finding.why and "and s0, whose it is" in finding.why
    assert names(finding) == ["s0#1 commit channel/s0", "b#1 commit g/state"]


def test_a_generation_that_does_not_follow_the_one_before_breaks_it() -> None:
    verdicts = spoilt("joined", ends_liar(raised=90))

    assert "generation 92 of group g follows 2" in verdicts["S12"].findings[0].why
