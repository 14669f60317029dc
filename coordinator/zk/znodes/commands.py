"""The commands of a channel, and their order.

Seed 000, "Coordinator Commands Format": an option and an ownership map. Epoch, generation and incarnation are
additions: they identify a stale command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import regions
from .group_state import MAX_OWNED, ownership_json, read_ownership
from .json_fields import Fields, compact
from .partitions import NONE, PartitionSet, partition_set, range_texts, united

STOP_FETCHER = "stop-fetcher"
START_FETCHER = "start-fetcher"
ASSIGN = "assign"
ASSIGNMENT_FAILED = "assignment-failed"
DRAIN = "drain"
OPTIONS = (STOP_FETCHER, START_FETCHER, ASSIGN, ASSIGNMENT_FAILED, DRAIN)
MAX_REASON = 1000


class Order(NamedTuple):
    """Position of a command among those of its channel."""

    epoch: int
    generation: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    :ivar threads: for `start-fetcher`, thread -> partitions: the consumer's complete assignment.
    :ivar partitions: for `stop-fetcher`, the partitions to revoke; empty means all.
    :ivar topics: the ids of its topics.
    :ivar ask: of `assign` and `assignment-failed`, and of a start whose target is the answer to one.
    :ivar reason: of `assignment-failed`.
    :ivar region: of a start and of `drain` in a consistent region.
    """

    option: str
    epoch: int
    generation: int
    incarnation: str
    threads: Mapping[str, PartitionSet] = field(default_factory=dict)
    partitions: PartitionSet = NONE
    topics: Mapping[str, str] = field(default_factory=dict)
    ask: str = ""
    reason: str = ""
    region: regions.Order | None = None

    @property
    def started(self) -> PartitionSet:
        """All partitions of a `start-fetcher`."""
        return united(self.threads.values())

    @classmethod
    def parse(cls, where: str, data: bytes) -> Command:
        """
        :raises BadData: when it is no command, or an unknown one.
        """
        fields = Fields.parse(where, data)
        option = fields.text("option", "")
        if option not in OPTIONS:
            raise fields.bad("option", f"{', '.join(OPTIONS[:-1])} or {OPTIONS[-1]}")
        return cls(
            option=option,
            epoch=fields.count("epoch"),
            generation=fields.count("generation"),
            incarnation=fields.text("incarnation", most=64),
            threads=read_ownership(fields),
            partitions=partition_set(fields.partitions("partitions", most=MAX_OWNED)),
            topics=fields.texts("topics"),
            ask=fields.text("ask", "", most=64),
            reason=fields.text("reason", "", most=MAX_REASON),
            region=fields.inner("region", regions.Order.read),
        )

    def to_bytes(self) -> bytes:
        named: dict[str, Any] = {}
        if self.option == START_FETCHER:
            named = {"ownershipMap": ownership_json(self.threads)}
        elif self.partitions:
            named = {"partitions": range_texts(self.partitions)}
        if self.option in (START_FETCHER, STOP_FETCHER):
            named["topics"] = dict(sorted(self.topics.items()))
        return compact(
            {
                "option": self.option,
                **named,
                **({"ask": self.ask} if self.ask else {}),
                **({"reason": self.reason} if self.reason else {}),
                **({"region": self.region.to_json()} if self.region is not None else {}),
                "epoch": self.epoch,
                "generation": self.generation,
                "incarnation": self.incarnation,
            }
        )
