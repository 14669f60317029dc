"""The groups that a topic concerns (seed 000, `consumerGroupsPerTopic` and `groupsWithWildcardTopics`)."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.listeners.topics import Interests
from coordinator.zk.znodes.records import Registration
from tests.unit.manual import ManualRuntime


def static(*topics: str) -> Registration:
    return Registration("1", {topic: 1 for topic in topics})


def white_list(pattern: str) -> Registration:
    return Registration("1", {pattern: 1}, "white_list")


def black_list(pattern: str) -> Registration:
    return Registration("1", {pattern: 1}, "black_list")


@pytest.fixture
def interests() -> Interests:
    return Interests(ManualRuntime())


def test_a_topic_concerns_the_groups_whose_members_name_it(interests: Interests) -> None:
    interests.update("g", [static("t"), static("t", "u")])
    interests.update("h", [static("u")])

    assert interests.groups_of("t") == {"g"}
    assert interests.groups_of("u") == {"g", "h"}
    assert interests.consumer_groups_per_topic == {"t": {"g"}, "u": {"g", "h"}}


def test_topic_without_subscribers_affects_no_group(interests: Interests) -> None:
    interests.update("g", [static("t")])

    assert interests.groups_of("other") == set()


def test_a_wildcard_concerns_topics_that_do_not_exist_yet(interests: Interests) -> None:
    interests.update("g", [white_list("flights.*")])
    interests.update("h", [black_list("flights.*")])

    assert interests.groups_of("flights-2013") == {"g"}
    assert interests.groups_of("weather") == {"h"}


def test_joiners_topics_and_wildcards_are_added(interests: Interests) -> None:
    """Hole 8 of the seed."""
    interests.update("g", [static("t")])

    interests.update("g", [static("t"), static("u"), white_list("w.*")])

    assert interests.groups_of("u") == {"g"}
    assert interests.groups_of("weather") == {"g"}


def test_topic_of_a_departed_last_subscriber_affects_no_group(interests: Interests) -> None:
    interests.update("g", [static("t"), static("u"), white_list("w.*")])

    interests.update("g", [static("u")])

    assert interests.groups_of("t") == set()
    assert interests.groups_of("weather") == set()
    assert interests.consumer_groups_per_topic == {"u": {"g"}}
    assert interests.groups_with_wildcard_topics == {}


def test_subscription_changed_in_place_is_detected(interests: Interests) -> None:
    interests.update("g", [static("t")])

    interests.update("g", [static("u")])

    assert (interests.groups_of("t"), interests.groups_of("u")) == (set(), {"g"})


def test_removed_group_leaves_no_interest_behind(interests: Interests) -> None:
    interests.update("g", [static("t"), white_list(".*")])

    interests.forget("g")

    assert interests.consumer_groups_per_topic == {}
    assert interests.groups_with_wildcard_topics == {}


def test_invalid_pattern_does_not_affect_the_others(interests: Interests) -> None:
    interests.update("g", [white_list("("), static("t"), white_list("w.*")])

    assert interests.groups_of("t") == {"g"}
    assert interests.groups_of("weather") == {"g"}


class Unlooked(dict[str, set[str]]):
    """Topics that nobody looks through."""

    def __iter__(self) -> Any:
        raise AssertionError("looks at every topic")

    items = keys = values = __iter__  # type: ignore[assignment]


def test_a_change_looks_only_at_the_topics_that_changed(interests: Interests) -> None:
    interests.update("big", [static(*(f"invented-{number}" for number in range(1000)))])
    interests.consumer_groups_per_topic = Unlooked(interests.consumer_groups_per_topic)

    interests.update("g", [static("t")])
    interests.update("g", [static("u")])
    interests.forget("g")

    assert interests.groups_of("u") == set()
    assert interests.groups_of("invented-7") == {"big"}


def test_equal_wildcards_of_many_members_are_matched_once(interests: Interests) -> None:
    interests.update("g", [white_list("fl.*") for _ in range(50)])

    assert len(interests.groups_with_wildcard_topics["g"]) == 1
