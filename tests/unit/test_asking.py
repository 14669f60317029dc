"""Client-side assignment in one turn: choice of the leader, adoption of its answer, and missing answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from coordinator.planning.membership import GroupRules
from coordinator.planning.plan import Plan, plan
from coordinator.planning.snapshot import AskView, ChannelView, Member, SeatView, SentCommand, Snapshot, SyncRequestView
from coordinator.rebalance.rebalancer import steps, with_state
from coordinator.zk.store import Delete
from coordinator.zk.znodes.group_state import (
    Answer,
    Ask,
    AskMember,
    ClientProtocols,
    ClientSide,
    GroupState,
    Mark,
    MemberAnswer,
    Target,
)
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import (
    ASSIGN,
    ASSIGNMENT_FAILED,
    START_FETCHER,
    STOP_FETCHER,
    Channel,
    Command,
    Registration,
    Seat,
    Topic,
)
from tests.support.strategies import RANGE

TOPIC = Topic("t", "id-t", (0, 1))
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
RULES = GroupRules(assignment_timeout_s=30.0)
ASK1, ASK2 = "ask-0000000001", "ask-0000000002"


def registration(name: str, life: int = 1, digest: str = "d", **options: Any) -> Registration:
    kind = options.pop("protocol_type", "consumer")
    offers = ClientProtocols(options.pop("protocols", ("p",)), {"p": ""}, kind, digest=digest)
    return Registration(f"{name}-{life}", {"t": 1}, "client", lease_ms=5000, client=offers, **options)


def asked(*names: str, life: int = 1, digest: str = "d") -> dict[str, AskMember]:
    return {name: AskMember(f"{name}-{life}", digest, 5000) for name in names}


def ask(leader: str, members: Mapping[str, AskMember], **options: Any) -> Ask:
    return Ask("p", leader, options.pop("incarnation", f"{leader}-1"), members, **options)


def answer(**shares: TopicPartition) -> dict[str, Any]:
    """The children of an ask once its leader assigned a partition to each of these."""
    entries = {name: MemberAnswer({f"{name}-0": frozenset({part})}) for name, part in shares.items()}
    reply = Answer(tuple(sorted(shares)), {"t": "id-t"}, {"t": frozenset(TOPIC.partitions)})
    return {"answer": reply, "entries": entries, "children": ("answer", *(f"member-{name}" for name in shares))}


def assign(name: str, leader: str = "a", epoch: int = 1, generation: int = 0) -> Command:
    return Command(ASSIGN, epoch, generation, f"{leader}-1", ask=name)


def group(*names: str, epoch: int = 1, **options: Any) -> Snapshot:
    """A group of live members, each with its channel's data and pending commands."""
    commands: Mapping[str, tuple[Command, ...]] = options.pop("commands", {})
    channels: Mapping[str, Channel] = options.pop("channels", {})
    registered: Mapping[str, Registration] = options.pop("registered", {})
    members = {name: registered.get(name, registration(name)) for name in names}
    kind = next((one.protocol_type for one in members.values()), "consumer")
    state = options.pop("state", GroupState(epoch=1, client=ClientSide(kind)))
    return Snapshot(
        "g",
        epoch,
        state,
        7,
        channels={
            name: ChannelView(
                name,
                3,
                channels.get(name, Channel(one.incarnation)),
                tuple(SentCommand(f"command-{n:010d}", each) for n, each in enumerate(commands.get(name, ()))),
            )
            for name, one in members.items()
        },
        members={name: Member(name, 10 + place, members[name]) for place, name in enumerate(names)},
        topics={"t": TOPIC},
        has_sync=True,
        **options,
    )


def decided(snapshot: Snapshot) -> Plan:
    return plan(snapshot, RANGE, "", RULES)


def adopted(*names: str, view: str = ASK1, **options: Any) -> GroupState:
    """A group whose target is the answer to an ask: the first of `names` has t-0, the second t-1."""
    target = {
        name: Target(f"{name}-1", {f"{name}-0": frozenset({part})}) for name, part in zip(names, (P0, P1), strict=False)
    }
    client = ClientSide(options.pop("protocol_type", "consumer"), view, **options.pop("client", {}))
    return GroupState("Stable", 1, 1, "p", target, {"t": "id-t"}, client=client, **options)


def settled(name: str, part: TopicPartition) -> Channel:
    return Channel(f"{name}-1", 1, 1, "command-x", {part: 5}, {"t": "id-t"}, ask=ASK1)


# ---- choice of the leader


