"""The cases of `checker/*.txt`, what the checker makes of stories that are no text, and of znodes' data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_histories import BOUNDS, Made
from tests.support.made_story import G, StoryHistory, story
from tests.support.written_histories import STORIES, Case, breaks, cases, held, names, only, spoilt
from zk_group.coordinator.zk.store import Create, Delete
from zk_group.coordinator.zk.znodes.group_state import COMPLETING, GroupState
from zk_group.coordinator.zk.znodes.segments import SealedRange
from zk_group.drills.checker import HELD, check
from zk_group.drills.checker.invariants.s5_dataframe import rows_of
from zk_group.drills.checker.replay.reading import read_channel, read_command, read_offset, read_segment, read_state
from zk_group.drills.checker.replay.sketches import NOTHING, of_range

FILES = sorted(Path(__file__).with_name("checker").glob("*.txt"))
CASES = {file.stem: cases(file) for file in FILES}
INVARIANTS = [*(f"S{number}" for number in range(1, 12) if number != 8), *(f"L{number}" for number in range(1, 7))]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{stem}: {case}") for stem, some in CASES.items() for case in some]
)
def test_verdict(case: Case) -> None:
    case.judge()


@pytest.mark.parametrize("stem", CASES)
def test_titles_of_cases_are_unique(stem: str) -> None:
    some = [str(case) for case in CASES[stem]]

    assert some and len(some) == len(set(some))


@pytest.mark.parametrize("made", STORIES.values(), ids=STORIES)
def test_every_invariant_holds_in_a_story_in_which_nothing_is_spoilt(made: Callable[..., Any]) -> None:
    verdicts = check(made())

    found = {name: verdict.outcome for name, verdict in verdicts.verdicts.items()}
    assert found == dict.fromkeys(INVARIANTS, HELD), verdicts.text()


@pytest.mark.parametrize("is_static", [False, True])
def test_repeatedly_evicted_member_breaks_it_with_or_without_a_seat(is_static: bool) -> None:
    def happen(history: StoryHistory) -> None:
        for number in range(7):
            life = history.lives["s3"]
            seat = [Delete(G.seat("s3"))] if is_static else []
            evicted = [*history.end_of(life, "evicted"), Delete(G.id("s3")), *seat]
            history.fenced("g", replace(history.states["g"], state=COMPLETING), *evicted)
            history.pass_(1.0)
            history.register(life, f"s3-{number}")
            if is_static:
                history.commit(life.who, Create(G.seat("s3"), b"{}"))
            history.pass_(4.0)

    assert spoilt("calm", happen, goes_on=True)["L1"].findings


@pytest.mark.parametrize("with_group", [True, False])
def test_group_created_by_an_operator_loses_no_state_and_no_time(with_group: bool) -> None:
    def happen(history: StoryHistory) -> None:
        hand = next(event for event in history.events if event["who"] == "hand")
        paths = [G.root, G.state] if with_group else [G.state]
        data = GroupState().to_bytes().decode()
        hand["ops"] += [{"op": "create", "path": path, "data": data, "ephemeral": False} for path in paths]
        history.event("calm", "server")
        history.to(history.now + 20.0)
        history.event("end", "server")

    assert (spoilt("stable", happen)["L1"].outcome == "held") is with_group


@breaks("S6: flights-3 is still fetched by s1#1", "s1#1 begin, s1#1 lease, b#1 commit g/state, s1#1 commit channel/s1")
def test_acknowledged_stop_whose_partition_is_still_fetched_breaks_it(events: list[Made]) -> None:
    halt = next(e for e in events if e["event"] == "halt" and e["who"] == "s1#1")
    done = next(e for e in events[events.index(halt) :] if e["event"] == "commit")
    events.remove(halt)
    events.insert(events.index(done) + 1, {**halt, "at": done["at"]})


@breaks("S4 too: ^a#1 wrote what only a coordinator writes at 1.05 s", "a#1 commit g/state")
def test_state_written_before_the_first_election_breaks_it(events: list[dict[str, object]]) -> None:
    bump = next(e for e in events if e["event"] == "commit")
    bump["ops"] = []


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


@breaks("S1: at 36 s", "s1#1 begin, s3#1 begin, s1#1 lease, s3#1 lease")
def test_a_lease_that_is_renewed_after_the_partition_was_handed_on_breaks_it(events: list[Made]) -> None:
    """The consumer that hangs has been evicted by then, and halts only when it wakes: its lease had lapsed."""
    place = next(number for number, event in enumerate(events) if event["at"] == 36.0)
    model = next(event for event in events if event["event"] == "lease" and event["who"] == "s1#1")
    events.insert(place, {**model, "at": 36.0, "until": 37.0})


@breaks("S1", "s1#1 begin, s1#1 lease, s3#1 lease, s3#1 begin")
def test_lease_longer_than_the_mark_breaks_it(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "lease" and event["who"] == "s1#1"]
    before = [event for event in last if event["at"] < 30]
    before[-1]["until"] = 34.5


def test_start_after_its_name_was_taken_over_counts_as_no_fetch() -> None:
    """The old process has claimed it before, and reads its offset while the new one registers."""
    events = story()
    place = next(number for number, e in enumerate(events) if e["event"] == "begin" and e["who"] == "s2#2")
    before = [e for e in events[:place] if e["event"] == "begin" and e["who"] == "s2#1"]
    events.insert(place + 1, {**before[-1], "at": events[place]["at"]})

    held(check(events))


@breaks("S1 too", "s2#1 begin, s2#1 lease, s2#2 lease, s2#2 begin")
def test_a_name_that_another_process_has_taken_over_fetches_no_more(events: list[Made]) -> None:
    """In the story the old process halts only after the new one has begun."""
    taken = next(e for e in events if e["event"] == "commit" and e["who"] == "s2#2" and len(e["ops"]) > 2)
    taken["who"] = "s2#1"


@breaks("S5: batch 2 of query q of group g begins after ... batch 1 ended at", "q#1 batch, q#1 batch")
def test_a_batch_that_does_not_begin_where_the_one_before_ended_breaks_it(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "batch"][-1]
    name = last["segments"].pop(0)
    made = [e for e in events if e["event"] == "commit" and e["ops"][-1]["path"].endswith(name)]
    last["after"] = made[0]["zxid"]
    segment = json.loads(made[0]["ops"][-1]["data"])
    del last["rows"][: sum(len(parts) for parts in segment["ranges"].values())]


def test_rows_are_the_same_wherever_ranges_that_overlap_were_cut() -> None:
    """As after a reset: two segments have the first offsets, cut in different places."""
    place = ("t", "id", 0)

    assert rows_of([(*place, 0, 27), (*place, 0, 72), (*place, 27, 45)]) == {place: [(0, 45), (0, 72)]}
    assert rows_of([(*place, 0, 72), (*place, 0, 45)]) == {place: [(0, 45), (0, 72)]}
    assert rows_of([(*place, 0, 45), (*place, 45, 72)]) == {place: [(0, 72)]}


# ---- a few events, without a story


RUN: Made = {"at": 0.0, "who": "server", "event": "run", "version": 1, "bounds": dict(BOUNDS)}


def fetcher(who: str, session: int, began: float) -> list[Made]:
    consumer = who.partition("#")[0]
    names = {"group": "g", "consumer": consumer, "incarnation": f"of-{who}"}
    return [
        {"at": began - 0.2, "who": who, "event": "registered", **names, "session": session},
        {"at": began - 0.1, "who": who, "event": "lease", "role": "consumer", "session": session, "until": began + 3.9},
        {"at": began, "who": who, "event": "begin", **names, "generation": 1, "partitions": {"t": {"0": 0}}},
    ]


def killed(session: int, at: float, why: str) -> Made:
    return {"at": at, "who": "server", "event": "closed", "session": session, "zxid": 9, "why": why, "paths": []}


def in_order(*events: Made) -> list[Made]:
    """The events, and a lease's renewal after them."""
    later = {"at": 4.0, "who": "b#1", "event": "lease", "role": "consumer", "session": 2, "until": 7.9}
    return [RUN, *sorted([*events, later], key=lambda event: event["at"])]


