"""S1 by the protocol: what is handed on is free, marks stay for their lease, and claims have their owner znodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, Operation, SetData
from coordinator.zk.znodes.group_state import GroupState
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import OwnerRecord
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, held, holds, only, spoilt

P1, P2, P3 = (TopicPartition("flights", number) for number in (1, 2, 3))
LEASE_S = 4.0
ENDED = "s2#1 commit channel/s2, b#1 commit g/state"


def sends(history: StoryHistory, consumer: str, ranges: str, *more: Operation, **fields: object) -> None:
    """The coordinator sends a start."""
    state = replace(history.states["g"], **fields)  # type: ignore[arg-type]
    history.fenced("g", state, *more, history.start(consumer, {"flights": ranges}))


# ---- starts


@breaks(
    "S1", "gives flights-3 of group g to s2", "s1 runs it", at="stop sent",
    witness="s1#1 commit channel/s1, b#1 commit g/state",
)  # fmt: skip
def test_a_start_with_a_partition_that_another_channel_runs_breaks_it(history: StoryHistory) -> None:
    sends(history, "s2", "3")


@breaks("S1", "command-0000000000 of s2, a start with it, was not acknowledged", at="start sent", in_one_multi=True)
@holds(at="start sent", in_one_multi=False)
def test_a_start_with_a_partition_of_an_earlier_start_breaks_it(history: StoryHistory, in_one_multi: bool) -> None:
    command = Delete(history.command_of("s2"))
    if not in_one_multi:
        history.fenced("g", history.states["g"], command)
    sends(history, "s0", "0-1,3", *([command] if in_one_multi else []))


@breaks(
    "S1", "gives flights-2 of group g to s3", "the lease of s1 (incarnation s1-a) still covers it", at="evicted",
    witness="b#1 commit g/state, b#1 commit g/state",
)  # fmt: skip
def test_a_start_with_a_partition_under_a_mark_breaks_it(history: StoryHistory) -> None:
    sends(history, "s3", "1-2")


def test_a_start_with_a_partition_that_has_an_owner_znode_breaks_it() -> None:
    data = OwnerRecord("s1-0", "s1", "s1-a", 1).to_bytes()

    def happen(history: StoryHistory, who: str) -> None:
        history.commit(who, Create(G.owner(*P3), data, ephemeral=True))
        sends(history, "s2", "3")

    finding = only(spoilt("stop obeyed", lambda history: happen(history, "s1#1")), "S1")

    assert "its owner znode is there" in finding.why
    held(spoilt("stop obeyed", lambda history: happen(history, "hand")))


@holds(at="joined")
def test_a_start_may_give_again_what_its_consumer_runs(history: StoryHistory) -> None:
    sends(history, "s0", "0-1")


@holds(at="stop sent")
def test_a_start_after_a_manual_edit_of_the_other_channel_is_not_judged(history: StoryHistory) -> None:
    history.hand(SetData(G.channel("s1"), history.lives["s1"].channel.to_bytes()))
    sends(history, "s2", "3", Delete(G.owner(*P3)))


# ---- marks


def drops_the_mark(history: StoryHistory, after_s: float, elects: bool = False, by_hand: bool = False) -> None:
    """The coordinator drops the mark of the evicted so long after it was written."""
    written = history.now - 0.01  # the acknowledged start came after it
    if elects:
        history.pass_(1.0)
        history.close(history.coordinator)
        history.session("a#1")
        history.elect("a#1")
    if by_hand:
        history.hand(SetData(G.state, history.states["g"].to_bytes()))
    history.to(round(written + after_s, 3) - 0.01)
    history.fenced("g", replace(history.states["g"], marks=(), epoch=history.epoch))


@breaks(
    "S1", "the mark of s1 (incarnation s1-a) in group g was dropped", at="evicted",
    witness="b#1 commit consumers/coordinator, b#1 commit g/state, b#1 commit g/state", after_s=0.9 * LEASE_S,
)  # fmt: skip
@holds(at="evicted", after_s=LEASE_S)
@holds(at="evicted", after_s=0.99 * LEASE_S)
def test_a_mark_that_is_dropped_before_its_lease_is_over_breaks_it(history: StoryHistory, after_s: float) -> None:
    drops_the_mark(history, after_s)


@breaks("S1", at="evicted", after_s=LEASE_S)
@holds(at="evicted", after_s=LEASE_S + 1.1)
def test_the_lease_of_a_mark_counts_again_after_an_election(history: StoryHistory, after_s: float) -> None:
    drops_the_mark(history, after_s, elects=True)


@holds(at="evicted")
def test_marks_of_a_state_that_a_hand_has_written_are_not_judged(history: StoryHistory) -> None:
    drops_the_mark(history, 1.0, by_hand=True)


@breaks("S1", "no mark covers its partitions for its lease of 4000 ms", at="joined", witness=ENDED, lease_ms=None)
@breaks("S1", "no mark covers its partitions for its lease of 4000 ms", at="joined", witness=ENDED, lease_ms=3900)
@holds(at="joined", lease_ms=4000)
def test_a_live_incarnation_that_is_ended_without_a_mark_for_its_lease_breaks_it(
    history: StoryHistory, lease_ms: int | None
) -> None:
    life = history.lives["s2"]
    mark = replace(history.mark(life), lease_ms=lease_ms or 0)
    state = replace(history.states["g"], marks=(mark,) if lease_ms is not None else ())
    history.fenced("g", state, *history.end_of(life, "refused: no common strategy"), Delete(G.id("s2")))


@holds(at="joined", after_s=LEASE_S)
@breaks("S1", at="joined", after_s=LEASE_S - 0.2)
def test_the_mark_of_a_lost_state_counts_from_its_first_manual_write(history: StoryHistory, after_s: float) -> None:
    state = history.states["g"]
    history.hand(SetData(G.state, b"{"))
    lost_at = history.now
    history.pass_(1.0)
    history.hand(SetData(G.state, b""))
    history.pass_(1.0)
    mark = replace(history.mark(history.lives["s2"]), consumer="unknown", incarnation="state-1")
    history.fenced("g", replace(state, marks=(mark,)))
    history.to(lost_at + after_s)
    history.fenced("g", state)


# ---- claims


def test_a_partition_that_comes_to_run_without_its_owner_znode_breaks_it() -> None:
    def happen(history: StoryHistory, *operations: Operation) -> None:
        life = history.lives["s2"]
        history.set_channel(life, replace(life.channel, running={P3: None}, topics={"flights": "T1"}), *operations)

    owner = Create(G.owner(*P3), OwnerRecord("s2-0", "s2", "s2-a", 2).to_bytes(), ephemeral=True)

    finding = only(spoilt("stop obeyed", happen), "S1")
    assert "flights-3 of group g came into `running` of s2" in finding.why
    held(spoilt("stop obeyed", lambda history: happen(history, owner)))


@breaks("S1", "flights-3 of group g left `running` of s2 (incarnation s2-a)", at="joined", by_hand=False)
@holds(at="joined", by_hand=True)
def test_an_owner_znode_that_stays_after_a_stop_breaks_it_unless_made_by_hand(
    history: StoryHistory, by_hand: bool
) -> None:
    life = history.lives["s2"]
    if by_hand:
        history.hand(Delete(G.owner(*P3)))
        history.hand(Create(G.owner(*P3), OwnerRecord("s2-0", "s2", "s2-a", 2).to_bytes()))
    history.halt(life, frozenset(life.channel.running), "revoked")
    offset = history.put(G.offset(*P3), history.offset(life, P3, life.channel.running[P3] or 0))
    history.set_channel(life, life.channel.without([P3]), offset)


@pytest.mark.parametrize(("early_s", "is_broken"), [(0.0, False), (0.004, False), (0.02, True)])
def test_a_begin_before_its_claim_breaks_it(early_s: float, is_broken: bool) -> None:
    def happen(history: StoryHistory) -> None:
        history.pass_(0.5)
        begun = {"flights": {"3": 20}}
        fields = {"group": "g", "consumer": "s2", "incarnation": "s2-a", "generation": 2, "topics": {"flights": "T1"}}
        at = round(history.now, 3)
        history.event("begin", "s2#1", partitions=begun, **fields)
        history.now = at + early_s - 0.01  # a commit takes 10 ms
        history.obey("s2", begins=False)
        history.pass_(1.0)
        history.event("fetch", "s2#1", group="g", consumer="s2", incarnation="s2-a", ranges=[])

    verdicts = spoilt("start sent", happen)

    assert bool(verdicts.broken) == is_broken, verdicts.text()
    if is_broken:
        assert "s2#1 began to fetch flights-3 of group g" in only(verdicts, "S1").why


@holds(at="taken over")
def test_a_begin_after_the_name_was_taken_over_is_not_judged(history: StoryHistory) -> None:
    history.event(
        "begin", "s2#1", group="g", consumer="s2", incarnation="s2-a", generation=2,
        partitions={"flights": {"1": 0}}, topics={"flights": "T1"},
    )  # fmt: skip
    history.pass_(1.0)


@holds(at="evicted")
def test_a_first_state_has_no_marks_to_drop(history: StoryHistory) -> None:
    history.hand(Delete(G.state))
    history.fenced("g", GroupState(epoch=history.epoch))