def test_longest_registered_member_is_asked_and_its_command_is_sent_with_the_ask() -> None:
    found = decided(group("b", "a"))

    assert found.asking.made is not None
    name, made = found.asking.made
    assert (name, made.leader, made.protocol, made.attempt) == (ASK1, "b", "p", 1)
    assert made.members == asked("a", "b")
    assert found.asking.assign == ("b", assign(ASK1, "b"))
    assert (found.state.state, found.state.generation, found.state.target) == ("CompletingRebalance", 0, {})
    assert found.again_s == 30.0, "the next turn checks for its answer in any case"


def test_ask_name_known_to_a_member_is_not_reused() -> None:
    found = decided(group("a", "b", channels={"b": settled("b", P1)}, state=replace(adopted("b"), client=None)))

    assert found.asking.made is not None and found.asking.made[0] == ASK2


def test_a_stray_ask_that_leaves_no_room_above_it_does_not_count() -> None:
    stray = AskView(f"ask-{10**18 - 1}", None)

    found = decided(group("a", state=adopted("a"), asks=(stray,), sync_request=SyncRequestView(1, "again")))

    assert found.asking.made is not None
    assert found.asking.made[0] == ASK2


def test_a_seat_counts_for_a_static_member_and_not_its_lives() -> None:
    static = registration("b", life=2, instance_id="b")
    snapshot = group("a", "b", registered={"b": static})
    seats = {"b": SeatView("b", 1, Seat(static, 10_000), czxid=5)}

    found = decided(replace(snapshot, seats=seats))

    assert found.asking.made is not None
    assert found.asking.made[1].leader == "b"
    assert found.asking.made[1].members["b"].identity == "seat-5"


def test_changes_wait_for_the_answer_of_the_pending_ask() -> None:
    view = AskView(ASK1, ask("a", asked("a")))

    found = decided(group("a", "b", asks=(view,), commands={"a": (assign(ASK1),)}))

    assert found.asking.made is None and found.commands == ()
    assert found.withdrawn == ()


def test_a_command_of_an_older_epoch_is_withdrawn_and_sent_again_for_the_same_ask() -> None:
    view = AskView(ASK1, ask("a", asked("a")))

    found = decided(group("a", epoch=2, asks=(view,), commands={"a": (assign(ASK1),)}))

    assert [sent.command for _, sent in found.withdrawn] == [assign(ASK1)]
    assert found.asking.assign == ("a", assign(ASK1, epoch=2)) and found.asking.made is None


def test_ask_whose_command_was_lost_with_its_coordinator_is_sent_again() -> None:
    view = AskView(ASK1, ask("a", asked("a")))

    found = decided(group("a", epoch=2, asks=(view,)))

    assert found.asking.assign == ("a", assign(ASK1, epoch=2)) and found.asking.made is None


def test_a_leader_that_removes_its_command_without_an_answer_has_failed() -> None:
    view = AskView(ASK1, ask("a", asked("a")))

    found = decided(group("a", asks=(view,)))

    assert found.asking.has_failed and found.state.state == "RebalanceFailed"
    assert "acknowledged its assign without an answer" in (found.state.reason or "")


def test_lost_leader_is_followed_by_the_next_without_a_failure_notice() -> None:
    view = AskView(ASK1, ask("a", asked("a", "b")))

    found = decided(group("b", asks=(view,)))

    assert found.asking.made is not None and found.asking.made[0] == ASK2 and found.asking.made[1].leader == "b"
    assert found.asking.notices == () and found.asking.unneeded == (view,)


def test_static_leader_returning_from_each_ask_unanswered_is_not_asked_forever() -> None:
    static = registration("a", life=2, instance_id="a")
    members = {**asked("b"), "a": AskMember("seat-5", "d", 5000)}
    view = AskView(ASK1, ask("a", members))
    snapshot = group("a", "b", registered={"a": static}, asks=(view,))

    found = decided(replace(snapshot, seats={"a": SeatView("a", 1, Seat(static, 10_000), czxid=5)}))

    assert found.asking.made is not None and found.asking.made[1].leader == "b"
    assert found.state.client is not None and found.state.client.failed == ("seat-5",)


def test_failed_leader_is_preferred_to_a_member_that_joined_after_the_last_ask() -> None:
    view = AskView(ASK2, ask("x", asked("x", "b"), incarnation="x-1"))
    client = ClientSide("consumer", failed=("b-1",), attempts=1, failed_ask=ASK1)

    found = decided(group("b", "y", state=GroupState(epoch=1, client=client), asks=(view,), failed_age_s=99.0))

    assert found.asking.made is not None and found.asking.made[1].leader == "b"


# ---- answers


