"""Member metadata of protocol type `consumer`: a member's subscription, for the leader.

    {"version":1,"topics":["a","b"],"threads":{"a":2},"pattern":"static","rack":"r1","user_data":"<base64>"}

`threads` has the topics with another number of threads than 1. `rack`, `user_data` and `threads` are optional. A reader
ignores unknown fields, and reads a higher version the same way.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zk_group.coordinator.zk.errors import BadData, UsageError
from zk_group.coordinator.zk.znodes.group_state import MAX_METADATA_BYTES
from zk_group.coordinator.zk.znodes.json_fields import Fields, compact
from zk_group.coordinator.zk.znodes.paths import MAX_NAME, is_name
from zk_group.coordinator.zk.znodes.records import PATTERNS, STATIC
from zk_group.coordinator.zk.znodes.topic_filter import GroupFilters, TopicFilter

MAX_THREADS = 10_000


@dataclass(frozen=True, slots=True)
class ConsumerMetadata:
    """A member's subscription, for the leader.

    :ivar subscription: topic -> threads, or for a wildcard one regular expression -> threads.
    :ivar pattern: `static`, `white_list` or `black_list`, as in the registration.
    :ivar rack: of the consumer, Kafka's `client.rack`; empty when unknown.
    :ivar user_data: the assignor's opaque bytes.
    :ivar version: of the metadata's format.
    """

    subscription: Mapping[str, int]
    pattern: str = STATIC
    rack: str = ""
    user_data: bytes = b""
    version: int = 1

    @classmethod
    def parse(cls, where: str, data: bytes) -> ConsumerMetadata:
        """
        :param where: the source of the metadata, for messages.
        :raises BadData: when the metadata is over 65,536 bytes or malformed, or its expression does not compile.
        """
        fields = Fields.parse(where, data, most=MAX_METADATA_BYTES)
        pattern = fields.text("pattern", STATIC)
        if pattern not in PATTERNS:
            raise fields.bad("pattern", "static, white_list or black_list")
        return cls(
            subscription=_subscription(fields, pattern),
            pattern=pattern,
            rack=fields.text("rack", "", most=MAX_NAME),
            user_data=_user_data(fields),
            version=fields.number("version", 1, least=1),
        )

    def to_bytes(self) -> bytes:
        """One line of JSON; equal metadata has equal bytes, independent of the order of its topics.

        :raises UsageError: when the metadata is over 65,536 bytes.
        """
        threads = {topic: count for topic, count in sorted(self.subscription.items()) if count != 1}
        values: dict[str, Any] = {"version": self.version, "topics": sorted(self.subscription)}
        values |= {"threads": threads} if threads else {}
        values["pattern"] = self.pattern
        values |= {"rack": self.rack} if self.rack else {}
        values |= {"user_data": b64encode(self.user_data).decode()} if self.user_data else {}
        data = compact(values)
        if len(data) > MAX_METADATA_BYTES:
            raise UsageError(f"member metadata of {len(data)} bytes, limit is {MAX_METADATA_BYTES}")
        return data

    @property
    def wildcards(self) -> list[tuple[str, str]]:
        """(`pattern`, expression) of a wildcard."""
        return [(self.pattern, text) for text in self.subscription] if self.pattern != STATIC else []

    def threads_in(self, topics: Iterable[str], filters: GroupFilters | None = None) -> dict[str, int]:
        """Topic -> threads of this member, for its subscribed ones of `topics`; a wildcard is resolved.

        :param filters: the wildcards of all members, each resolved once; None for this one alone.
        :raises BadData: when the expression does not compile, or does not fit beside the group's others.
        """
        if self.pattern == STATIC:
            return {topic: self.subscription[topic] for topic in topics if topic in self.subscription}
        ((text, threads),) = self.subscription.items()
        selected = (filters or GroupFilters(self.wildcards)).selected((self.pattern, text), topics)
        return {topic: threads for topic in topics if topic in selected}


def _subscription(fields: Fields, pattern: str) -> dict[str, int]:
    topics = fields.items("topics")
    if not all(isinstance(topic, str) for topic in topics):
        raise fields.bad("topics", "a list of strings")
    if pattern == STATIC and not all(map(is_name, topics)):
        raise fields.bad("topics", "a list of topic names")
    if pattern != STATIC:
        if len(topics) != 1:
            raise fields.bad("topics", "a list of exactly one expression")
        try:
            TopicFilter(pattern, topics[0])
        except BadData as error:
            raise BadData(f"{fields.where}: {error}") from error
    others = fields.mapping("threads")
    threads = {topic: others.get(topic, 1) for topic in topics}
    if not all(type(count) is int and 1 <= count <= MAX_THREADS for count in threads.values()):
        raise fields.bad("threads", f"an object topic -> number of threads from 1 to {MAX_THREADS}")
    return threads


def _user_data(fields: Fields) -> bytes:
    text = fields.text("user_data", "", most=MAX_METADATA_BYTES)
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise fields.bad("user_data", "base64") from error
