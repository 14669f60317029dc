"""Groups whose assignment does not fit: what can be assigned is, and the rest is left out with the bound."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.support.turns import snapshot_of, with_facts
from zk_group.coordinator.assignors import Assignor
from zk_group.coordinator.assignors.registry import assignors
from zk_group.coordinator.planning.plan import Plan, plan
from zk_group.coordinator.planning.snapshot import Member, Snapshot
from zk_group.coordinator.planning.target import BEYOND, OVER_A_SESSION
from zk_group.coordinator.rebalance.group_reader import GroupZnodes
from zk_group.coordinator.rebalance.rebalancer import steps, with_state
from zk_group.coordinator.zk.errors import BadData, RebalanceFailed
from zk_group.coordinator.zk.store import MAX_COMMIT_BYTES, operation_bytes
from zk_group.coordinator.zk.znodes.group_state import (
    COMPLETING,
    MAX_BYTES,
    REST,
    MemberAnswer,
    bounded,
    first_of,
    keys_of,
    partitions_of,
)
from zk_group.coordinator.zk.znodes.partitions import NONE, TopicPartition
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import WHITE_LIST, Topic

pytestmark = pytest.mark.long

INSTALLED = assignors()


def a_group(
    members: int, partitions: int, strategy: str = "range", subscription: Mapping[str, int] | None = None
) -> Snapshot:
    """New members of a group, and a topic."""
    wants = ",".join(subscription or ("t",))
    group = f"group 1/0 Empty\ntopic t id 0-{partitions - 1}\n"
    registered = (f"member consumer-{number:03} life={number:032x}\n" for number in range(members))
    return snapshot_of(f"{group}every wants={wants} protocols={strategy}\n{''.join(registered)}")


def fits(snapshot: Snapshot, decided: Plan) -> None:
    """Every multi of the turn is within ZooKeeper's limits."""
    for nth, step in enumerate(steps(snapshot, GroupZnodes(0), decided)):
        assert sum(map(operation_bytes, with_state(GroupPaths(snapshot.group), nth, step))) <= MAX_COMMIT_BYTES


def assigned_of(decided: Plan) -> frozenset[TopicPartition]:
    return frozenset().union(*(target.partitions for target in decided.state.target.values()))


def decided_of(snapshot: Snapshot, installed: Mapping[str, Assignor] = INSTALLED) -> Plan:
    decided = plan(snapshot, installed)
    fits(snapshot, decided)
    return decided


@pytest.mark.parametrize("count", [6_000, 9_000, 15_000, 100_000])
def test_one_member_gets_what_its_session_may_own_and_the_rest_is_left_out(count: int) -> None:
    decided = decided_of(a_group(1, count))

    assigned, left_out = assigned_of(decided), partitions_of(decided.state.left_out)
    assert len(assigned) >= 6_000
    assert assigned | left_out.keys() == {TopicPartition("t", number) for number in range(count)}
    assert set(left_out.values()) <= {OVER_A_SESSION}
    assert "256000 bytes of owner paths" in OVER_A_SESSION


@pytest.mark.parametrize("strategy", ["round-robin", "cooperative-sticky"])
def test_a_target_over_a_znodes_size_is_cut_and_stays_the_same(strategy: str) -> None:
    snapshot = a_group(300, 95_000, strategy)

    decided = decided_of(snapshot)

    assigned, left_out = assigned_of(decided), partitions_of(decided.state.left_out)
    assert decided.state.state == COMPLETING
    assert len(assigned) > 60_000
    assert assigned | left_out.keys() == {TopicPartition("t", number) for number in range(95_000)}
    assert set(left_out.values()) <= {BEYOND}
    again = decided_of(replace(snapshot, state=decided.state))
    assert not again.is_new_generation
    assert again.state.target == decided.state.target


def test_range_assigns_a_hundred_thousand_partitions_of_300_members() -> None:
    decided = decided_of(a_group(300, 100_000))

    assert len(assigned_of(decided)) == 100_000
    assert decided.state.left_out == {}


def of_many_topics(members: int, topics: int, partitions: int, strategy: str, invented: int = 0) -> Snapshot:
    """New members of a group, each of which subscribes to all of its topics, and to some that do not exist."""
    names = [f"w{number:05}-{'x' * 13}" for number in range(topics)]
    numbers = tuple(range(partitions))
    unknown = [f"invented-{number:05}" for number in range(invented)]
    snapshot = a_group(members, 1, strategy, dict.fromkeys([*names, *unknown], 1))
    return with_facts(snapshot, topics={name: Topic(name, f"id-{name}", numbers) for name in names})


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(a_group(2, 20_000), id="more than their sessions may own"),
        pytest.param(of_many_topics(40, 1500, 10, "cooperative-sticky"), id="few of each topic"),
        pytest.param(of_many_topics(40, 1500, 10, "cooperative-sticky", 1000), id="behind topics that do not exist"),
        pytest.param(of_many_topics(3, 400, 60, "range"), id="both"),
    ],
)
def test_what_is_left_out_is_the_same_in_each_turn_with_its_reason(snapshot: Snapshot) -> None:
    decided = decided_of(snapshot)
    assert decided.state.left_out
    for _ in range(2):
        again = decided_of(replace(snapshot, state=decided.state))
        assert not again.is_new_generation
        assert again.state.left_out == decided.state.left_out


def test_a_target_is_cut_also_where_most_partitions_take_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.coordinator.planning.target.LEAST_BESIDE", 500)
    monkeypatch.setattr("zk_group.coordinator.planning.target.ROOM_BYTES", 2_780)

    decided = plan(a_group(20, 1000), INSTALLED)

    assert len(assigned_of(decided)) >= 10
    assert set(decided.state.left_out.values()) == {BEYOND}


