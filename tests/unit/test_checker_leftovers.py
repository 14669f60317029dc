"""S7: no znodes of ended incarnations remain after the collection period."""

from __future__ import annotations

import json
from collections.abc import Callable

from coordinator.zk.store import Create
from coordinator.zk.znodes.paths import PAUSED
from coordinator.zk.znodes.records import OwnerRecord, Pause, PausedRecord
from drills.checker import check
from tests.support.made_histories import Made, edited
from tests.support.made_story import G, H, StoryHistory, story
from tests.support.spoilt import breaks, changed, held, holds


def without(*paths: str, verb: str = "delete", skip: int = 0) -> Callable[[list[Made]], None]:
    """Takes the operations on some paths out of a history."""

    def drop(events: list[Made]) -> None:
        found = [(event, op) for event in events if event["event"] == "commit" for op in event["ops"]]
        for event, op in [(event, op) for event, op in found if op["op"] == verb and op["path"] in paths][skip:]:
            event["ops"].remove(op)

    return drop


@breaks(
    "S7", "owner flights-9 of group g is dead since 70.02 s, and there at 110 s", at="before calm",
    witness="server closed, server end", goes_on=True,
)  # fmt: skip
def test_an_ephemeral_that_outlives_its_session_breaks_it(history: StoryHistory) -> None:
    history.session("x#1")
    history.commit("x#1", Create(G.owner("flights", 9), b"{}", ephemeral=True))
    del history.tree[G.owner("flights", 9)]
    history.close("x#1")


@breaks("S7", "the registration of x in group g", at="before calm", goes_on=True)
def test_a_registration_that_outlives_its_session_breaks_it(history: StoryHistory) -> None:
    history.session("x#1")
    history.commit("x#1", Create(G.id("x"), b"{}", ephemeral=True))
    del history.tree[G.id("x")]
    history.close("x#1")


@breaks("S7", at="before calm", witness="s0#1 commit flights/9, server end", goes_on=True)
def test_owner_of_an_ended_incarnation_breaks_it(history: StoryHistory) -> None:
    owner = OwnerRecord("s1-0", "s1", "s1-a", 3).to_bytes()
    history.commit("s0#1", Create(G.owner("flights", 9), owner, ephemeral=True))


@breaks(
    "S7", "command-0000000002 for s1 of group g is dead since 45.01 s", alone=False,
    witness="s1#1 commit channel/s1, server end",
)  # fmt: skip
def test_command_for_an_ended_incarnation_breaks_it(events: list[Made]) -> None:
    """The command withdrawn at the eviction of its consumer remains."""
    without(f"{G.channel('s1')}/command-0000000002")(events)


def keep_running(events: list[Made]) -> None:
    """A consumer that leaves keeps a partition in its channel, and so the channel is not collected."""
    without(H.channel("c2"))(events)
    left = next(e for e in events if e["event"] == "commit" and '"ended":"left"' in e["ops"][0].get("data", ""))
    left["ops"][0]["data"] = edited(left["ops"][0]["data"], running={"old": {"0": 5}})


@breaks("S7", "old-0 in `running` of c2, ended, in group h", witness="c2#1 commit channel/c2, server end")
def test_ended_channel_with_a_running_partition_breaks_it(events: list[Made]) -> None:
    keep_running(events)


@breaks(
    "S7", "the channel of c2 in group h is dead since 65.01 s", witness="c2#1 commit channel/c2, server end",
)  # fmt: skip
def test_channel_of_a_consumer_removed_long_ago_breaks_it(events: list[Made]) -> None:
    without(H.channel("c2"))(events)


@breaks(
    "S7", "segment-0000000003 of group g, finished by every query, is dead since 3.06 s",
    witness="q#1 commit queries/q, server end",
)  # fmt: skip
def test_segment_finished_by_every_query_breaks_it(events: list[Made]) -> None:
    without(G.segment("segment-0000000003"))(events)


@holds()
def test_finished_segment_may_remain_for_its_retention(events: list[Made]) -> None:
    without(G.segment("segment-0000000003"))(events)
    events[0]["bounds"] = {**events[0]["bounds"], "segment_retention": 3600.0}


def test_segment_unfinished_by_one_query_may_remain() -> None:
    def happen(history: StoryHistory) -> None:
        history.query("p#1", "g", "p", "r1", 0)

    events = story("queried", happen)
    without(G.segment("segment-0000000003"), G.segment("segment-0000000002"))(events)
    without(G.segment("segment-0000000001"), G.segment("segment-0000000000"))(events)
    held(check(events))


def test_segment_unfinished_by_a_query_whose_session_ended_may_remain_for_a_while() -> None:
    def happen(history: StoryHistory) -> None:
        history.session("u#1")
        history.query("u#1", "g", "u", "r1", 0, ephemeral=True)
        history.close("u#1")

    events = story("queried", happen)
    without(G.segment("segment-0000000003"))(events)
    held(check(events))


def test_uncollectable_znodes_are_reported_as_not_decided() -> None:
    def sleep(events: list[Made]) -> None:
        without(H.channel("c2"))(events)
        for event in [e for e in events if e["event"] == "lease" and e["role"] == "coordinator" and e["at"] > 80]:
            events.remove(event)

    verdict = changed(sleep)["S7"]

    assert (verdict.outcome, verdict.is_due) == ("not decided", False)
    assert verdict.why == "the channel of c2 in group h remains, and no coordinator could act for long enough"


def test_znodes_removed_by_turns_may_remain_while_the_group_is_paused() -> None:
    def happen(history: StoryHistory) -> None:
        pause = PausedRecord(groups={"h": Pause("ann", 0)})
        history.hand(Create(PAUSED, pause.to_bytes()))

    events = story("left", happen)
    keep_running(events)
    verdict = check(events)["S7"]

    assert (verdict.outcome, verdict.why) == (
        "not decided",
        "old-0 in `running` of c2, ended, in group h remains, and no coordinator could act for long enough",
    )  # fmt: skip


def test_history_without_an_end_decides_nothing_about_leftovers() -> None:
    verdict = changed(lambda events: events.pop())["S7"]

    assert (verdict.outcome, verdict.why, verdict.is_due) == ("not decided", "the history has no `end`", True)


def test_manually_created_znodes_may_remain() -> None:
    def happen(history: StoryHistory) -> None:
        history.hand(Create(f"{H.channel('c2')}/command-0000000088", json.dumps({"option": "dance"}).encode()))

    events = story("left", happen)
    without(H.channel("c2"))(events)

    assert check(events)["S7"].outcome == "held"