def test_answer_is_adopted_whole_for_the_remaining_members() -> None:
    view = AskView(ASK1, ask("a", asked("a", "b"), reason="joined b"), **answer(a=P0, b=P1))

    found = decided(group("a", asks=(view,)))

    assert found.is_new_generation and found.state.generation == 1
    assert found.state.target == {"a": Target("a-1", {"a-0": frozenset({P0})})}
    assert found.state.client == ClientSide("consumer", ASK1)
    assert [command.ask for _, command in found.starts] == [ASK1]
    assert found.rebalance is not None and found.rebalance.trigger == "joined b"


def test_a_member_that_the_leader_left_out_is_in_the_target_and_idle() -> None:
    view = AskView(ASK1, ask("a", asked("a", "b")), **answer(a=P0))

    found = decided(group("a", "b", asks=(view,)))

    assert found.state.target["b"] == Target("b-1", {})
    assert "assigns partitions 1 to no member" in found.state.left_out["t"]


def test_a_newcomer_is_not_in_the_target_and_the_next_ask_is_for_it() -> None:
    view = AskView(ASK1, ask("a", asked("a")), **answer(a=P0))

    first = decided(group("a", "b", asks=(view,)))
    state = replace(first.state, state="Stable")
    second = decided(group("a", "b", state=state, asks=(replace(view, entries={}),)))

    assert "b" not in first.state.target and first.again_s == 0.0
    assert second.asking.made is not None and second.asking.made[1].reason == "joined b"


@pytest.mark.parametrize("what", ["a member came", "a member went", "metadata changed", "nothing"])
def test_a_group_is_not_stable_with_an_answer_that_is_outdated_when_it_is_adopted(what: str) -> None:
    names = ("a", "b", "c") if what == "a member came" else ("a",) if what == "a member went" else ("a", "b")
    one = AskView(ASK1, ask("a", asked("a", "b")), **answer(a=P0, b=P1))
    state = replace(adopted("a", "b"), client=ClientSide("consumer"))
    channels = {"a": replace(settled("a", P0), generation=2), "b": replace(settled("b", P1), generation=2)}
    snapshot = group(*names, asks=(one,), channels=channels, state=state)
    snapshot = replace(snapshot, owners=frozenset({P0, P1}))
    if what == "metadata changed":
        snapshot = replace(
            snapshot,
            members={
                **snapshot.members,
                "b": replace(snapshot.members["b"], registration=registration("b", digest="other")),
            },
        )

    found = decided(snapshot)

    assert found.is_new_generation and found.state.client is not None and found.state.client.ask == ASK1
    assert found.state.state == ("Stable" if what == "nothing" else "CompletingRebalance")


def test_an_adopted_answer_is_not_adopted_again() -> None:
    view = AskView(ASK1, ask("a", asked("a", "b")), **answer(a=P0, b=P1))
    channels = {"a": settled("a", P0), "b": settled("b", P1)}

    found = decided(
        group("a", "b", state=adopted("a", "b"), asks=(view,), channels=channels, owners=frozenset({P0, P1}))
    )

    assert not found.changes(adopted("a", "b"))


def test_answer_from_before_a_lost_state_is_not_adopted() -> None:
    view = AskView(ASK1, ask("a", asked("a")), **answer(a=P0))

    found = decided(group("a", state=GroupState(generation=4, epoch=1, marks=()), asks=(view,)))

    # The group has no leader's assignment, according to `state`: this may be an answer of any earlier leader.
    assert not found.is_new_generation
    assert found.asking.made is not None and found.asking.made[0] == ASK2
    assert found.state.client is not None and found.state.client.floor == ASK1


@pytest.mark.parametrize(
    ("below", "reason"),
    [
        ({"answer": Answer(error="ValueError: no")}, "its assignor 'p' failed: ValueError: no"),
        ({"problem": "it has 9 entries"}, "it has 9 entries"),
        ({**answer(a=P0), "answer": Answer(("x",), {"t": "id-t"}, {"t": frozenset({0, 1})})}, "names 'x'"),
        ({**answer(a=P0), "entries": {}}, "differ by 'a'"),
        (answer(a=TopicPartition("t", 9)), "assigns t-9"),
        (answer(a=TopicPartition("u", 0)), "assigns u-0"),
        (answer(a=P0, b=P0), "gives t-0 to b and to another thread"),
        (
            {**answer(a=P0), "entries": {"a": MemberAnswer({"b-0": frozenset({P0})})}},
            "names 'b-0', which is no thread of a",
        ),
        (
            {**answer(a=P0), "entries": {"a": MemberAnswer({"a-01": frozenset({P0})})}},
            "names 'a-01', which is no thread of a",
        ),
    ],
    ids=["error", "unreadable", "stranger", "half", "no partition", "no topic", "twice", "thread", "thread's number"],
)
def test_invalid_answer_fails_the_leader_and_changes_nothing(below: dict[str, Any], reason: str) -> None:
    view = AskView(ASK2, ask("a", asked("a", "b")), **below)
    channels = {"a": settled("a", P0), "b": settled("b", P1)}
    state = adopted("a", "b")

    found = decided(group("a", "b", state=state, asks=(view,), channels=channels, owners=frozenset({P0, P1})))

    assert found.state.state == "RebalanceFailed" and reason in (found.state.reason or "")
    assert (found.state.generation, found.state.target) == (state.generation, state.target)
    assert found.stops == () and found.starts == ()
    assert {name: command.option for name, command in found.asking.notices} == dict.fromkeys("ab", ASSIGNMENT_FAILED)


