"""Coordinator-side strategies as client assignors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import pytest

from consumer.assignment.adapter import CoordinatorStrategy
from consumer.assignment.base import Assignment, Held
from consumer.assignment.metadata import ConsumerMetadata
from coordinator import assignors
from coordinator.assignors import RangeAssignor, Subscriber
from coordinator.zk.errors import RebalanceFailed
from coordinator.zk.znodes.partitions import TopicPartition
from tests.unit.strategies import STRATEGIES
from tests.unit.test_client_cluster import assigned_by, subscribes, texts


class Noting(RangeAssignor):
    """Records its input."""

    def __init__(self) -> None:
        self.members: list[Subscriber] = []
        self.topics: dict[str, Sequence[int]] = {}

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> assignors.Assignment:
        self.members, self.topics = list(subscribers), dict(topics)
        return super().assign(subscribers, topics)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_keeps_its_name_and_is_cooperative_when_it_is_not_eager(strategy: str) -> None:
    adapted = CoordinatorStrategy(STRATEGIES[strategy])

    assert adapted.name == strategy
    assert adapted.is_cooperative == (strategy == "cooperative-sticky")
    assert adapted.metadata(ConsumerMetadata({"t": 2})) == ConsumerMetadata({"t": 2}).to_bytes()


def test_strategy_gets_the_same_input_as_on_a_coordinator() -> None:
    noting, part = Noting(), TopicPartition("t", 1)
    held = Held(frozenset({part}), 4, {part: "a-1"}, "i1")
    metadata = ConsumerMetadata({"t": 2, "gone": 1}, user_data="é".encode())

    assigned_by(CoordinatorStrategy(noting), "t:2", {"a": metadata.to_bytes()}, members={"a": held})

    assert noting.members == [Subscriber("a", {"t": 2}, frozenset({part}), 4, "é", "i1", {part: "a-1"})]


def test_wildcards_are_resolved_and_empty_or_unsubscribed_topics_are_dropped() -> None:
    noting = Noting()
    metadata = {"a": ConsumerMetadata({"t.*": 1}, "white_list").to_bytes(), "b": subscribes("empty u")}

    assigned_by(CoordinatorStrategy(noting), "t1:1 t2:1 t3:0 u:1 v:1 empty:0", metadata)

    assert noting.topics == {"t1": (0,), "t2": (0,), "u": (0,)}
    assert [one.threads for one in noting.members] == [{"t1": 1, "t2": 1}, {"u": 1}]


def test_non_text_user_data_is_empty_for_a_strategy_that_reads_text() -> None:
    noting = Noting()

    assigned_by(CoordinatorStrategy(noting), "t:1", {"a": ConsumerMetadata({"t": 1}, user_data=b"\xff").to_bytes()})

    assert noting.members[0].user_data == ""


def test_a_member_with_unreadable_metadata_gets_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = assigned_by(
            CoordinatorStrategy(STRATEGIES["range"]), "t:2", {"a": subscribes("t"), "b": b"{", "c": b'{"topics":["("]}'}
        )

    assert texts(found) == {"a-0": "t-0 t-1"}
    assert found["b"] == found["c"] == Assignment({})
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("ignoring unreadable metadata: consumer='b' protocol=range reason=")


def test_every_member_has_an_assignment_including_idle_ones() -> None:
    found = assigned_by(CoordinatorStrategy(STRATEGIES["range"]), "t:1", {"a": subscribes("t"), "b": subscribes("t")})

    assert found == {"a": Assignment({"a-0": frozenset({TopicPartition("t", 0)})}), "b": Assignment({})}


def test_a_group_without_members_or_topics_has_an_empty_assignment() -> None:
    adapted = CoordinatorStrategy(STRATEGIES["sticky"])

    assert assigned_by(adapted, "t:1", {}) == {}
    assert assigned_by(adapted, "", {"a": subscribes("t")}) == {"a": Assignment({})}


def test_strategy_that_violates_its_contract_fails_the_assignment() -> None:
    class Forgets(RangeAssignor):
        name = "forgets"

        def assign(
            self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]
        ) -> assignors.Assignment:
            return {}

    with pytest.raises(RebalanceFailed, match="assignor forgets leaves out or invents 2 partitions"):
        assigned_by(CoordinatorStrategy(Forgets()), "t:2", {"a": subscribes("t")})
