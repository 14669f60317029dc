"""L3: a stuck group or consumer delays no partitions of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.zk.store import Create
from coordinator.zk.znodes.group_state import PREPARING, Mark
from coordinator.zk.znodes.paths import PAUSED
from coordinator.zk.znodes.records import Pause, PausedRecord
from tests.support.made_histories import Happening, parted
from tests.support.made_story import StoryHistory
from tests.support.spoilt import breaks, holds, names, spoilt

SHARES = {"s0": {"flights": "0"}, "s1": {}, "s2": {"flights": "3"}, "s3": {"flights": "1-2"}}
"""What group g shall run while s1 hangs and still has flights-2; flights-1 is free."""


# A change is begun while s1 hangs, and not finished; 8 s are allowed, and a second for the check.


def grow_h(history: StoryHistory) -> None:
    """Group h has one partition more in its target, and gets no command."""
    history.topic("cities-1", "C1", 4)
    history.fenced("h", history.rebalance("h", {"c1": {"cities-1": "0-3"}}))


def free_one(history: StoryHistory, **more: Any) -> None:
    """Group g has flights-1, which is free, in its target, and no start is sent."""
    history.fenced("g", replace(history.rebalance("g", SHARES), state=PREPARING, **more))


@breaks(
    "L3", "group h has waited from 21 s", "s1#1 of another group was stuck", at="stuck",
    witness="server fault, b#1 commit h/state", lasts=10.0,
)  # fmt: skip
@holds(at="stuck", lasts=7.5)
def test_other_group_delayed_by_a_stuck_consumer_breaks_it(history: StoryHistory) -> None:
    grow_h(history)


@breaks(
    "L3", "flights-1 of group g was kept from s3 from", at="stuck", witness="server fault, b#1 commit g/state",
    lasts=10.0,
)  # fmt: skip
@holds(at="stuck", lasts=7.5)
def test_delayed_free_partition_of_the_same_group_breaks_it(history: StoryHistory) -> None:
    free_one(history)


@holds(at="stuck", lasts=10.0)
def test_partition_of_the_stuck_consumer_may_wait(history: StoryHistory) -> None:
    """flights-2 too is assigned to s3, which runs flights-1 by then."""
    free_one(history)
    history.fenced("g", history.states["g"], history.start("s3", {"flights": "1"}))
    history.obey("s3")


@holds(at="stuck", lasts=10.0)
def test_marked_partition_may_wait(history: StoryHistory) -> None:
    free_one(history, marks=(Mark("s8", "s8-a", parted({"flights": "1"}), 4000, "evicted"),))


@holds(at="stuck", lasts=10.0)
def test_partition_in_a_command_to_another_consumer_may_wait(history: StoryHistory) -> None:
    free_one(history)
    history.fenced("g", history.states["g"], history.start("s0", {"flights": "0-1"}))


@pytest.mark.parametrize("begin", [grow_h, free_one])
@holds(at="stuck", lasts=10.0)
def test_nothing_is_judged_during_another_fault(history: StoryHistory, begin: Happening) -> None:
    begin(history)
    history.event("fault", "server", kind="drop", servers=["1"])


@pytest.mark.parametrize("begin", [grow_h, free_one])
@holds("L3", at="stuck", lasts=10.0)
def test_invariant_does_not_apply_without_a_stuck_consumer(history: StoryHistory, begin: Happening) -> None:
    history.events[next(n for n, e in enumerate(history.events) if e.get("kind") == "hang")]["until"] = 20.1
    begin(history)


@holds(at="stuck", lasts=10)
def test_group_of_the_stuck_consumer_may_wait_for_it(history: StoryHistory) -> None:
    """Nothing happens."""


@holds(at="stuck", lasts=10.0)
def test_stuck_node_does_not_count_as_a_stuck_consumer(history: StoryHistory) -> None:
    grow_h(history)
    history.event("fault", "server", kind="hang", process="a#1", until=45.0)


@holds(at="stuck", lasts=7)
def test_every_change_restarts_the_wait(history: StoryHistory) -> None:
    grow_h(history)
    history.pass_(5)
    history.topic("cities-1", "C1", 5)
    history.fenced("h", history.rebalance("h", {"c1": {"cities-1": "0-4"}}))


@holds(at="stuck", lasts=7)
def test_group_that_becomes_stable_in_between_restarts_the_wait(history: StoryHistory) -> None:
    grow_h(history)
    history.fenced("h", history.states["h"], history.start("c1", {"cities-1": "0-3"}))
    history.pass_(5)
    history.obey("c1")
    history.stable("h")
    history.fenced("h", replace(history.states["h"], state=PREPARING))


@holds(at="stuck", lasts=10.0)
def test_a_paused_group_may_wait(history: StoryHistory) -> None:
    grow_h(history)
    history.hand(Create(PAUSED, PausedRecord(everything=Pause("ann", 0)).to_bytes()))


def test_consumer_still_stuck_at_calm_may_delay_no_other_group() -> None:
    def happen(history: StoryHistory) -> None:
        history.events[-1]["stuck"] = ["s1#1"]
        history.to(80)
        history.fenced("h", replace(history.states["h"], state=PREPARING))
        history.pass_(12)
        history.stable("h")

    verdicts = spoilt("calm", happen, goes_on=True)

    assert [verdict.invariant for verdict in verdicts.broken] == ["L1", "L3"]
    assert names(verdicts["L3"].findings[0]) == ["server calm", "b#1 commit h/state"]


def with_turns(history: StoryHistory) -> None:
    """Group g has a free partition, and a turn takes a second at most, when nothing hinders a coordinator."""
    history.events[0]["bounds"]["turn"] = 1.0
    history.events[:] = [event for event in history.events if event.get("kind") != "hang"]
    free_one(history)


@breaks("L3", "flights-1 of group g was kept from s3 from", at="stuck", lasts=4.0)
def test_with_a_bound_for_turns_a_free_partition_waits_for_no_longer_and_for_nobody(history: StoryHistory) -> None:
    with_turns(history)


@holds(at="stuck", lasts=1.5)
def test_within_the_bound_for_turns_a_free_partition_may_wait(history: StoryHistory) -> None:
    with_turns(history)


@holds(at="stuck", lasts=4.0, fault={"kind": "drop", "process": "b#1"})
@holds(at="stuck", lasts=4.0, fault={"kind": "cut-server"})
@breaks("L3", at="stuck", lasts=4.0, fault={"kind": "drop", "process": "s0#1"})
@breaks("L3", at="stuck", lasts=4.0, fault={"kind": "join", "group": "g"})
def test_what_hits_a_node_or_a_server_excuses_a_turn_and_what_hits_members_does_not(
    history: StoryHistory, fault: dict[str, Any]
) -> None:
    with_turns(history)
    history.event("fault", "server", **fault)


@holds(at="stuck", lasts=4.0)
def test_a_member_with_a_command_to_obey_may_wait_for_more(history: StoryHistory) -> None:
    with_turns(history)
    history.fenced("g", history.states["g"], history.stop("s3", {"flights": "2"}))
