"""S1: a start names partitions that are free."""

from __future__ import annotations

import pytest

from coordinator.zk.store import Delete
from tests.support.made_story import Enough, G, StoryHistory
from tests.support.spoilt import held, only, spoilt


def test_start_with_a_partition_that_another_member_runs_breaks_it() -> None:
    def happen(history: StoryHistory) -> None:
        history.commit(history.coordinator, history.start("s0", {"flights": "0-2"}))
        raise Enough

    finding = only(spoilt("joined", happen), "S1")

    assert finding.why == "flights-2 of group g was sent to s0 at 15.09 s, and was not free: s1 runs it"


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_start_with_a_partition_of_a_start_to_another_member_breaks_it(is_withdrawn: bool) -> None:
    def happen(history: StoryHistory) -> None:
        history.commit(history.coordinator, history.start("s0", {"flights": "0-1,9"}))
        first = history.command_of("s0")
        withdrawn = [Delete(G.command("s0", first))] if is_withdrawn else []
        history.commit(history.coordinator, *withdrawn, history.start("s1", {"flights": "2,9"}))
        raise Enough

    finding = only(spoilt("joined", happen), "S1")

    assert "flights-9 of group g was sent to s1" in finding.why
    assert "was not free: command-0000000001 named it to s0" in finding.why


@pytest.mark.parametrize(("after_s", "is_free"), [(3.8, False), (4.1, True)])
def test_start_with_a_partition_of_an_evicted_member_waits_for_its_lease(after_s: float, is_free: bool) -> None:
    def happen(history: StoryHistory) -> None:
        ended = history.end_of(history.lives["s1"], "evicted: it acknowledged no command")
        history.commit(history.coordinator, *ended)
        history.pass_(after_s)
        history.commit(history.coordinator, history.start("s0", {"flights": "0-2"}))
        raise Enough

    verdicts = spoilt("joined", happen)

    if is_free:
        held(verdicts)
    else:
        assert "was not free: s1, evicted, may fetch it until" in only(verdicts, "S1").why
