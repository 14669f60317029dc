"""A channel's data for the checker: mostly a seal has moved some offsets, and nothing else has changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from coordinator.zk.znodes.records import parsed_channel
from coordinator.zk.znodes.regions import Progress

from .fast_json import NUMBERS, UNUSUAL, Partition, loads, partitions, scan, strictly

Offsets = Mapping[str, Mapping[str, int | None]]
"""Topic -> partition, as text -> next offset."""

_PARSE = parsed_channel
_RUNNING, _SEALED = '"running":', ',"sealed":'
_REST = re.compile(r'(?:,"sealed":"[^"\\\x00-\x1f]*")?(?:,"touched":[0-9]+)?\}')


@dataclass(slots=True, eq=False)
class ChannelData:
    """A channel's content.

    :ivar head: with `tail`, the text around `running` and before `sealed`.  :ivar raw: `running` as written.
    :ivar region: the member's progress in its consistent region.
    :ivar moved: partition -> changed offset, when nothing else has changed; None when more may have.
    """

    incarnation: str = ""
    epoch: int = 0
    generation: int = 0
    command: str = ""
    running: dict[Partition, int | None] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    ended: str | None = None
    refused: Set[Partition] = frozenset()
    ask: str = ""
    region: Progress | None = None
    head: str = ""
    tail: str = ""
    raw: Offsets = field(default_factory=dict)
    moved: dict[Partition, int | None] | None = None

    @property
    def is_live(self) -> bool:
        return self.ended is None and self.incarnation != ""

    def id_of(self, topic: str) -> str:
        """The id of a running topic."""
        return self.topics.get(topic, "")


def read_channel(path: str, text: str, before: ChannelData | None = None) -> ChannelData | None:
    """A channel; None when it cannot be read.

    :param before: the previous content: mostly, only offsets are new.
    """
    if not text:
        return ChannelData()
    try:
        if before is not None and before.head and text.startswith(before.head):
            offsets, end = scan(text, len(before.head))
            if text.startswith(before.tail, end) and _REST.fullmatch(text, end + len(before.tail)):
                return _moved(before, offsets)
        values = loads(text)
        found = ChannelData(
            values["incarnation"], values["epoch"], values["generation"], values["command"],
            _running(values["running"]), values["topics"], values["ended"],
            partitions(values["refused"]) if "refused" in values else frozenset(), values.get("ask", ""),
            _progress(values.get("region")),
        )  # fmt: skip
        if not (
            type(found.incarnation) is type(found.command) is type(found.ask) is str
            and type(found.epoch) is type(found.generation) is int
            and type(found.topics) is dict
            and (found.ended is None or type(found.ended) is str)
        ):
            raise TypeError(path)
        _remember(found, text, values["running"])
        return found
    except UNUSUAL:
        return read_strange_channel(path, text)


def read_strange_channel(path: str, text: str) -> ChannelData | None:
    """A channel of another release; None when it cannot be read."""
    return strictly(_channel, path, text)


def _running(values: Offsets) -> dict[Partition, int | None]:
    return {
        (topic, NUMBERS[key]): offset if offset is None else _checked(offset)
        for topic, offsets in values.items()
        for key, offset in offsets.items()
    }


def _progress(values: Mapping[str, int] | None) -> Progress | None:
    if values is None:
        return None
    found = Progress(values["reset"], values["ready"], values["drained"])
    if not all(type(each) is int for each in found):
        raise TypeError(values)
    return found


def _checked(offset: object) -> int:
    if type(offset) is not int or offset < 0:
        raise TypeError(offset)
    return offset


def _moved(before: ChannelData, offsets: Offsets) -> ChannelData:
    """The same with other offsets; where the same partitions run, `moved` has the changed ones."""
    raw = before.raw
    found = ChannelData(
        before.incarnation, before.epoch, before.generation, before.command, {}, before.topics, before.ended,
        before.refused, before.ask, before.region, before.head, before.tail, offsets,
    )  # fmt: skip
    if raw.keys() != offsets.keys() or any(offsets[topic].keys() != raw[topic].keys() for topic in raw):
        found.running = _running(offsets)
        return found
    found.moved = {
        (topic, NUMBERS[key]): offset if offset is None else _checked(offset)
        for topic, by_partition in offsets.items()
        if by_partition != raw[topic]
        for key, offset in by_partition.items()
        if offset != raw[topic][key]
    }
    found.running = before.running | found.moved
    return found


def _remember(found: ChannelData, text: str, running: object) -> None:
    """Cache the text around `running`: where it is equal, all other fields are."""
    begin = text.find(_RUNNING) + len(_RUNNING)
    again, end = scan(text, begin)
    cut = text.find(_SEALED, end)
    if again == running:
        found.raw = again
        found.head, found.tail = text[:begin], text[end : cut if cut >= 0 else len(text) - 1]


def _channel(path: str, data: bytes) -> ChannelData:
    found = _PARSE(path, data)
    return ChannelData(
        found.incarnation,
        found.epoch,
        found.generation,
        found.command,
        {(topic, number): offset for (topic, number), offset in found.running.items()},
        found.topics,
        found.ended,
        found.refused,  # ranges, where a member names a million
        found.ask,
        found.region,
    )
