"""What a drill measures in its history: fetch intervals, T0 to T5, standstill, moves, and client-side assignment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.made_drill import GROUP, begin, changed, commit, created, deleted, event, halt, happened
from zk_group.coordinator.zk.znodes.group_state import (
    COMPLETING,
    FAILED,
    STABLE,
    Ask,
    AskMember,
    ClientSide,
    GroupState,
    Target,
)
from zk_group.coordinator.zk.znodes.paths import COORDINATOR
from zk_group.coordinator.zk.znodes.records import ASSIGNMENT_FAILED, START_FETCHER, STOP_FETCHER, Command
from zk_group.drills.evidence.fetch_intervals import (
    AskSummary,
    asked,
    asks_of,
    doubly_held_s,
    gaps,
    holders,
    holds,
    last_holders,
    read_elsewhere,
)
from zk_group.drills.evidence.measurements import BROKER_RETURNS, changes_of_members, least_moved, measured, replayed

Made = dict[str, Any]


def in_order(*events: Made) -> list[Made]:
    return sorted(events, key=lambda each: float(each["at"]))


# ---- fetch intervals


def channel(at: float, who: str, ended: str | None = None) -> Made:
    """A commit of the channel of a for its process `who`."""
    data = json.dumps({"incarnation": f"i-a#{who[-1]}", "running": {}, "ended": ended})
    return commit(at, who, changed(GROUP.channel("a"), data.encode()))


def spans(*events: Made) -> str:
    """The intervals as `a 1-3`; one that lasts has no end."""
    found = holds(in_order(*events))
    return ", ".join(f"{hold.consumer} {hold.begun:g}-{hold.until:g}".removesuffix("inf") for hold in found)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param(text, shown, id=title)
        for title, text, shown in (
            ("a hold lasts from its begin to its halt", "1 a#1 begin 0 1; 3 a#1 halt 0", "a 1-3, a 1-"),
            ("a hold ends with its process", "1 a#1 begin 0; 4 a#1 exit why=killed", "a 1-4"),
            (
                "hold ends when its lease lapses although its process reports it later",
                "1 a#1 lease until=2.5; 1.1 a#1 begin 0; 2 a#1 lease until=3.5; 9 a#1 halt 0",
                "a 1.1-3.5",
            ),
            (
                "hold pauses while its lease has expired and resumes on renewal",
                "1 a#1 lease until=2.5; 1.1 a#1 begin 0; 6 a#1 lease until=9.5",
                "a 1.1-2.5, a 6-9.5",
            ),
            (
                "hold continues while its lease is renewed in time",
                "1 a#1 lease until=2.5; 1 a#1 begin 0; 2 a#1 lease until=3.5; 3 a#1 lease until=4.5; 4 a#1 halt 0",
                "a 1-4",
            ),
            (
                "hold ends when its session is ended with its password",
                "0.5 a#1 registered group=g consumer=a incarnation=i-a#1 session=7; 1 a#1 begin 0; "
                "2 server closed why=killed session=7 zxid=1; 3 a#1 halt 0",
                "a 1-2",
            ),
            (
                "hold continues when its session expires: its lease covers that",
                "0.5 a#1 registered group=g consumer=a incarnation=i-a#1 session=7; 1 a#1 begin 0; "
                "2 server closed why=expired session=7 zxid=1; 3 a#1 halt 0",
                "a 1-3",
            ),
        )
    ],
)
def test_hold_of_a_partition(text: str, shown: str) -> None:
    assert spans(*happened(text)) == shown


def test_hold_ends_when_its_process_has_left_although_its_application_hangs() -> None:
    events = [*happened("0.1 node-1#1 start kind=node; 1 a#1 begin 0; 4.2 b#1 begin 0; 6 a#1 halt 0")]
    events.append(channel(0.5, "a#1"))
    left = channel(4.0, "a#1", "left by itself: poll was not called")

    assert spans(*events, left) == "a 1-4, b 4.2-"
    assert doubly_held_s(holds(in_order(*events, left))) == 0.0
    evicted = {**left, "who": "node-1#1"}
    assert spans(*events, evicted).startswith("a 1-6,"), "an evicted consumer may fetch until its lease lapses"


def test_hold_ends_for_good_when_another_process_registers_under_its_name() -> None:
    events = happened("1 a#1 begin 0; 2.5 a#1 begin 1; 3 a#2 begin 0")

    assert spans(channel(0.5, "a#1"), channel(2.0, "a#2"), *events) == "a 1-2, a 3-"


LEASES = "1 a#1 lease until=2.5; 1.1 a#1 begin 0; 6 a#1 lease until=9.5"


@pytest.mark.parametrize(
    ("text", "begun", "end", "found"),
    [
        ("0 a#1 begin 0 1; 2 a#1 halt 0; 2.5 b#1 begin 0", 1.0, 5.0, {("t", 0): [(2.0, 2.5)], ("t", 1): []}),
        ("0 a#1 begin 0; 2 a#1 halt 0", 1.0, 5.0, {("t", 0): [(2.0, 5.0)]}),
        (LEASES, 2.0, 8.0, {("t", 0): [(2.5, 6.0)]}),
    ],
    ids=["the times without a fetching consumer", "abandoned partition: to the end", "until its lease is renewed"],
)
def test_gaps_of_a_partition(text: str, begun: float, end: float, found: dict[Any, Any]) -> None:
    assert gaps(holds(happened(text)), begun, end) == found


def test_time_with_two_fetching_consumers_is_counted() -> None:
    assert doubly_held_s(holds(happened("0 a#1 begin 0; 1.5 b#1 begin 0; 2 a#1 halt 0"))) == 0.5
    assert doubly_held_s(holds(happened("0 a#1 begin 0; 1 a#1 halt 0; 1 b#1 begin 0"))) == 0.0


def test_holders_are_those_of_a_moment() -> None:
    found = holds(happened("0 a#1 begin 0 1; 2 a#1 halt 0; 2.5 b#1 begin 0"))

    assert holders(found, 1.0) == {("t", 0): "a", ("t", 1): "a"}
    assert holders(found, 2.2) == {("t", 1): "a"}
    assert holders(found, 3.0) == {("t", 0): "b", ("t", 1): "a"}


def test_last_holder_is_known_though_its_lease_has_just_lapsed() -> None:
    """On a busy machine a fault may occur while a lease is not renewed; its partitions keep their owner."""
    leases = "0 a#1 lease until=2.0; 0 a#1 begin 0; 3 a#1 lease until=9.0"
    found = holds(happened(f"{leases}; 9.5 b#1 begin 0"))

    assert holders(found, 2.5) == {}
    assert last_holders(found, 2.5) == {("t", 0): "a"}
    assert last_holders(found, 9.5) == {("t", 0): "b"}


def test_offsets_read_by_an_application_end_where_the_next_one_begins() -> None:
    ahead = ((0.0, "a#1", 10), (1.0, "app#1", 25), (2.0, "a#1", 40), (3.0, "app#1", 90))
    events = [{**begin(at, who), "partitions": {"t": {"0": first}}} for at, who, first in ahead]

    assert read_elsewhere(events, {"app"}) == {("t", 0): 15}


# ---- T0 to T5, standstill and moves


def sent(consumer: str, number: int, option: str) -> Made:
    command = Command(option, epoch=1, generation=2, incarnation=f"i-{consumer}#1")
    return created(GROUP.command(consumer, f"command-{number:010d}"), command.to_bytes())


def applied(at: float, number: int) -> Made:
    name = f"command-{number:010d}"
    return commit(
        at, "b#1", changed(GROUP.channel("b"), f'{{"command":"{name}"}}'.encode()), deleted(GROUP.command("b", name))
    )


@pytest.fixture
def killed() -> list[Made]:
    """Of a and b the first is killed at 10 s; its session ends at 12 s, and b has everything at 13 s."""
    return [
        *happened("0 server run"),
        commit(0.9, "b#1", created(GROUP.channel("b"))),
        *happened("1 a#1 begin 0 1; 1 b#1 begin 2 3; 10 server fault kind=kill; 10 a#1 exit why=killed"),
        event(12.0, "server", "closed", zxid=1200, session=1, why="expired", paths=[GROUP.id("a")]),
        commit(12.5, "node#1", sent("b", 1, STOP_FETCHER), sent("b", 2, START_FETCHER)),
        applied(12.6, 1),
        applied(12.9, 2),
        *happened("13 b#1 begin 0 1; 20 server end"),
    ]


def test_marks_are_fault_ephemeral_first_stop_last_start_and_all_fetched(killed: list[Made]) -> None:
    assert measured(killed, 10.0).marks == {"T0": 10.0, "T1": 12.0, "T3": 12.5, "T4": 12.9, "T5": 13.0}


def test_standstill_of_a_partition_lasts_from_its_end_to_its_next_begin(killed: list[Made]) -> None:
    found = measured(killed, 10.0)

    assert found.standstill == {("t", 0): 3.0, ("t", 1): 3.0, ("t", 2): 0.0, ("t", 3): 0.0}
    assert (found.moved, found.least, found.doubly_held_s) == (2, 2, 0.0)


def test_partition_not_fetched_in_the_end_leaves_no_t5(killed: list[Made]) -> None:
    found = measured([e for e in killed if e["at"] != 13.0], 10.0)

    assert "T5" not in found.marks
    assert found.standstill["t", 0] == 10.0


def test_later_move_does_not_delay_t5(killed: list[Made]) -> None:
    found = measured(in_order(*killed, *happened("16 b#1 halt 0; 17 a#2 begin 0")), 10.0)

    assert found.marks["T5"] == 13.0
    assert found.standstill["t", 0] == 3.0


def test_partition_that_returns_after_a_temporary_owner_counts_as_passed_on(killed: list[Made]) -> None:
    there_and_back = happened("15 b#1 halt 0; 15.1 a#2 begin 0; 15.2 a#2 halt 0; 15.3 b#1 begin 0")

    found = measured(in_order(*killed, *there_and_back), 14.0)

    assert (found.moved, found.passed_on) == (0, 1)


def test_partition_of_a_hanging_consumer_has_a_standstill_although_it_is_held() -> None:
    stuck = "10 server fault kind=stuck process=a#1; 16 a#1 halt 0; 17.5 b#1 begin 0"
    events = happened(f"0 server run; 1 a#1 begin 0; 1 b#1 begin 1; {stuck}; 20 server end")

    found = measured(events, 10.0)

    assert found.standstill == {("t", 0): 7.5, ("t", 1): 0.0}
    assert found.marks["T5"] == 17.5


def test_the_next_coordinator_acts_when_it_is_elected_and_holds_its_lease(killed: list[Made]) -> None:
    leases = "12.2 node#2 lease role=coordinator until=12.0; 12.4 node#2 lease role=coordinator until=13.0"
    gone = commit(12.05, "node#2", deleted(COORDINATOR))

    events = in_order(*killed, *happened(f"12.1 node#2 elected epoch=2; {leases}"), gone)

    assert measured(events, 10.0).marks["T2"] == 12.4


def test_command_removed_unapplied_is_counted(killed: list[Made]) -> None:
    outdated = commit(14.0, "node#1", sent("b", 3, START_FETCHER))
    stale = commit(15.0, "b#1", deleted(GROUP.command("b", "command-0000000003")))

    assert measured(killed, 10.0).stale == 0
    assert measured(in_order(*killed, outdated, stale), 10.0).stale == 1


@pytest.mark.parametrize(
    ("before", "consumers", "partitions", "least"),
    [
        ("aabb", "ab", 4, 0),
        ("aabb", "b", 4, 2),
        ("aaaa", "ab", 4, 2),
        ("aaabbb", "abc", 6, 2),
        ("aaabbc", "ab", 6, 1),
        ("aabbc", "abc", 5, 0),
        ("aaa", "", 3, 0),
    ],
)
def test_minimum_of_moves_is_that_of_equal_shares(before: str, consumers: str, partitions: int, least: int) -> None:
    held = {("t", number): who for number, who in enumerate(before)}

    assert least_moved(held, set(consumers), partitions) == least


@pytest.mark.parametrize(
    ("later", "seconds"),
    [
        ("15.2 a#1 fetch 0; 15.6 a#1 fetch 1; 16 a#1 fetch 0 1", 0.6),
        ("15.2 a#1 fetch 0", 5.0),  # at least: to the end
    ],
)
def test_fetching_resumes_once_every_partition_had_records_after_broker_return(later: str, seconds: float) -> None:
    away = f"10 server fault kind=kill-broker; 10.5 a#1 fetch 0 1; 15 server fault kind={BROKER_RETURNS}"
    events = happened(f"0 server run; 1 a#1 begin 0 1; 9 a#1 fetch 0 1; {away}; {later}; 20 server end")

    assert measured(events, 10.0).resumed_s == pytest.approx(seconds)


def test_no_broker_return_is_reported_without_a_broker_outage(killed: list[Made]) -> None:
    assert measured(killed, 10.0).resumed_s is None


def test_the_generations_that_begin_after_the_fault_are_counted_each_once() -> None:
    def state(at: float, generation: int, path: str = GROUP.state) -> Made:
        return commit(at, "node#1", changed(path, f'{{"generation":{generation}}}'.encode()))

    events = [
        *happened("0 server run"),
        state(2.0, 3),
        *happened("10 server fault kind=kill-broker"),
        state(11.0, 3),
        state(11.5, 7, "/brokers/topics/t/partitions/0/state"),  # Kafka's
        *(state(12.0 + part, generation) for part, generation in enumerate((4, 4, 5))),
        commit(16.0, "hand#1", changed(GROUP.state, b"scribbled")),
        *happened("20 server end"),
    ]

    assert measured(events, 10.0).generations == 2
    assert measured(events[:5] + events[-1:], 10.0).generations == 0


# ---- client-side assignment

FIRST, SECOND, NOTICE = "ask-0000000001", "ask-0000000002", "command-0000000007"


def ask(name: str, leader: str) -> Made:
    members = {each: AskMember(each, "") for each in "ab"}
    return created(
        GROUP.ask(name), Ask(protocol="drill", leader=leader, incarnation=leader, members=members).to_bytes()
    )


def state(name: str, *members: str, ask: str = "", failed: str = "", generation: int = 1) -> Made:
    client = ClientSide("consumer", ask, failed_ask=failed, attempts=int(bool(failed)))
    found = GroupState(name, generation, target={each: Target(each, {}) for each in members}, client=client)
    return changed(GROUP.state, found.to_bytes())


def notice(consumer: str) -> Made:
    return created(GROUP.command(consumer, NOTICE), Command(ASSIGNMENT_FAILED, 1, 1, consumer, ask=FIRST).to_bytes())


@pytest.fixture
def failed() -> list[Made]:
    """The leader a is asked at 10 s and has failed at 12 s; b is asked at 12.3 s, and its answer adopted at 12.5 s."""
    fetches = "9.9 b#1 fetch 1; 10.5 b#1 fetch 1; 11.9 b#1 fetch 1; 12.4 b#1 fetch 1"
    return in_order(
        *happened(f"0 server run; 1 a#1 begin 0; 1 b#1 begin 1; 9 server fault kind=hang; {fetches}; 20 server end"),
        commit(0.8, "a#1", created(GROUP.channel("a"))),
        commit(0.9, "b#1", created(GROUP.channel("b"))),
        commit(10.0, "n#1", ask(FIRST, "a"), state(COMPLETING)),
        commit(12.0, "n#1", state(FAILED, failed=FIRST), notice("a"), notice("b")),
        commit(12.1, "b#1", deleted(GROUP.command("b", NOTICE))),
        commit(12.3, "n#1", ask(SECOND, "b"), state(COMPLETING, failed=FIRST)),
        commit(12.5, "n#1", state(STABLE, ask=SECOND, generation=2)),
    )


def test_ask_is_reported_with_its_outcome(failed: list[Made]) -> None:
    first, second = asks_of(failed)

    assert (first.leader, first.made, first.failed, first.adopted) == ("a", 10.0, 12.0, None)
    assert (second.leader, second.made, second.failed, second.adopted) == ("b", 12.3, None, 12.5)
    assert first.members == {"a", "b"}
    assert first.heard == {"b"}


def test_the_time_to_an_adoption_is_that_of_every_leader_that_was_asked(failed: list[Made]) -> None:
    found = asked(failed, holds(failed), 9.0)

    assert (found.asks, found.adopted, found.failed, found.repeated) == (2, 1, 1, 1)
    assert found.longest_s == pytest.approx(2.5)


@pytest.mark.parametrize(("who", "unheard"), [("n#1", 1), ("a#1", 0)], ids=["withdrawn", "acknowledged"])
def test_withdrawn_command_does_not_count_as_acknowledged(failed: list[Made], who: str, unheard: int) -> None:
    events = in_order(*failed, commit(13.0, who, deleted(GROUP.command("a", NOTICE))))

    assert asked(events, holds(events), 9.0).unheard == unheard


def test_silence_is_measured_on_partitions_that_no_leader_fetched(failed: list[Made]) -> None:
    only_first = [each for each in failed if not any(op["path"].endswith(SECOND) for op in each.get("ops", ()))]

    found = asked(only_first, holds(only_first), 9.0)

    assert found.silent_s == pytest.approx(20.0 - 12.4)  # never adopted: to the end
    assert found.longest_s == pytest.approx(10.0)
    assert found.adopted == 0


@pytest.mark.parametrize(("at", "revoked"), [(9.5, 0), (11.0, 1), (12.4999, 0), (12.6, 0)])
def test_partitions_revoked_before_an_adoption_count_others_not(failed: list[Made], at: float, revoked: int) -> None:
    events = in_order(*failed, halt(at, "b#1", 1))

    assert asked(events, holds(events), 9.0).revoked == revoked


def test_nothing_is_reported_without_an_ask(failed: list[Made]) -> None:
    assert asked(failed, holds(failed), 13.0) == AskSummary()


def test_unreadable_asks_are_left_out(failed: list[Made]) -> None:
    broken = in_order(*failed, commit(14.0, "hand", created(GROUP.ask("ask-0000000009"), b"no")))

    assert [each.name for each in asks_of(broken)] == [FIRST, SECOND]


# ---- when a group was Stable again


@pytest.fixture
def settling() -> list[Made]:
    """Of a and b the first is killed at 10 s, its session ends at 12 s; c joins at 11 s; Stable without a at 13 s."""
    return [
        commit(1.0, "a#1", created(GROUP.id("a"))),
        commit(1.1, "b#1", created(GROUP.id("b"))),
        commit(2.0, "n#1", state(STABLE, "a", "b")),
        *happened("10 server fault kind=kill process=a#1"),
        commit(11.0, "c#1", created(GROUP.id("c"))),
        event(12.0, "server", "closed", zxid=120_000, session=1, paths=[GROUP.id("a")]),
        commit(12.5, "n#1", state(COMPLETING, "b", "c")),
        commit(13.0, "n#1", state(STABLE, "b", "c")),
        *happened("20 server end"),
    ]


def test_group_is_settled_when_stable_with_all_registered_and_no_dead_members(settling: list[Made]) -> None:
    assert replayed(settling)[1] == pytest.approx(3.0)
    assert changes_of_members(replayed(settling)[0], 10.0) == 2


def test_takeover_of_a_name_is_no_change_of_members(settling: list[Made]) -> None:
    taken_over = commit(14.0, "b#2", deleted(GROUP.id("b")), created(GROUP.id("b")))

    assert changes_of_members(replayed([*settling, taken_over])[0], 10.0) == 2


@pytest.mark.parametrize("after", [("a", "b", "c"), ("b",), ("b", "c", "d")])
def test_group_that_never_settles_counts_to_the_end_of_the_run(settling: list[Made], after: tuple[str, ...]) -> None:
    settling[-2] = commit(13.0, "n#1", state(STABLE, *after))

    assert replayed(settling)[1] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("fault", "settled_s"),
    [({"process": "node-1#7"}, 0.0), ({"kind": "pause"}, None)],
    ids=["a coordinator", "nothing"],
)
def test_a_stable_group_is_settled_when_what_is_killed_is(
    settling: list[Made], fault: Made, settled_s: float | None
) -> None:
    settling[3].update(fault)

    assert replayed(settling[:4])[1] == settled_s
