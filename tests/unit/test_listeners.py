"""Listeners: their events, each once and before long work, and the groups that a topic concerns."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.listeners.listeners import Agenda, Event
from coordinator.listeners.topics import Interests
from coordinator.zk.znodes.records import Registration
from tests.unit.manual import Forever, ManualRuntime


def taken(agenda: Agenda, count: int) -> list[str]:
    return [agenda.take().kind for _ in range(count)]


def test_equal_changes_are_one_event() -> None:
    agenda = Agenda(ManualRuntime())
    for _ in range(3):
        agenda.put(Event("a"))
    agenda.put(Event("a", "of another group"))

    assert [agenda.take(), agenda.take()] == [Event("a"), Event("a", "of another group")]
    with pytest.raises(Forever):
        agenda.take()


def test_changes_wait_for_one_piece_of_long_work_at_most() -> None:
    agenda = Agenda(ManualRuntime())
    for number in range(4):
        agenda.put_long(Event(f"long{number}"))
    agenda.put(Event("a"))
    agenda.put(Event("b"))

    first = taken(agenda, 3)
    agenda.put(Event("c"))

    assert first in (["a", "b", "long0"], ["long0", "a", "b"])
    assert taken(agenda, 2).index("c") <= 1


def test_group_that_changes_all_the_time_delays_neither_others_nor_long_work() -> None:
    agenda = Agenda(ManualRuntime())
    agenda.put_long(Event("long"))
    agenda.put(Event("noisy"))
    order = []
    for turn in range(8):
        if turn == 2:
            agenda.put(Event("other"))
        order.append(event := agenda.take().kind)
        if event == "noisy":
            agenda.put(Event("noisy"))

    assert order.index("long") <= 2
    assert order.index("other") <= 5


def test_change_that_is_put_off_is_taken_at_its_time_and_once() -> None:
    runtime = ManualRuntime()
    agenda, began = Agenda(runtime), runtime.monotonic()
    agenda.put_at(Event("late"), began + 2)
    agenda.put_at(Event("late"), began + 1)
    agenda.put(Event("a"))

    assert (taken(agenda, 1), runtime.monotonic()) == (["a"], began)
    assert (taken(agenda, 1), runtime.monotonic()) == (["late"], began + 1)
    with pytest.raises(Forever):
        agenda.take()


# ---- the groups that a topic concerns (seed 000, `consumerGroupsPerTopic` and `groupsWithWildcardTopics`)


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
