"""S4: nothing that a coordinator of epoch e writes appears after the bump to e + 1."""

from __future__ import annotations

from dataclasses import replace

from coordinator.zk.store import Create, Delete, Operation, SetData
from coordinator.zk.znodes.paths import COORDINATOR, COORDINATOR_EPOCH, PAUSED
from coordinator.zk.znodes.records import EpochRecord, Pause, PausedRecord
from coordinator.zk.znodes.segments import Query, SegmentsRecord
from drills.checker import Verdicts
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, changed, held, holds, names, only, spoilt

BUMP = "commit consumers/coordinator"


def depose(history: StoryHistory) -> str:
    """The other node is elected though this one lives; returns the name of the deposed one."""
    history.session("a#1")
    deposed = history.coordinator
    history.tree.pop(COORDINATOR, None)
    history.elect("a#1")
    return deposed


def late(history: StoryHistory, *operations: Operation) -> None:
    """The deposed coordinator writes."""
    deposed = depose(history)
    history.commit(deposed, *operations)


def test_any_write_of_a_deposed_coordinator_breaks_it() -> None:
    def writes(history: StoryHistory) -> dict[str, list[Operation]]:
        life = history.lives["s0"]
        ended = replace(life.channel, ended="evicted")
        return {
            "state": [SetData(G.state, history.states["g"].to_bytes())],
            "a command": [history.start("s0", {"flights": "0-1"})],
            "an end": [SetData(G.channel("s0"), ended.to_bytes())],
            "an eviction": [Delete(G.id("s0"))],
            "history": [Create(G.rebalance(9), b"{}")],
            "collected": [SetData(G.segments, SegmentsRecord(1).to_bytes())],
            "expiry": [SetData(G.query("q"), Query("r2", 50, 0, 1).to_bytes())],
            "an answer": [Delete(G.request)],
        }

    for kind in ("state", "a command", "an end", "an eviction", "history", "collected", "expiry", "an answer"):

        def happen(history: StoryHistory, kind: str = kind) -> None:
            late(history, *writes(history)[kind])

        verdict = spoilt("joined", happen)["S4"]

        assert len(verdict.findings) == 1, kind
        finding = verdict.findings[0]
        assert names(finding)[:2] == [f"b#1 {BUMP}", f"a#1 {BUMP}"], kind
        assert names(finding)[2].startswith("b#1 commit") and len(finding.witness) == 3, kind
        assert "b#1 wrote as a coordinator" in finding.why and "a#1 raised the epoch to 3" in finding.why


def test_writes_of_a_deposed_coordinator_break_no_other_invariant() -> None:
    finding = only(spoilt("joined", lambda h: late(h, SetData(G.state, h.states["g"].to_bytes()))), "S4")

    assert names(finding) == [f"b#1 {BUMP}", f"a#1 {BUMP}", "b#1 commit g/state"]


@holds(at="joined")
def test_reelected_coordinator_may_write(history: StoryHistory) -> None:
    deposed = depose(history)
    history.session(deposed)
    history.elect(deposed)
    history.stable("g")


@breaks(
    "S4", at="joined", witness="b#1 commit consumers/coordinator, b#1 commit consumers/coordinator, b#1 commit g/state"
)
def test_old_session_of_a_reelected_coordinator_may_not_write(history: StoryHistory) -> None:
    deposed = depose(history)
    old = history.sessions[deposed]
    history.session(deposed)
    history.elect(deposed)
    history.sessions[deposed] = old
    history.stable("g")


@breaks("S4", at="joined", witness="b#1 commit consumers/coordinator, s0#1 commit g/state")
def test_state_written_by_a_never_elected_process_breaks_it(history: StoryHistory) -> None:
    history.commit("s0#1", SetData(G.state, history.states["g"].to_bytes()))


def test_state_written_before_the_first_election_breaks_it() -> None:
    def unelect(events: list[dict[str, object]]) -> None:
        bump = next(e for e in events if e["event"] == "commit")
        bump["ops"] = []

    verdict = changed(unelect)["S4"]

    assert verdict.findings[0].why.startswith("a#1 wrote what only a coordinator writes at 1.05 s")
    assert names(verdict.findings[0]) == ["a#1 commit g/state"]


@holds(at="joined")
def test_manual_write_is_allowed_and_changes_no_known_epoch(history: StoryHistory) -> None:
    history.hand(SetData(G.state, history.states["g"].to_bytes()))
    history.hand(SetData(COORDINATOR_EPOCH, EpochRecord(40).to_bytes()))
    history.stable("g")


# ---- epochs


def elects(history: StoryHistory, epoch: int) -> None:
    """The other node is elected with this epoch."""
    history.epoch = epoch - 1
    depose(history)


def test_an_election_with_an_epoch_that_is_not_above_the_last_breaks_it() -> None:
    finding = only(spoilt("joined", lambda history: elects(history, 2)), "S4")

    assert "a#1 was elected at" in finding.why and "with epoch 2, after epoch 2" in finding.why
    assert names(finding) == [f"b#1 {BUMP}", f"a#1 {BUMP}"]
    held(spoilt("joined", lambda history: elects(history, 3)))


def test_after_a_manual_edit_an_epoch_is_above_those_of_all_states() -> None:
    def happen(history: StoryHistory, epoch: int) -> None:
        history.fenced("g", replace(history.states["g"], epoch=2))
        history.hand(Delete(COORDINATOR_EPOCH))
        elects(history, epoch)

    def unwritten(history: StoryHistory) -> None:
        """The coordinator of epoch 2 has written nothing yet."""
        history.hand(Delete(COORDINATOR_EPOCH))
        elects(history, 2)

    finding = only(spoilt("joined", lambda history: happen(history, 2)), "S4")

    assert "with epoch 2, after epoch 2" in finding.why
    assert names(finding) == ["b#1 commit g/state", f"a#1 {BUMP}"]
    held(spoilt("joined", lambda history: happen(history, 3)))
    held(spoilt("failed over", unwritten))


def paused_turn(before_the_election: bool, pause: bytes) -> Verdicts:
    def happen(history: StoryHistory) -> None:
        written = Create(PAUSED, pause)
        if before_the_election:
            history.hand(written)
        history.close(history.coordinator)
        history.session("a#1")
        history.elect("a#1")
        if not before_the_election:
            history.hand(written)
        history.states["g"] = replace(history.states["g"], epoch=history.epoch)
        history.fenced("g", history.states["g"])

    return spoilt("joined", happen)


def test_a_turn_of_a_group_that_was_paused_before_the_election_breaks_it() -> None:
    finding = only(paused_turn(True, PausedRecord(groups={"g": Pause("ann", 0)}).to_bytes()), "S4")

    assert "a#1 took a turn of group g" in finding.why
    assert names(finding) == ["hand commit consumers/paused", f"a#1 {BUMP}", "a#1 commit g/state"]


def test_a_turn_that_began_before_the_pause_is_finished() -> None:
    held(paused_turn(False, PausedRecord(everything=Pause("ann", 0)).to_bytes()))


def test_another_groups_pause_or_one_that_cannot_be_read_keeps_no_turn_back() -> None:
    held(paused_turn(True, PausedRecord(groups={"h": Pause("ann", 0)}).to_bytes()))
    held(paused_turn(True, b"{"))