def test_fetches_after_a_session_was_ended_by_another_do_not_count() -> None:
    before = in_order(*fetcher("a#1", 1, 1.0), killed(1, 2.0, "killed"), *fetcher("b#1", 2, 2.5))
    just_after = in_order(*fetcher("a#1", 1, 2.1), killed(1, 2.0, "killed"), *fetcher("b#1", 2, 2.5))

    held(check(before))
    held(check(just_after))


def test_an_expired_session_is_no_excuse_for_fetching_within_a_lease() -> None:
    verdict = check(in_order(*fetcher("a#1", 1, 1.0), killed(1, 2.0, "expired"), *fetcher("b#1", 2, 2.5)))["S1"]

    lease, fetching = verdict.findings
    assert names(lease) == ["a#1 lease", "server closed"] and "its session expired at 2 s" in lease.why
    assert names(fetching) == ["a#1 lease", "a#1 begin", "b#1 lease", "b#1 begin"]


def leased(role: str, until: float, renewed: float, expired: float, before: int = 2) -> list[Made]:
    lease = {"at": renewed, "who": "a#1", "event": "lease", "role": role, "session": 1, "until": until}
    others = [{**lease, "at": 0.1 * number, "until": 1.0} for number in range(before)]
    return [RUN, *sorted([*others, lease, killed(1, expired, "expired")], key=lambda event: event["at"])]


