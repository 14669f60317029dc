"""Listeners: their events, each once and before long work, and the groups that a topic concerns."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.listeners.listeners import Agenda, Event
from coordinator.listeners.topics import Interests
from coordinator.zk.znodes.records import BLACK_LIST, WHITE_LIST, Registration
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


def registrations(text: str) -> list[Registration]:
    """A member for each word: `t,u` names topics, `+w.*` has a white list and `-w.*` a black list."""
    kinds = {"+": WHITE_LIST, "-": BLACK_LIST}
    return [
        Registration("1", {word[1:]: 1}, kinds[word[0]])
        if word[0] in kinds
        else Registration("1", dict.fromkeys(word.split(","), 1))
        for word in text.split()
    ]


@pytest.fixture
def interests() -> Interests:
    return Interests(ManualRuntime())


CONCERNED: dict[str, tuple[str, dict[str, str]]] = {
    "a topic concerns the groups whose members name it": ("g: t t,u; h: u", {"t": "g", "u": "g h"}),
    "topic without subscribers affects no group": ("g: t", {"other": ""}),
    "a wildcard concerns topics that do not exist yet": (
        "g: +flights.*; h: -flights.*",
        {"flights-2013": "g", "weather": "h"},
    ),
    "joiners topics and wildcards are added": ("g: t; g: t u +w.*", {"u": "g", "weather": "g"}),  # hole 8 of the seed
    "topic of a departed last subscriber affects no group": ("g: t u +w.*; g: u", {"t": "", "weather": "", "u": "g"}),
    "subscription changed in place is detected": ("g: t; g: u", {"t": "", "u": "g"}),
    "invalid pattern does not affect the others": ("g: +( t +w.*", {"t": "g", "weather": "g"}),
}
"""Updates of groups, and the groups that topics concern then."""


@pytest.mark.parametrize("title", CONCERNED)
def test_groups_that_a_topic_concerns(interests: Interests, title: str) -> None:
    updates, concerned = CONCERNED[title]

    for group, _, members in (update.strip().partition(": ") for update in updates.split(";")):
        interests.update(group, registrations(members))

    assert {topic: interests.groups_of(topic) for topic in concerned} == {
        topic: set(groups.split()) for topic, groups in concerned.items()
    }


def test_groups_are_known_by_topic_until_they_leave(interests: Interests) -> None:
    interests.update("g", registrations("t t,u"))
    interests.update("h", registrations("u"))
    assert interests.consumer_groups_per_topic == {"t": {"g"}, "u": {"g", "h"}}

    interests.update("g", registrations("t u +w.*"))
    interests.update("g", registrations("u"))
    assert interests.consumer_groups_per_topic == {"u": {"g", "h"}}
    assert interests.groups_with_wildcard_topics == {}


def test_removed_group_leaves_no_interest_behind(interests: Interests) -> None:
    interests.update("g", registrations("t +.*"))

    interests.forget("g")

    assert interests.consumer_groups_per_topic == {}
    assert interests.groups_with_wildcard_topics == {}


class Unlooked(dict[str, set[str]]):
    """Topics that nobody looks through."""

    def __iter__(self) -> Any:
        raise AssertionError("looks at every topic")

    items = keys = values = __iter__  # type: ignore[assignment]


def test_a_change_looks_only_at_the_topics_that_changed(interests: Interests) -> None:
    interests.update("big", registrations(",".join(f"invented-{number}" for number in range(1000))))
    interests.consumer_groups_per_topic = Unlooked(interests.consumer_groups_per_topic)

    interests.update("g", registrations("t"))
    interests.update("g", registrations("u"))
    interests.forget("g")

    assert interests.groups_of("u") == set()
    assert interests.groups_of("invented-7") == {"big"}


def test_equal_wildcards_of_many_members_are_matched_once(interests: Interests) -> None:
    interests.update("g", registrations("+fl.* " * 50))

    assert len(interests.groups_with_wildcard_topics["g"]) == 1
