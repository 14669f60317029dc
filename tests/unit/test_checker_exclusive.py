"""S1: at any instant at most one fetcher runs a partition of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.zk.store import Create, Delete, SetData
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import OwnerRecord
from coordinator.zk.znodes.segments import SealedRange
from drills.checker import Verdicts, Violation, check
from tests.support.made_histories import BOUNDS, Made, parted
from tests.support.made_story import G, StoryHistory
from tests.support.spoilt import breaks, held, holds, names, only, spoilt

P2, P3 = TopicPartition("flights", 2), TopicPartition("flights", 3)


def begins_early(history: StoryHistory) -> None:
    """The newcomer fetches a partition before its holder has stopped."""
    life = history.lives["s2"]
    life.channel = replace(life.channel, topics={"flights": "T1"})
    history.begin(life, [P3])
    history.pass_(0.5)
    history.halt(life, parted({"flights": "3"}), "revoked")
    life.channel = replace(life.channel, running={}, topics={})


def overlaps(verdicts: Verdicts) -> list[Violation]:
    """The findings on a history in which a partition is begun unclaimed, without that one."""
    assert {verdict.invariant for verdict in verdicts.broken} == {"S1"}, verdicts.text()
    return [finding for finding in verdicts["S1"].findings if "began to fetch" not in finding.why]


def test_concurrent_fetches_of_a_partition_break_it() -> None:
    (finding,) = overlaps(spoilt("stop sent", begins_early, goes_on=True))

    assert names(finding) == ["s1#1 begin", "s1#1 lease", "s2#1 lease", "s2#1 begin"]
    assert "flights-3 of group g was fetched by s1#1" in finding.why and "by s2#1" in finding.why


def begins_at_once(history: StoryHistory, fetch: bool) -> None:
    """The newcomer begins a partition in the instant in which its holder halts, and both may fetch in it."""
    life = history.lives["s2"]
    life.channel = replace(life.channel, topics={"flights": "T1"})
    history.begin(life, [P3])
    if fetch:
        history.fetch("s2", 4, 3)
        history.fetch("s1", 4, 3)
    history.halt(history.lives["s1"], parted({"flights": "3"}), "revoked")
    history.halt(life, parted({"flights": "3"}), "revoked")
    life.channel = replace(life.channel, running={}, topics={})


def test_partition_may_be_started_in_the_instant_in_which_its_holder_halts() -> None:
    assert not overlaps(spoilt("stop sent", lambda history: begins_at_once(history, fetch=False), goes_on=True))


def test_two_consumers_that_fetch_in_one_instant_break_it() -> None:
    (finding,) = overlaps(spoilt("stop sent", lambda history: begins_at_once(history, fetch=True), goes_on=True))

    assert names(finding) == ["s1#1 begin", "s1#1 lease", "s2#1 lease", "s2#1 begin", "s2#1 fetch", "s1#1 fetch"]


@breaks(
    "S1", "flights-3 of group g was fetched by s1#1", "which does not run it", at="joined",
    witness="s2#1 lease, s2#1 begin, s1#1 fetch",
)  # fmt: skip
def test_records_fetched_after_the_partition_was_released_break_it(history: StoryHistory) -> None:
    ranges = [SealedRange("flights", "T1", 3, 20, 24)._asdict()]
    history.event("fetch", "s1#1", group="g", consumer="s1", incarnation="s1-a", ranges=ranges)


def fetches(
    history: StoryHistory, consumer: str, first: int, partition: int = 3, kind: str = "fetch", **more: float
) -> None:
    """The first life of a consumer fetches or returns four records."""
    ranges = [SealedRange("flights", "T1", partition, first, first + 4)._asdict()]
    names = {"group": "g", "consumer": consumer, "incarnation": f"{consumer}-a"}
    history.event(kind, f"{consumer}#1", **names, ranges=ranges, **more)


@holds(at="taken over", consumer="s2", first=60, has_lease=True)
@holds(at="joined", consumer="s1", first=20, has_lease=False)
def test_late_records_of_a_consumer_without_name_or_lease_do_not_count(
    history: StoryHistory, consumer: str, first: int, has_lease: bool
) -> None:
    if not has_lease:
        del history.roles[f"{consumer}#1"]
        history.pass_(5)
    fetches(history, consumer, first)


def lapses(history: StoryHistory, *kinds: str, is_late: bool | None = None, renews: bool = False) -> None:
    """The lease of s1 lapses, which then fetches or returns its records, a second apart.

    :param is_late: whether the lease was recorded as checked after its lapse; None: not recorded.
    """
    fetches(history, "s1", 100, 2, kinds[0])  # under its lease
    history.pass_(1)
    del history.roles["s1#1"]
    lapse = max(e["until"] for e in history.events if e["event"] == "lease" and e["who"] == "s1#1")
    history.pass_(5)
    checked = {} if is_late is None else {"checked": lapse + (0.01 if is_late else -0.01)}
    if renews:
        history.lease("s1#1", "consumer")
        checked = {"checked": history.now}
    for kind in kinds:
        fetches(history, "s1", 100, 2, kind, **checked)
        history.pass_(1)


@pytest.mark.parametrize("kind", ["fetch", "returned"])
@holds(at="joined", is_late=False)
@holds(at="joined", is_late=None)
def test_a_fetch_that_began_before_the_lease_lapsed_may_end(
    history: StoryHistory, kind: str, is_late: bool | None
) -> None:
    lapses(history, kind, is_late=is_late)


@pytest.mark.parametrize("kind", ["fetch", "returned"])
@breaks(
    "S1", "s1#1 (consumer s1 of group g, incarnation s1-a)", "had lapsed at", at="joined",
    witness="s1#1 lease, s1#1 {kind}",
)  # fmt: skip
def test_a_fetch_that_begins_after_the_lapse_of_its_lease_breaks_it(history: StoryHistory, kind: str) -> None:
    lapses(history, kind, is_late=True)


def test_second_fetch_after_the_lapse_breaks_it_without_a_begin_time() -> None:
    finding = only(spoilt("joined", lambda history: lapses(history, "fetch", "fetch", "fetch")), "S1")

    assert names(finding) == ["s1#1 lease", "s1#1 fetch"]
    assert finding.witness[1]["at"] - finding.witness[0]["until"] > 1


@holds(at="joined")
def test_fetch_after_the_renewal_of_a_lapsed_lease_is_judged(history: StoryHistory) -> None:
    lapses(history, "fetch", "returned", renews=True)


@breaks("S1", "at 36 s", witness="s1#1 begin, s3#1 begin, s1#1 lease, s3#1 lease")
def test_a_lease_that_is_renewed_after_the_partition_was_handed_on_breaks_it(events: list[Made]) -> None:
    """The consumer that hangs has been evicted by then, and halts only when it wakes: its lease had lapsed."""
    place = next(number for number, event in enumerate(events) if event["at"] == 36.0)
    model = next(event for event in events if event["event"] == "lease" and event["who"] == "s1#1")
    events.insert(place, {**model, "at": 36.0, "until": 37.0})


@breaks("S1", witness="s1#1 begin, s1#1 lease, s3#1 lease, s3#1 begin")
def test_lease_longer_than_the_mark_breaks_it(events: list[Made]) -> None:
    last = [event for event in events if event["event"] == "lease" and event["who"] == "s1#1"]
    before = [event for event in last if event["at"] < 30]
    before[-1]["until"] = 34.5


def test_killed_process_does_not_fetch_even_under_a_valid_lease() -> None:
    def happen(history: StoryHistory) -> None:
        history.event("exit", "s1#1", why="killed")
        begins_early(history)

    assert not overlaps(spoilt("stop sent", happen))


@holds()
def test_start_after_its_name_was_taken_over_counts_as_no_fetch(events: list[Made]) -> None:
    """The old process has claimed it before, and reads its offset while the new one registers."""
    place = next(number for number, e in enumerate(events) if e["event"] == "begin" and e["who"] == "s2#2")
    before = [e for e in events[:place] if e["event"] == "begin" and e["who"] == "s2#1"]
    events.insert(place + 1, {**before[-1], "at": events[place]["at"]})


@breaks("S1", witness="s2#1 begin, s2#1 lease, s2#2 lease, s2#2 begin", alone=False)
def test_a_name_that_another_process_has_taken_over_fetches_no_more(events: list[Made]) -> None:
    """In the story the old process halts only after the new one has begun."""
    taken = next(e for e in events if e["event"] == "commit" and e["who"] == "s2#2" and len(e["ops"]) > 2)
    taken["who"] = "s2#1"


@breaks("S1", "incarnation s1-a", "incarnation s1-x", at="joined", witness="s1#1 begin, s1#1 lease, s1#1 begin")
def test_process_that_registers_again_without_releasing_partitions_breaks_it(history: StoryHistory) -> None:
    life = history.lives["s1"]
    history.register(life, "s1-x")
    shares = {"s0": {"flights": "0-1"}, "s1": {"flights": "2"}, "s2": {"flights": "3"}}
    start = history.start("s1", shares["s1"], generation=history.states["g"].generation + 1)
    history.turn("g", shares, start)
    history.obey("s1")
    history.pass_(1)


@holds(at="joined")
def test_consumer_that_left_in_zookeeper_does_not_fetch_though_its_process_hangs(history: StoryHistory) -> None:
    life = history.lives["s1"]
    ended = replace(life.channel, running={}, topics={}, ended="poll was not called", error="UnknownMemberId")
    history.set_channel(life, ended, *history.released(life, [P2]), Delete(G.id("s1")))
    shares = {"s0": {"flights": "0-1"}, "s2": {"flights": "2-3"}}
    start = history.start("s2", shares["s2"], generation=history.states["g"].generation + 1)
    history.turn("g", shares, start)
    history.obey("s2")
    history.pass_(1)


@breaks(
    "S1", "flights-2 of group g is in `running` of s0 and s1", at="joined",
    witness="s1#1 commit channel/s1, s0#1 commit channel/s0", goes_on=True,
)  # fmt: skip
def test_two_channels_that_run_a_partition_after_a_commit_break_it(history: StoryHistory) -> None:
    life = history.lives["s0"]
    running = {**life.channel.running, P2: None}
    owner = Create(G.owner(*P2), OwnerRecord("s0-0", "s0", "s0-a", 2).to_bytes(), ephemeral=True)
    history.hand(Delete(G.owner(*P2)))
    history.set_channel(life, replace(life.channel, running=running), owner)
    history.set_channel(life, life.channel.without([P2]), Delete(G.owner(*P2)))


@breaks("S1", at="joined", witness="s1#1 commit channel/s1, s0#1 commit channel/s0")
def test_partition_in_an_ended_channel_may_not_run_in_another(history: StoryHistory) -> None:
    history.close("s1#1")
    torn = replace(history.lives["s1"].channel, ended="its session ended")
    history.commit(history.coordinator, SetData(G.channel("s1"), torn.to_bytes()))
    life = history.lives["s0"]
    owner = Create(G.owner(*P2), OwnerRecord("s0-0", "s0", "s0-a", 2).to_bytes(), ephemeral=True)
    history.set_channel(life, replace(life.channel, running={**life.channel.running, P2: None}), owner)


@holds(at="joined")
def test_manually_edited_channel_is_not_judged(history: StoryHistory) -> None:
    life = history.lives["s0"]
    running = {**life.channel.running, P2: 7}
    history.hand(SetData(G.channel("s0"), replace(life.channel, running=running).to_bytes()))


@holds(at="joined")
def test_fetches_after_manual_removal_of_a_registration_are_not_judged(history: StoryHistory) -> None:
    """It is ended like its session: the coordinator cannot know that its lease is still valid."""
    history.hand(Delete(G.id("s1")))
    life = history.lives["s1"]
    shares = {"s0": {"flights": "0-1"}, "s2": {"flights": "2-3"}}
    start = history.start("s2", shares["s2"], generation=history.states["g"].generation + 1)
    history.turn("g", shares, *history.end_of(life, "its session ended"), start)
    history.obey("s2")
    history.pass_(1)


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


def test_fetch_by_a_consumer_that_left_breaks_it() -> None:
    def happen(history: StoryHistory) -> None:
        life = history.lives["s1"]
        history.halt(life, frozenset(life.channel.running), "lost")
        history.commit("s1#1", SetData(G.channel("s1"), replace(life.channel, ended="left by itself").to_bytes()))
        life.channel = replace(life.channel, topics={"flights": "T1"})
        history.begin(life, [P3])
        history.pass_(0.5)
        history.event("exit", "s1#1", why="left")

    finding = only(spoilt("returned", happen), "S1")

    assert {"s2#1 begin", "s1#1 begin"} <= set(names(finding))


def test_a_claim_that_removes_an_owner_znode_in_the_way_breaks_it() -> None:
    def happen(history: StoryHistory) -> None:
        life = history.lives["s0"]
        running = {**life.channel.running, P2: None}
        owner = Create(G.owner(*P2), OwnerRecord("s0-0", "s0", "s0-a", 2).to_bytes(), ephemeral=True)
        history.set_channel(life, replace(life.channel, running=running), Delete(G.owner(*P2)), owner)

    findings = spoilt("joined", happen)["S1"].findings

    assert any("s0 of group g claimed flights-2" in each.why and "was in the way" in each.why for each in findings)


def leaves(history: StoryHistory, error: str = "", halts_after_s: float | None = None) -> None:
    """s1 ends its incarnation, and stops fetching so much later, or never."""
    life = history.lives["s1"]
    ended = replace(life.channel, running={}, topics={}, ended="left", error=error)
    history.set_channel(life, ended, *history.released(life, [P2]), Delete(G.id("s1")))
    if halts_after_s is not None:
        history.pass_(halts_after_s)
        history.halt(life, frozenset({P2}), "left")
    history.pass_(1)


@breaks("S1", "s1#1 left group g", "while it still fetched flights-2", at="joined", halts_after_s=None)
@breaks("S1", "s1#1 left group g", "while it still fetched flights-2", at="joined", halts_after_s=0.01)
def test_leaving_of_its_own_accord_while_still_fetching_breaks_it(
    history: StoryHistory, halts_after_s: float | None
) -> None:
    leaves(history, halts_after_s=halts_after_s)


@holds(at="joined", error="", halts_after_s=0.001)
@holds(at="joined", error="UnknownMemberId", halts_after_s=None)
def test_the_end_of_fetching_may_seem_to_be_a_millisecond_behind_the_leave(
    history: StoryHistory, error: str, halts_after_s: float | None
) -> None:
    leaves(history, error, halts_after_s)