@pytest.mark.parametrize(("role", "invariant"), [("consumer", "S1"), ("coordinator", "S4")])
def test_no_lease_outlasts_its_session(role: str, invariant: str) -> None:
    held(check(leased(role, until=5.0, renewed=1.0, expired=5.0)))
    held(check([RUN, *leased(role, until=9.0, renewed=1.0, expired=5.0)[1:2]]))
    for renewed in (1.0, 6.0):  # the last one by a follower that is cut off from the leader
        finding = only(check(leased(role, until=5.1, renewed=renewed, expired=5.0)), invariant)

        assert sorted(names(finding)) == ["a#1 lease", "server closed"]
        assert finding.why == f"a#1 ({role}) had a lease until 5.1 s, and its session expired at 5 s"


def test_first_two_leases_of_a_coordinator_are_not_judged() -> None:
    held(check(leased("coordinator", until=9.0, renewed=1.0, expired=5.0, before=1)))
    only(check(leased("consumer", until=9.0, renewed=1.0, expired=5.0, before=0)), "S1")


def test_fetches_begun_after_manual_removal_are_not_judged_until_reregistration() -> None:
    ids = "/consumers/groups/g/ids/a"
    made = {"at": 0.85, "who": "a#1", "event": "commit", "session": 1, "zxid": 2,
            "ops": [{"op": "create", "path": ids, "data": "{}", "ephemeral": True}]}  # fmt: skip
    gone = {"at": 0.95, "who": "hand", "event": "commit", "session": 9, "zxid": 3,
            "ops": [{"op": "delete", "path": ids}]}  # fmt: skip

    with_hand = in_order(*fetcher("a#1", 1, 1.0), made, gone, *fetcher("b#1", 2, 2.5))
    without = in_order(*fetcher("a#1", 1, 1.0), made, *fetcher("b#1", 2, 2.5))

    held(check(with_hand))
    assert [verdict.invariant for verdict in check(without).broken] == ["S1"]


def test_two_segments_in_one_commit_break_it() -> None:
    def happen(history: StoryHistory) -> None:
        life = history.lives["s0"]
        some = [SealedRange("flights", "T1", 0, 110, 120), SealedRange("flights", "T1", 1, 130, 140)]
        history.sealed("s0", some[:1])
        del history.events[-1]
        history.zxid -= 1
        texts = []
        for each in some:
            history.sealed("s0", [each])
            texts.append(history.events.pop()["ops"][1]["data"].encode())
        creates = [Create(G.segment_prefix, text, sequential=True) for text in texts]
        history.set_channel(life, life.channel, *creates)

    def test_sketch_detects_a_missing_repeated_or_different_record() -> None:
        whole = of_range(3, 9)
        assert whole == of_range(3, 5).plus(of_range(5, 9)) and of_range(4, 4) == NOTHING
        others = [of_range(3, 8), of_range(4, 9), of_range(2, 8), of_range(3, 9).plus(of_range(8, 9))]
        swapped = of_range(3, 4).plus(of_range(5, 6)).plus(of_range(5, 6)).plus(of_range(5, 6)).plus(of_range(7, 9))
        assert swapped[:2] == whole[:2], "as many, and the same sum"
        assert all(each != whole for each in (*others, swapped))

    finding = only(spoilt("joined", happen), "S5")

    assert "were sealed in one commit" in finding.why and names(finding) == ["s0#1 commit channel/s0"]


# ---- what the records refuse cannot be read


@pytest.mark.parametrize("text", ["{", "[]", "null", "?", "{" * 100_000, '{"incarnation":"\ud800"}'])
def test_what_is_no_record_cannot_be_read(text: str) -> None:
    assert [read(text) for read in (read_channel, read_command, read_state, read_offset, read_segment)] == [None] * 5


def test_channel_without_data_has_no_incarnation() -> None:
    channel = read_channel("")

    assert channel is not None and (channel.incarnation, channel.is_live) == ("", False)
