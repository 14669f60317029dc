"""Wildcard subscriptions, as Kafka's `TopicFilter` understands them."""

from __future__ import annotations

import pytest

from coordinator.zk.errors import BadData
from coordinator.zk.znodes.topic_filter import INTERNAL_TOPICS, MAX_PATTERN, TopicFilter


def allows(text: str, topic: str, pattern: str = "white_list") -> bool:
    return TopicFilter(pattern, text).allows(topic)


def test_white_list_selects_fully_matching_topics() -> None:
    assert allows("flights", "flights")
    assert not allows("flights", "flights-2013")
    assert not allows("flights", "my-flights")
    assert allows("flights.*", "flights-2013")


def test_black_list_selects_all_other_topics() -> None:
    assert not allows("flights.*", "flights-2013", "black_list")
    assert allows("flights.*", "weather", "black_list")


def test_commas_separate_alternatives() -> None:
    assert allows("flights,weather", "flights")
    assert allows("flights,weather", "weather")
    assert not allows("flights,weather", "flights,weather")
    assert not allows("flights,weather", "planes", "white_list")
    assert not allows("flights,weather", "weather", "black_list")


def test_spaces_and_outer_quotes_are_dropped() -> None:
    assert allows(" 'flights , weather' ", "weather")
    assert allows('"flights"', "flights")


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize(("pattern", "text"), [("white_list", ".*"), ("black_list", "nothing"), ("white_list", "__.*")])
def test_internal_topics_never_match(topic: str, pattern: str, text: str) -> None:
    assert not allows(text, topic, pattern)


@pytest.mark.parametrize("text", ["(", "a)", "[a", "*", "a**", "(?P<n", "\\", "a" * (MAX_PATTERN + 1)])
def test_a_pattern_that_does_not_compile_is_bad_data_with_one_printable_line(text: str) -> None:
    with pytest.raises(BadData) as caught:
        TopicFilter("white_list", text)

    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text",
    ["(a+)+", "(a*)*", "(a+){2,}", "(ab+)*c", "(a+b?)+", "((a+))+", "(a+|b)+", "(b|a+)*", "(?:a{9})*", "((a|b+)c?)*"],
)
def test_a_repeat_within_a_repeat_is_refused(text: str) -> None:
    """Against `aaaa…!` the time of such a pattern doubles with every letter, and names are external input."""
    with pytest.raises(BadData):
        TopicFilter("white_list", text)


@pytest.mark.parametrize(
    "text",
    [".*", "a.*|b.*", "(a.*|b.*)", "(flights|weather)-[0-9]+", "(flights-[0-9]+)?", "a+b*", "(ab)*", "[a-z]{1,5}-x"],
)
def test_common_patterns_are_accepted(text: str) -> None:
    TopicFilter("white_list", text)


@pytest.mark.parametrize(
    "text", [".*a.*a.*a.*a.*b", "(a|b|ab)*c", "(.|a)*b", "a?a?a?a?a?aaaaa", "((a|b))+c", "(a?){9}b"]
)
def test_a_pattern_that_takes_long_for_a_name_that_almost_matches_is_refused(text: str) -> None:
    """While Python matches, nothing else in the process runs: a lease would lapse."""
    with pytest.raises(BadData, match="too costly to match"):
        TopicFilter("white_list", text)


@pytest.mark.parametrize(
    ("text", "topic", "other"),
    [
        ("(?:foo|bar)?-x.*", "foo-xy", "baz-xy"),
        ("(flights|weather)-[0-9]+", "weather-13", "planes-13"),
        (r"a\.b.*", "a.bc", "a-bc"),
        ("a.*,b.*,c.*,d.*,e.*,f.*", "fa", "ga"),
        (r"a\*b\*c\*d\*e\*f\*", "a*b*c*d*e*f*", "abcdef"),
        ("[*+?][*+?][*+?][*+?][*+?]", "*+?*+", "abcde"),
    ],
)
def test_common_patterns_match_the_intended_topics(text: str, topic: str, other: str) -> None:
    assert allows(text, topic)
    assert not allows(text, other)