def test_recreated_topic_is_no_failure_of_the_leader() -> None:
    view = AskView(ASK1, ask("a", asked("a")), **answer(a=P0))
    snapshot = replace(group("a", asks=(view,)), topics={"t": Topic("t", "id-2", (0, 1))})

    found = decided(snapshot)

    assert not found.is_new_generation and not found.asking.has_failed
    assert found.asking.made is not None and (found.asking.made[1].leader, found.asking.made[1].outdated) == ("a", 1)


def test_leader_that_always_answers_for_other_topics_fails_eventually() -> None:
    view = AskView(ASK1, ask("a", asked("a"), outdated=5), **answer(a=P0))

    found = decided(replace(group("a", asks=(view,)), topics={}))

    assert found.asking.has_failed and "topic t does not exist" in (found.state.reason or "")


# ---- failures


def test_leader_that_times_out_is_followed_by_the_next_after_a_backoff() -> None:
    view = AskView(ASK1, ask("a", asked("a", "b")), age_s=30.0)
    commands = {"a": (assign(ASK1),)}

    failed = decided(group("a", "b", asks=(view,), commands=commands))
    waits = decided(group("a", "b", state=failed.state, asks=(view,), failed_age_s=0.1))
    after = decided(group("a", "b", state=failed.state, asks=(view,), failed_age_s=0.3))

    assert failed.state.client == ClientSide("consumer", failed=("a-1",), attempts=1, failed_ask=ASK1)
    assert [sent.command for _, sent in failed.withdrawn] == [assign(ASK1)]
    assert waits.state.state == "RebalanceFailed" and waits.asking.made is None and 0 < (waits.again_s or 0) <= 0.1
    assert after.asking.made is not None
    assert (after.asking.made[1].leader, after.asking.made[1].attempt) == ("b", 2)


def test_when_all_have_failed_the_first_is_asked_again() -> None:
    client = ClientSide("consumer", failed=("a-1", "b-1"), attempts=2, failed_ask=ASK2)
    view = AskView(ASK2, ask("b", asked("a", "b")))

    found = decided(group("a", "b", state=GroupState(epoch=1, client=client), asks=(view,), failed_age_s=99.0))

    assert found.asking.made is not None and found.asking.made[1].leader == "a"
    assert found.state.client == replace(client, failed=())


def test_request_whose_ask_failed_is_kept() -> None:
    client = {"failed": ("a-1",), "attempts": 1, "failed_ask": ASK2}
    asks = (
        AskView(ASK1, ask("a", asked("a")), **{**answer(a=P0), "entries": {}}),
        AskView(ASK2, ask("a", asked("a"), reason="a: topic u has changed"), answer=Answer(error="no")),
    )

    found = decided(
        group(
            "a", state=adopted("a", client=client), asks=asks, channels={"a": settled("a", P0)},
            owners=frozenset({P0}), failed_age_s=99.0,
        )
    )  # fmt: skip

    assert found.asking.made is not None and found.asking.made[1].reason == "a: topic u has changed"


def test_unread_failure_notice_is_sent_again_after_a_failover() -> None:
    notice = Command(ASSIGNMENT_FAILED, 1, 0, "a-1", ask=ASK1, reason="no")
    client = ClientSide("consumer", failed=("a-1",), attempts=1, failed_ask=ASK1)

    found = decided(group("a", epoch=2, state=GroupState(epoch=1, client=client), commands={"a": (notice,)}))

    assert [sent.command for _, sent in found.withdrawn] == [notice]
    assert found.asking.notices == (("a", replace(notice, epoch=2)),)


# ---- requests, topics, and removals


