"""Znode data as the records of `zk_group.coordinator.zk`; what they refuse cannot be read (None): a manual edit."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.znodes.group_state import Answer, Ask, GroupState, MemberAnswer
from zk_group.coordinator.zk.znodes.records import (
    BegunRecord,
    Command,
    EpochRecord,
    OffsetRecord,
    OwnerRecord,
    PausedRecord,
    Registration,
    Seat,
    Topic,
    parsed_channel,
)
from zk_group.coordinator.zk.znodes.regions import Checkpoint, Contribution, Region
from zk_group.coordinator.zk.znodes.segments import Query, Segment

T = TypeVar("T")

MOST_TEXTS = 1000
"""Texts of a kind whose records are kept: those of registrations and of a thread's owner znodes are equal."""

_PARSE_TOPIC = Topic.parse


def _reader(parse: Callable[[str, bytes], T]) -> Callable[[str], T | None]:
    """
    :param parse: bound at import: a checker of a deliberately broken product must not use the broken parts.
    """

    @lru_cache(MOST_TEXTS)
    def read(text: str) -> T | None:
        try:
            return parse("", text.encode())
        except (BadData, ValueError):  # e.g. half a character
            return None

    return read


read_channel, read_command, read_state = _reader(parsed_channel), _reader(Command.parse), _reader(GroupState.parse)
read_registration, read_seat, read_owner = _reader(Registration.parse), _reader(Seat.parse), _reader(OwnerRecord.parse)
read_offset, read_begun = _reader(OffsetRecord.parse), _reader(BegunRecord.parse)
read_segment, read_query = _reader(Segment.parse), _reader(Query.parse)
read_epoch, read_paused = _reader(EpochRecord.parse), _reader(PausedRecord.parse)
read_ask, read_entry, read_answer = _reader(Ask.parse), _reader(MemberAnswer.parse), _reader(Answer.parse)
read_region, read_checkpoint = _reader(Region.parse), _reader(Checkpoint.parse)
read_contribution = _reader(Contribution.parse)


def read_topic(name: str, text: str, czxid: int) -> Topic | None:
    """A topic; None when it cannot be read."""
    return _reader(lambda where, data: _PARSE_TOPIC(where, name, data, czxid))(text)
