"""Wildcard subscriptions: Kafka's white and black lists, as regular expressions that a whole topic name must match."""

from __future__ import annotations

import re

from .errors import BadData
from .names import shown
from .records import WHITE_LIST

MAX_PATTERN = 1000
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""An escaped character, a class in brackets, or any other character."""
_REPEATS = ("*", "+", "{")
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


class TopicFilter:
    """Says which topics a wildcard means.

    As Kafka's `TopicFilter`: commas mean `|`, spaces and outer quotes are dropped, internal topics never match.

    :raises BadData: when the pattern does not compile, or could take for ever (a repeat within a repeat).
    """

    def __init__(self, pattern: str, text: str) -> None:
        self.is_white_list = pattern == WHITE_LIST
        cleaned = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
        if len(cleaned) > MAX_PATTERN or repeats_a_repeat(cleaned):
            raise BadData(f"the pattern {shown(text)} is too long or repeats a repeat; write it simpler")
        try:
            self._expression = re.compile(cleaned)
        except (re.error, RecursionError, OverflowError) as error:
            raise BadData(f"the pattern {shown(text)} does not compile: {error}") from error

    def allows(self, topic: str) -> bool:
        """Whether the subscription includes `topic`."""
        matched = self._expression.fullmatch(topic) is not None
        return matched == self.is_white_list and topic not in INTERNAL_TOPICS


def repeats_a_repeat(expression: str) -> bool:
    """Whether a group that holds a repeat is itself repeated, as in `(a+)+`: Python may match that for ever."""
    holds_repeat = [False]
    tokens = iter(_TOKEN.findall(expression))
    token = next(tokens, "")
    while token:
        following = next(tokens, "")
        if token == "(":
            holds_repeat.append(False)
        elif token == ")" and len(holds_repeat) > 1:
            inner = holds_repeat.pop()
            if inner and following in _REPEATS:
                return True
            holds_repeat[-1] = holds_repeat[-1] or inner
        elif token in _REPEATS:
            holds_repeat[-1] = True
        token = following
    return False