def test_request_of_a_leader_is_answered_by_an_ask_and_removed_with_it() -> None:
    view = AskView(ASK1, ask("a", asked("a")), **{**answer(a=P0), "entries": {}})
    request = SyncRequestView(4, "a: topic u has changed")
    channels = {"a": settled("a", P0)}

    found = decided(
        group(
            "a", state=adopted("a"), asks=(view,), channels=channels, owners=frozenset({P0}), sync_request=request
        )
    )  # fmt: skip

    assert found.asking.made is not None and found.asking.made[1].reason == request.reason
    assert found.asking.answered == request


def test_old_asks_are_removed_when_every_member_knows_a_later_one() -> None:
    asks = (
        AskView(ASK1, ask("a", asked("a")), **{**answer(a=P0), "entries": {}}),
        AskView(ASK2, ask("a", asked("a", "b")), **{**answer(a=P0, b=P1), "entries": {}}),
    )
    state = adopted("a", "b", view=ASK2)
    channels = {"a": settled("a", P0), "b": Channel("b-1")}

    waits = decided(group("a", "b", state=state, asks=asks, channels=channels, owners=frozenset({P0})))
    stable = decided(
        group(
            "a", "b", state=state, asks=asks, channels={**channels, "b": settled("b", P1)}, owners=frozenset({P0, P1})
        )
    )  # fmt: skip

    assert waits.state.state == "CompletingRebalance" and waits.removed_asks == ()
    assert stable.state.state == "Stable" and [view.name for view in stable.removed_asks] == [ASK1]


def test_unstable_group_keeps_only_the_asks_that_members_know() -> None:
    asks = tuple(
        AskView(f"ask-{number:010d}", ask("a", asked("a", "b")), **answer(a=P0, b=P1)) for number in range(1, 10)
    )
    out = AskView("ask-0000000010", ask("a", asked("a", "b", "c")), children=())
    channels = {"a": replace(settled("a", P0), ask="ask-0000000003"), "b": replace(settled("b", P1), ask="")}
    start = Command(START_FETCHER, 1, 1, "b-1", {"b-0": frozenset({P1})}, topics={"t": "id-t"}, ask="ask-0000000007")
    snapshot = group(
        "a",
        "b",
        "c",
        channels=channels,
        commands={"a": (assign("ask-0000000010", generation=1),), "b": (start,)},
        asks=(*asks, out),
        state=adopted("a", "b", view="ask-0000000009"),
    )

    found = decided(replace(snapshot, owners=frozenset({P0})))

    assert found.state.state == "CompletingRebalance"
    assert sorted(view.name[-2:] for view in found.removed_asks) == ["01", "02", "04", "05", "06", "08"]


def test_a_group_without_members_keeps_no_asks() -> None:
    view = AskView(ASK1, ask("a", asked("a")), **{**answer(a=P0), "entries": {}})

    found = decided(group(state=adopted("a"), asks=(view,)))

    assert found.state.state == "Empty" and found.state.client is None
    assert found.removed_asks == (view,)


# ---- other protocol types (rule 10)


def jobs(*names: str, **options: Any) -> Snapshot:
    registered = {name: registration(name, protocol_type="jobs") for name in names}
    return group(*names, registered={**registered, **options.pop("registered", {})}, **options)


def runs(name: str, view: str, life: int = 1) -> Channel:
    return Channel(f"{name}-{life}", 1, 1, "command-x", ask=view)


def job_state(*names: str, view: str, **options: Any) -> GroupState:
    target = {name: Target(f"{name}-1", {}, is_sent=options.pop("sent", True)) for name in names}
    return GroupState("Stable", 1, 1, "p", target, client=ClientSide("jobs", view), **options)


def job_ask(name: str, *members: str) -> AskView:
    reply = Answer(tuple(sorted(members)))
    entries = {member: MemberAnswer(member_state="eA==") for member in members}
    return AskView(name, ask("a", asked(*members), protocol_type="jobs"), reply, "", entries, ("answer",))


def test_new_answer_stops_members_with_an_earlier_one_before_any_member_starts() -> None:
    found = decided(
        jobs(
            "a", "b", state=job_state("a", view=ASK1), asks=(job_ask(ASK1, "a"), job_ask(ASK2, "a", "b")),
            channels={"a": runs("a", ASK1)},
        )
    )  # fmt: skip

    assert found.is_new_generation
    assert [(name, command.option) for name, command in found.stops] == [("a", STOP_FETCHER)]
    assert found.starts == () and found.state.state == "PreparingRebalance"


