"""Wildcard subscriptions, as Kafka's `TopicFilter` understands them."""

from __future__ import annotations

import resource
from contextlib import suppress
from time import perf_counter

import pytest

from zk_group.consumer.config import Subscription
from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.znodes.topic_filter import INTERNAL_TOPICS, MAX_PATTERN, GroupFilters, TopicFilter


def peak_bytes() -> int:
    """The most memory that the process has had so far, of every library."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def allows(text: str, topic: str, pattern: str = "white_list") -> bool:
    return TopicFilter(pattern, text).allows(topic)


@pytest.mark.parametrize(
    ("text", "pattern", "allowed", "others"),
    [
        ("flights", "white_list", ["flights"], ["flights-2013", "my-flights"]),
        ("flights.*", "white_list", ["flights-2013"], []),
        ("flights.*", "black_list", ["weather"], ["flights-2013"]),
        ("flights,weather", "white_list", ["flights", "weather"], ["flights,weather", "planes"]),
        ("flights,weather", "black_list", [], ["weather"]),
        (" 'flights , weather' ", "white_list", ["weather"], []),
        ('"flights"', "white_list", ["flights"], []),
        ("(?:foo|bar)?-x.*", "white_list", ["foo-xy"], ["baz-xy"]),
        ("(flights|weather)-[0-9]+", "white_list", ["weather-13"], ["planes-13"]),
        (r"a\.b.*", "white_list", ["a.bc"], ["a-bc"]),
        ("a.*,b.*,c.*,d.*,e.*,f.*", "white_list", ["fa"], ["ga"]),
        (r"a\*b\*c\*d\*e\*f\*", "white_list", ["a*b*c*d*e*f*"], ["abcdef"]),
        ("[*+?][*+?][*+?][*+?][*+?]", "white_list", ["*+?*+"], ["abcde"]),
        (".*", "white_list", ["a"], []),
        ("a.*|b.*", "white_list", ["ax", "bx"], ["cx"]),
        ("(a.*|b.*)", "white_list", ["ax", "bx"], ["cx"]),
        ("(flights-[0-9]+)?", "white_list", ["flights-1"], ["flights-x"]),
        ("a+b*", "white_list", ["aab"], ["b"]),
        ("(ab)*", "white_list", ["abab"], ["aba"]),
        ("[a-z]{1,5}-x", "white_list", [], []),
    ],
)
def test_pattern_selects_topics_or_all_others(text: str, pattern: str, allowed: list[str], others: list[str]) -> None:
    assert [topic for topic in (*allowed, *others) if allows(text, topic, pattern)] == allowed


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize(("pattern", "text"), [("white_list", ".*"), ("black_list", "nothing"), ("white_list", "__.*")])
def test_internal_topics_never_match(topic: str, pattern: str, text: str) -> None:
    assert not allows(text, topic, pattern)


@pytest.mark.parametrize("text", ["(", "a)", "[a", "*", "a**", "(?P<n", "\\", "\ud800(", "a" * (MAX_PATTERN + 1)])
def test_a_pattern_that_does_not_compile_is_bad_data_with_one_printable_line(text: str) -> None:
    with pytest.raises(BadData) as caught:
        TopicFilter("white_list", text)

    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text", ["(?=a).*", "(?!a).*", "(?<=a)b", r"(a)\1", "(?>a)", "(?#a)b", "(?x)a", r"a\Z", "a{1001}"]
)
def test_pattern_of_earlier_releases_that_re2_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(BadData, match="does not compile"):
        TopicFilter("white_list", text)
    with pytest.raises(UsageError, match="does not compile"):
        Subscription({text: 1}, "white_list")


_LONGEST = ["a" * 249, "ab" * 124 + "!", "abba" * 62, "x" * 249]


@pytest.mark.parametrize(
    "text",
    [
        "(?#[)(.+)+1(?#])",
        "(?x)(.+#)\n)+1",
        "(){1000000000}t",
        "(" * 300 + "a" + ")*" * 300,
        "(a{30}){30}{30}",
        r"\pL{1000}",
        *["(a+)+", "(a*)*", "(ab+)*c", "(a+b?)+", "((a+))+", "(a+|b)+", "(b|a+)*", "((a|b+)c?)*"],
        *[".*a.*a.*a.*a.*b", "(a|b|ab)*c", "(.|a)*b", "(a?){500}a{400}", "((a?){30}){30}b", "(a|b)*a(a|b){300}c"],
        "(.|a.{50}|b.{50}|ab.{40})*q",
    ],
)
def test_no_pattern_costs_more_time_or_memory_than_its_share(text: str) -> None:
    """Python's `re` takes hours for some of these, or gigabytes; nothing else in the process runs meanwhile."""
    before = peak_bytes()
    started = perf_counter()

    with suppress(BadData):
        topics = TopicFilter("white_list", text)
        assert topics.size < 4_000
        for _ in range(10):
            for name in _LONGEST:
                topics.allows(name)

    assert perf_counter() - started < 1.0  # 40 names; 0.05 s at most on an idle machine
    assert peak_bytes() - before < 16_000_000


def test_different_patterns_of_a_group_have_a_bound_together() -> None:
    filters = GroupFilters([("white_list", f"{number}{'a' * 990}") for number in range(100, 200)])

    assert 10 <= len(filters.usable) <= 20
    with pytest.raises(BadData, match="too many different"):
        filters["white_list", f"199{'a' * 990}"]


def test_pattern_of_most_members_comes_first_and_counts_once() -> None:
    common = ("white_list", "z" * 999)
    others = [("white_list", f"{number}{'a' * 990}") for number in range(100, 200)]

    filters = GroupFilters([*others, *[common] * 1000])

    assert filters[common].allows("z" * 999)


def test_pattern_that_does_not_compile_leaves_the_others_of_its_group() -> None:
    filters = GroupFilters([("white_list", "("), ("black_list", "t.*")])

    assert filters.selected(("black_list", "t.*"), ["t1", "other"]) == {"other"}
    with pytest.raises(BadData, match="does not compile"):
        filters.selected(("white_list", "("), ["t1", "other"])