def test_a_member_named_as_a_partition_does_not_hide_that_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zk_group.coordinator.planning.target.LEAST_BESIDE", 500)
    monkeypatch.setattr("zk_group.coordinator.planning.target.ROOM_BYTES", 5_000)
    snapshot = of_many_topics(4, 60, 2, "round-robin")
    decided = decided_of(snapshot)
    first = first_of(decided.state.left_out, BEYOND)
    stray = Member(str(first), 1, None)

    again = decided_of(
        with_facts(snapshot, state=decided.state, registered={**snapshot.members.registered, stray.consumer: stray})
    )

    assert first is not None
    assert first_of(again.state.left_out, BEYOND) == first


def test_a_cut_target_grows_when_a_member_has_left() -> None:
    snapshot = a_group(300, 95_000, "round-robin")
    before = decided_of(snapshot)
    left = {name: member for name, member in snapshot.members.registered.items() if name < "consumer-050"}
    channels = {name: snapshot.members.channels[name] for name in left}

    after = decided_of(with_facts(snapshot, state=before.state, registered=left, channels=channels))

    assert after.is_new_generation
    assert len(assigned_of(after)) >= len(assigned_of(before))


def test_members_and_topics_beyond_the_state_fail_before_the_assignor_is_asked() -> None:
    snapshot = a_group(1, 1, subscription={"w.*": 1})
    member = snapshot.members.registered["consumer-000"]
    assert member.registration is not None
    wild = replace(member, registration=replace(member.registration, pattern=WHITE_LIST))
    topics = {f"w{number}": Topic(f"w{number}", f"{number:036}", (0,)) for number in range(10_000)}
    asked: list[str] = []

    class Counted(type(INSTALLED["range"])):  # type: ignore[misc]
        def assign(self, *arguments: Any) -> Any:
            asked.append("assign")
            return super().assign(*arguments)

    with pytest.raises(RebalanceFailed, match="1 members and their 10000 topics take"):
        plan(with_facts(snapshot, registered={"consumer-000": wild}, topics=topics), {"range": Counted()})

    assert asked == []


def test_state_and_start_of_a_member_of_many_long_topics_fit_into_a_multi() -> None:
    names = [f"{number:04}{'x' * 60}" for number in range(1800)]
    topics = "".join(f"topic {name} {'i' * 22} 0\n" for name in names)
    snapshot = snapshot_of(f"group 1/0 Empty\n{topics}member c1 wants={','.join(names)}\n")

    fits(snapshot, decided := decided_of(snapshot))

    assert decided.starts


def test_invented_topics_and_unreadable_members_do_not_fill_the_state() -> None:
    snapshot = a_group(2, 4, subscription={"t": 1, **{f"invented-{number:05}": 1 for number in range(10_000)}})
    stray = {f"stray-{number}": Member(f"stray-{number}", 1, None) for number in range(20_000)}

    decided = decided_of(with_facts(snapshot, registered={**snapshot.members.registered, **stray}))

    assert len(assigned_of(decided)) == 4
    assert len(decided.state.to_bytes()) < 2 * MAX_BYTES + 10_000
    assert decided.state.left_out[REST].endswith(" more are left out")


def test_a_few_partitions_have_a_key_each_and_many_have_ranges() -> None:
    few = [TopicPartition("t", number) for number in range(3)]
    many = [TopicPartition("u", number) for number in (*range(20), 30)]

    keys = keys_of([*many, *few], "why")

    assert keys == {"t-0": "why", "t-1": "why", "t-2": "why", "u(0-19,30)": "why"}
    assert partitions_of(keys) == dict.fromkeys(many, "why")
    assert keys_of(NONE, "why") == {}


@pytest.mark.parametrize("key", ["t", "t-1", "t(", "t(x)", "t(1", "(1)", "t(5-1)", "../x(1)", "t(0-9999999)", "*"])
def test_other_keys_name_no_partitions_by_ranges(key: str) -> None:
    assert partitions_of({key: "why"}) == {}


def test_ranges_of_a_hostile_state_take_no_memory_out_of_proportion() -> None:
    assert len(partitions_of({f"t{number}(0-999999)": "why" for number in range(1000)})) <= 2_000_000


def test_reasons_within_their_bytes_are_all_kept() -> None:
    reasons = {f"c{number}": "why" for number in range(100)}

    assert bounded(reasons) == reasons


def test_number_of_reasons_without_an_entry_is_kept_when_they_are_bounded_again() -> None:
    members = {f"m{number:04}": "its registration cannot be read" + "x" * 100 for number in range(400)}
    topics = {f"t{number:04}": "no such topic (yet)" + "x" * 100 for number in range(400)}

    found = bounded({**members, **topics}, topics["t0000"])

    assert found[REST] == f"{801 - len(found)} more are left out"
    assert bounded({**members, **found}, topics["t0000"]) == found


def test_reason_that_is_too_long_for_the_state_hides_no_other() -> None:
    assert bounded({"a": "x" * MAX_BYTES, "b": "why"}) == {REST: "1 more are left out", "b": "why"}


def test_a_complaint_shows_the_beginning_of_a_fields_name() -> None:
    record = {"version": 1, "protocol": "lag", "ownershipMap": {"\U000d59b8" * 1000: -1}}

    with pytest.raises(BadData) as bad:
        MemberAnswer.parse("where", json.dumps(record).encode())

    assert str(bad.value).startswith("where: ownershipMap: field '\\U000d59b8")
    assert len(str(bad.value)) < 2000