def test_start_waits_while_the_lease_of_an_evicted_member_may_run() -> None:
    mark = Mark("b", "b-1", frozenset(), 5000, "evicted")
    snapshot = jobs("a", state=job_state("a", view=ASK2, marks=(mark,)), asks=(job_ask(ASK2, "a"),))

    waits = decided(replace(snapshot, mark_age_s={("b", "b-1"): 4.9}))
    starts = decided(replace(snapshot, mark_age_s={("b", "b-1"): 5.0}))

    assert waits.starts == () and waits.state.reason == "the lease of b may still run"
    assert [(name, command.option) for name, command in starts.starts] == [("a", START_FETCHER)]
    assert starts.state.target["a"].is_sent


def test_member_lost_while_it_runs_partitions_has_all_of_them_marked() -> None:
    snapshot = jobs("a", "b", state=job_state("a", "b", view=ASK1), asks=(job_ask(ASK1, "a", "b"),),
                    channels={"a": runs("a", ASK1), "b": runs("b", ASK1)})  # fmt: skip
    members = {name: member for name, member in snapshot.members.items() if name != "b"}

    found = decided(replace(snapshot, members=members))

    assert [(mark.consumer, mark.partitions, mark.lease_ms) for mark in found.state.marks] == [("b", frozenset(), 5000)]


@pytest.mark.parametrize(("was_sent", "marked"), [(True, ["b"]), (False, [])])
def test_name_taken_over_is_marked_if_its_earlier_incarnation_was_sent_a_start(
    was_sent: bool, marked: list[str]
) -> None:
    state = job_state("a", "b", view=ASK1)
    state = replace(state, target={**state.target, "b": Target("b-1", {}, is_sent=was_sent)})
    again = {"b": registration("b", life=2, protocol_type="jobs")}
    members = {**asked("a"), **asked("b", life=2)}
    view = replace(job_ask(ASK2, "a", "b"), ask=ask("a", members, protocol_type="jobs"))

    found = decided(
        jobs(
            "a", "b", registered=again, state=state, asks=(job_ask(ASK1, "a", "b"), view),
            channels={"a": runs("a", ASK1), "b": Channel("b-2")},
        )
    )  # fmt: skip

    assert found.is_new_generation
    assert [mark.consumer for mark in found.state.marks] == marked


def test_lost_state_makes_one_mark_for_all_and_finds_running_members_by_channel() -> None:
    found = decided(
        jobs("a", "b", state=GroupState(epoch=1), channels={"a": runs("a", ASK1)}, asks=(job_ask(ASK1, "a"),))
    )

    assert [(mark.consumer, mark.lease_ms) for mark in found.state.marks] == [("unknown", 40_000)]
    assert found.state.target == {"a": Target("a-1", {}, is_sent=True)}
    assert not found.is_new_generation and found.starts == () and found.stops == ()
    assert found.asking.made is not None and found.asking.made[0] == ASK2


def test_member_with_an_unreadable_registration_blocks_every_other_start() -> None:
    snapshot = jobs(
        "a", "b", state=job_state("b", view=ASK2, sent=False), asks=(job_ask(ASK2, "b"),),
        channels={"a": runs("a", ASK1)},
    )  # fmt: skip
    members = {**snapshot.members, "a": Member("a", 10, None)}

    found = decided(replace(snapshot, members=members))

    assert found.starts == ()


def test_name_taken_over_while_its_stop_is_pending_is_marked() -> None:
    asks = (job_ask(ASK1, "a", "b"), job_ask(ASK2, "a", "b"))
    running = {"a": runs("a", ASK1), "b": runs("b", ASK1)}
    adopting = decided(jobs("a", "b", state=job_state("a", "b", view=ASK1), asks=asks, channels=running))
    again = {"a": registration("a", life=2, protocol_type="jobs")}

    found = decided(
        jobs(
            "a", "b", registered=again, state=adopting.state, asks=asks[1:],
            channels={"a": Channel("a-2"), "b": Channel("b-1", 1, 2)},
        )
    )  # fmt: skip

    assert [(name, command.option) for name, command in adopting.stops] == [("a", STOP_FETCHER), ("b", STOP_FETCHER)]
    assert [mark.consumer for mark in found.state.marks] == ["a"] and found.starts == ()


def test_failure_reason_of_a_leader_is_truncated_to_the_limit_of_the_state() -> None:
    view = AskView(ASK1, ask("a", asked("a")), Answer(error="x" * 4096))

    found = decided(group("a", asks=(view,)))

    assert GroupState.parse("state", found.state.to_bytes()) == found.state


