"""Wildcard subscriptions: Kafka's white and black lists, as regular expressions for a whole topic name.

Expressions come from outside, and a match holds the process. RE2 takes time in proportion to the name and to the
expression's program, for every expression, in bounded memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from ..errors import BadData
from .paths import shown
from .records import WHITE_LIST

MAX_PATTERN: Final = 1000
MAX_PROGRAMS: Final = 20_000
"""Instructions of a group's expressions together: a name of 249 letters takes 20 ms at most (measured)."""
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})

MAX_MEMORY: Final = 64_000
"""Bytes of an expression, for its program and the states of its automata: about 1,000 instructions."""


class TopicFilter:
    """Matches topics against a wildcard, in RE2's syntax.

    As Kafka's `TopicFilter`: commas mean `|`, spaces and outer quotes are dropped, internal topics never match.

    :ivar size: instructions of its program.
    :raises BadData: when RE2 does not know the syntax, or the pattern is too long or needs too much memory.
    """

    def __init__(self, pattern: str, text: str) -> None:
        self.is_white_list = pattern == WHITE_LIST
        if len(text) > MAX_PATTERN:
            raise BadData(f"the pattern {shown(text)} has {len(text)} characters; the limit is {MAX_PATTERN}")
        cleaned = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
        engine, options = _engine()
        try:
            self._expression = engine.compile(cleaned.encode("utf-8", "surrogatepass"), options)
        except engine.error as error:
            raise BadData(f"the pattern {shown(text)} does not compile (RE2 syntax): {_reason(error)}") from error
        self.size = int(self._expression.programsize)

    def allows(self, topic: str) -> bool:
        """Whether the subscription includes `topic`."""
        matched = self._expression.fullmatch(topic.encode()) is not None
        return matched == self.is_white_list and topic not in INTERNAL_TOPICS


class GroupFilters:
    """The wildcards of a group's members, each different one compiled once.

    Their programs have at most `MAX_PROGRAMS` instructions together. Those with the most members come first; a pattern
    beyond the limit is refused like one that does not compile.

    :param wildcards: (`pattern`, expression) of each member with a wildcard.
    :ivar usable: the filters that may be matched.
    """

    def __init__(self, wildcards: Iterable[tuple[str, str]]) -> None:
        self._found: dict[tuple[str, str], TopicFilter | BadData] = {}
        self._selected: dict[tuple[str, str], frozenset[str]] = {}
        room = MAX_PROGRAMS
        ordered = sorted(Counter(wildcards).items(), key=lambda counted: (-counted[1], counted[0]))
        for (pattern, text), _ in ordered:
            found = _compiled(pattern, text)
            if isinstance(found, TopicFilter):
                room -= found.size
                if room < 0:
                    room += found.size
                    found = BadData(f"the pattern {shown(text)} does not fit: the group has too many different ones")
            self._found[pattern, text] = found
        self.usable = tuple(found for found in self._found.values() if isinstance(found, TopicFilter))

    def __getitem__(self, wildcard: tuple[str, str]) -> TopicFilter:
        """The filter of one member.

        :raises BadData: when the pattern does not compile, or does not fit beside the group's others.
        """
        found = self._found[wildcard]
        if isinstance(found, BadData):
            raise BadData(str(found))
        return found

    def selected(self, wildcard: tuple[str, str], topics: Iterable[str]) -> frozenset[str]:
        """The allowed ones of `topics`, which are the same in every call.

        :raises BadData: likewise.
        """
        if wildcard not in self._selected:
            allows = self[wildcard].allows
            self._selected[wildcard] = frozenset(filter(allows, topics))
        return self._selected[wildcard]


@cache
def _engine() -> tuple[Any, Any]:
    """RE2 and its options. Imported late: slots without wildcards run where it is not installed."""
    import re2

    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.log_errors = False
    options.never_capture = True  # groups would be located, name by name
    return re2, options


def _compiled(pattern: str, text: str) -> TopicFilter | BadData:
    try:
        return TopicFilter(pattern, text)
    except BadData as error:
        return error


def _reason(error: Exception) -> str:
    """RE2's message; it has bytes of the expression in it."""
    message = error.args[0] if error.args else ""
    return shown(message.decode("utf-8", "replace") if isinstance(message, bytes) else message).strip("'\"")
