"""Client-side assignment in one turn where sizes matter. All else is in `turns/asking.txt` and `jobs.txt`."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from coordinator.planning.membership import GroupRules
from coordinator.planning.plan import Plan, plan
from coordinator.planning.snapshot import Snapshot
from coordinator.rebalance.rebalancer import steps, with_state
from coordinator.zk.store import Delete
from coordinator.zk.znodes.group_state import Answer, GroupState, MemberAnswer
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import Topic
from tests.support.strategies import RANGE
from tests.support.turns import snapshot_of


def led(text: str) -> Snapshot:
    """A group of client-side assignment, with what `text` says."""
    common = "every wants=t offers=p lease=5000\ntopic t id-t 0,1\n"
    return snapshot_of(common + ("" if text.startswith("group") else "group 1/0 Empty type=consumer\n") + text)


def decided(snapshot: Snapshot) -> Plan:
    return plan(snapshot, RANGE, "", GroupRules(assignment_timeout_s=30.0))


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
    group = led("".join(f"member {name}\n" for name in names) + f"ask 1 p a members={','.join(names)}")
    view = replace(group.asks[0], answer=reply, entries=entries, children=("answer",))
    snapshot = replace(group, topics=topics, asks=(view,))

    found = decided(snapshot)

    for step in steps(snapshot, found):
        assert len(with_state(snapshot, 0, step)) > 1
    assert found.asking.has_failed == (count == 1)


def test_failure_reason_is_truncated_by_its_size_in_bytes() -> None:
    faces = "\U0001f600" * 1000

    found = decided(led(f"member a\nask 1 p a members=a error={faces}"))

    assert found.state.reason is not None and len(json.dumps(found.state.reason)) <= 1002


def test_failure_reason_of_a_leader_is_truncated_to_the_limit_of_the_state() -> None:
    found = decided(led(f"member a\nask 1 p a members=a error={'x' * 4096}"))

    assert GroupState.parse("state", found.state.to_bytes()) == found.state


def test_unreadable_thread_number_fails_its_leader_only() -> None:
    found = decided(led(f"member a\nask 1 p a members=a a-{'9' * 5000}=t-0"))

    assert found.asking.has_failed and "which is no thread of a" in (found.state.reason or "")


def test_an_ask_that_does_not_fit_is_not_made_and_the_rest_of_the_turn_is_written() -> None:
    members = "".join(f"member {'n' * 240}{number:04d}\n" for number in range(1500))

    found = decided(led(members + "member x gone runs=t-0"))

    assert found.asking.made is None and found.state.state == "RebalanceFailed"
    assert "an ask of 1500 members takes" in (found.state.reason or "")
    assert [end.view.consumer for end in found.ends] == ["x"]


def test_asks_with_more_children_than_a_turn_removes_are_removed_in_several() -> None:
    group = led("group 1/1 Stable p type=consumer ask=1\nmember a gone has=t-0\nask 1 p a members=a unread a-0=t-0")
    children = tuple(f"stray-{number:05d}" for number in range(2500))
    snapshot = replace(group, asks=(replace(group.asks[0], children=children),))

    found = decided(snapshot)
    removed = [each.path for step in steps(snapshot, found) for each in step.operations if isinstance(each, Delete)]

    assert len(removed) == 2000 and found.again_s == 0.0
    assert not any(path.endswith("ask-0000000001") for path in removed)