def test_unreadable_thread_number_fails_its_leader_only() -> None:
    entries = {"a": MemberAnswer({"a-" + "9" * 5000: frozenset({P0})})}
    view = AskView(ASK1, ask("a", asked("a")), **{**answer(a=P0), "entries": entries})

    found = decided(group("a", asks=(view,)))

    assert found.asking.has_failed and "which is no thread of a" in (found.state.reason or "")


def test_notice_is_sent_again_beside_other_commands_and_beside_another_notice() -> None:
    notice = Command(ASSIGNMENT_FAILED, 1, 0, "a-1", ask=ASK1, reason="no")
    view = AskView(ASK2, ask("a", asked("a")), Answer(error="again"))
    client = ClientSide("consumer", failed=("a-1",), attempts=1, failed_ask=ASK1)

    found = decided(
        group(
            "a", epoch=2, state=GroupState(epoch=1, client=client), asks=(view,), commands={"a": (notice, assign(ASK2))}
        )
    )

    assert [command.ask for _, command in found.asking.notices] == [ASK1, ASK2]


def test_an_ask_that_does_not_fit_is_not_made_and_the_rest_of_the_turn_is_written() -> None:
    names = [f"{'n' * 240}{number:04d}" for number in range(1500)]
    snapshot = group(*names)
    gone = Channel("x-1", running={P0: 5}, topics={"t": "id-t"})
    channels = {**snapshot.channels, "x": ChannelView("x", 1, gone)}

    found = decided(replace(snapshot, channels=channels))

    assert found.asking.made is None and found.state.state == "RebalanceFailed"
    assert "an ask of 1500 members takes" in (found.state.reason or "")
    assert [end.view.consumer for end in found.ends] == ["x"]


def test_ask_names_in_a_channel_do_not_determine_the_next_number() -> None:
    found = decided(group("a", channels={"a": Channel("a-1", ask="ask-9999999999")}))

    assert found.asking.made is not None and found.asking.made[0] == ASK1
    named = decided(group("a", channels={"a": Channel("a-1", ask=ASK1)}))
    assert named.asking.made is not None and named.asking.made[0] == ASK2, "a member would take it for the one it knows"


def test_partitions_that_were_added_are_left_to_the_leader_for_a_while() -> None:
    view = AskView(ASK1, ask("a", asked("a")), **{**answer(a=P0), "entries": {}})
    options = {"state": adopted("a"), "asks": (view,), "channels": {"a": settled("a", P0)}, "owners": frozenset({P0})}
    grown = replace(group("a", **options), topics={"t": Topic("t", "id-t", (0, 1, 2))})  # type: ignore[arg-type]

    waits = decided(replace(grown, grown_age_s=1.0))
    asks = decided(replace(grown, grown_age_s=30.0))

    assert waits.asking.made is None and (waits.state.state, waits.again_s) == ("Stable", 29.0)
    assert asks.asking.made is not None and "has the partitions 0-2" in asks.asking.made[1].reason


def test_numbers_of_asks_continue_beyond_ten_digits() -> None:
    view = AskView("ask-9999999999", ask("a", asked("a")), Answer(error="no"))

    failing = decided(group("a", asks=(view,)))
    again = decided(replace(group("a", asks=(view,), state=failing.state), failed_age_s=60.0))

    assert again.asking.made is not None and again.asking.made[0] == "ask-10000000000"
    out = AskView(again.asking.made[0], again.asking.made[1])
    waits = group("a", asks=(view, out), state=again.state, commands={"a": (assign(out.name),)})
    waiting = decided(replace(waits, failed_age_s=60.0))
    assert waiting.asking.made is None and "is asked for an assignment" in (waiting.state.reason or "")


@pytest.mark.long
@pytest.mark.parametrize("count", [1, 4])
def test_an_answer_whose_start_does_not_fit_beside_the_state_fails_its_leader(count: int) -> None:
    """A start also names the id of each topic: it is larger than the entry that it comes from."""
    names = "abcd"[:count]
    topics = {f"topic-{number:05d}": Topic(f"topic-{number:05d}", "i" * 22, (0,)) for number in range(5000)}
    given = {
        name: [p for place, p in enumerate(sorted(topics)) if place % count == nth] for nth, name in enumerate(names)
    }
    entries = {
        name: MemberAnswer({f"{name}-0": frozenset(TopicPartition(topic, 0) for topic in some)})
        for name, some in given.items()
    }
    reply = Answer(tuple(names), {t: one.id for t, one in topics.items()}, {t: frozenset({0}) for t in topics})
    view = AskView(ASK1, ask("a", asked(*names)), reply, "", entries, ("answer",))
    snapshot = replace(group(*names, asks=(view,)), topics=topics)

    found = decided(snapshot)

    for step in steps(snapshot, found):
        assert len(with_state(snapshot, 0, step)) > 1
    assert found.asking.has_failed == (count == 1)


