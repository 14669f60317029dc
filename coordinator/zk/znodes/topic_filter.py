"""Wildcard subscriptions: Kafka's white and black lists, as regular expressions for a whole topic name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import BadData
from .names import shown
from .records import WHITE_LIST

MAX_PATTERN = 1000
MAX_WILDCARDS = 4
"""Consecutive repeats: `.*a.*a.*a.*b` takes 0.25 s for a name of 249 letters a, and each more 60 times that."""

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?(?:[:=!]|<[=!])|.", re.DOTALL)
"""An escaped character, a class in brackets, the beginning of a special group, or any other character."""
_REPEATS = ("*", "+", "{")
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


class TopicFilter:
    """Matches topics against a wildcard.

    As Kafka's `TopicFilter`: commas mean `|`, spaces and outer quotes are dropped, internal topics never match.

    :raises BadData: when the pattern does not compile, or could be slow to match.
    """

    def __init__(self, pattern: str, text: str) -> None:
        self.is_white_list = pattern == WHITE_LIST
        cleaned = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
        if len(cleaned) > MAX_PATTERN or is_costly(cleaned):
            raise BadData(
                f"the pattern {shown(text)} is too costly to match: use at most {MAX_WILDCARDS} repeats one after the "
                "other, and none within another or around alternatives"
            )
        try:
            self._expression = re.compile(cleaned)
        except (re.error, RecursionError, OverflowError) as error:
            raise BadData(f"the pattern {shown(text)} does not compile: {error}") from error

    def allows(self, topic: str) -> bool:
        """Whether the subscription includes `topic`."""
        matched = self._expression.fullmatch(topic) is not None
        return matched == self.is_white_list and topic not in INTERNAL_TOPICS


@dataclass
class _Group:
    """A group's repeats, or the whole expression's: of the current branch, and of the worst."""

    wildcards: int = 0
    most: int = 0
    is_plain: bool = True

    @property
    def worst(self) -> int:
        return max(self.most, self.wildcards)


def is_costly(expression: str) -> bool:
    """Whether matching could be slow: Python backtracks, and holds the GIL meanwhile.

    A repeated group must be plain, without repeats or alternatives of its own (`(a+)+` takes time that doubles with
    every letter), and no branch of the expression may have more than `MAX_WILDCARDS` repeats.
    """
    groups = [_Group()]
    tokens = _TOKEN.findall(expression)
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        group = groups[-1]
        if token.startswith("("):
            groups.append(_Group())
        elif token == ")" and len(groups) > 1:
            inner = groups.pop()
            if following in _REPEATS and not inner.is_plain:
                return True
            groups[-1].wildcards += inner.worst
            groups[-1].is_plain = groups[-1].is_plain and inner.is_plain
        elif token == "|":
            group.most, group.wildcards, group.is_plain = group.worst, 0, False
        elif token in _REPEATS or token == "?":
            group.wildcards += 1
            group.is_plain = False
    return groups[0].worst > MAX_WILDCARDS