def test_failure_reason_is_truncated_by_its_size_in_bytes() -> None:
    found = decided(group("a", asks=(AskView(ASK1, ask("a", asked("a")), Answer(error="\U0001f600" * 1000)),)))

    assert found.state.reason is not None and len(json.dumps(found.state.reason)) <= 1002


def test_taken_seat_waits_for_the_longest_lease_since_the_last_one_is_unknown() -> None:
    state = job_state("a", "b", view=ASK1)
    static = registration("b", life=3, protocol_type="jobs", instance_id="b")
    members = {**asked("a"), "b": AskMember("seat-5", "d", 5000)}
    view = replace(job_ask(ASK1, "a", "b"), ask=ask("a", members, protocol_type="jobs"))
    snapshot = jobs(
        "a", "b", registered={"b": static}, state=state, asks=(view,),
        channels={"a": runs("a", ASK1), "b": Channel("b-3")},
    )  # fmt: skip

    found = decided(replace(snapshot, seats={"b": SeatView("b", 1, Seat(static, 10_000), czxid=5)}))

    assert [(mark.consumer, mark.lease_ms) for mark in found.state.marks] == [("b", 40_000)]


def test_evicted_member_with_no_declared_lease_is_waited_for_the_longest_lease() -> None:
    silent = replace(registration("b", protocol_type="jobs"), lease_ms=0, max_poll_interval_ms=1000)
    snapshot = jobs(
        "a", "b", registered={"b": silent}, state=job_state("a", "b", view=ASK1), asks=(job_ask(ASK1, "a", "b"),),
        channels={"a": runs("a", ASK1), "b": runs("b", ASK1)},
    )  # fmt: skip
    channels = {**snapshot.channels, "b": replace(snapshot.channels["b"], idle_s=2.0)}

    found = decided(replace(snapshot, channels=channels))

    assert [(mark.consumer, mark.lease_ms) for mark in found.state.marks] == [("b", 40_000)]


@pytest.mark.parametrize("others", [("b",), ()])
def test_name_taken_over_from_a_member_with_an_unreadable_registration_is_marked(
    others: tuple[str, ...],
) -> None:
    """Its earlier commands are kept when an answer without it is adopted, or all other members have left."""
    asks = (job_ask(ASK1, "a", "b"), *((job_ask(ASK2, "b"),) if others else ()))
    state = job_state("a", *others, view=ASK1)
    snapshot = jobs("a", *others, state=state, asks=asks, channels={"a": runs("a", ASK1)})
    unread = {**snapshot.members, "a": Member("a", 10, None)}
    before = decided(replace(snapshot, members=unread))
    again = {"a": registration("a", life=2, protocol_type="jobs")}

    found = decided(jobs("a", *others, registered=again, state=before.state, asks=asks, channels={"a": Channel("a-2")}))

    assert [mark.consumer for mark in found.state.marks] == ["a"] and found.starts == ()


def test_member_runs_until_the_first_answer_though_the_old_strategy_is_missing() -> None:
    state = replace(adopted("a"), strategy="somebodys-sticky", client=ClientSide("consumer"), generation=2)
    channels = {"a": replace(settled("a", P0), ask="")}

    found = decided(group("a", state=state, channels=channels, owners=frozenset({P0})))

    assert found.stops == () and found.asking.made is not None


def test_asks_with_more_children_than_a_turn_removes_are_removed_in_several() -> None:
    children = tuple(f"stray-{number:05d}" for number in range(2500))
    view = AskView(ASK1, ask("a", asked("a")), **{**answer(a=P0), "entries": {}, "children": children})
    snapshot = group(state=adopted("a"), asks=(view,))

    found = decided(snapshot)
    removed = [each.path for step in steps(snapshot, found) for each in step.operations if isinstance(each, Delete)]

    assert len(removed) == 2000 and found.again_s == 0.0
    assert not any(path.endswith(ASK1) for path in removed)


def test_member_that_reads_no_notice_is_not_sent_an_unbounded_number_of_them() -> None:
    notices = tuple(Command(ASSIGNMENT_FAILED, 1, 0, "a-1", ask=ASK1, reason=f"{n}") for n in range(10))
    view = AskView(ASK2, ask("a", asked("a")), Answer(error="again"))

    found = decided(group("a", asks=(view,), commands={"a": notices}))

    assert found.asking.has_failed and found.asking.notices == ()
