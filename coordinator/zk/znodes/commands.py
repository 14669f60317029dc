"""The commands of a channel, and their order.

Seed 000, "Coordinator Commands Format": an option and an ownership map. Epoch, generation and incarnation are
additions: they identify a stale command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from . import forms, regions
from .forms import Record
from .group_state import MAX_OWNED, OWNERSHIP
from .partitions import NONE, PartitionSet, united

STOP_FETCHER = "stop-fetcher"
START_FETCHER = "start-fetcher"
ASSIGN = "assign"
ASSIGNMENT_FAILED = "assignment-failed"
DRAIN = "drain"
OPTIONS = (STOP_FETCHER, START_FETCHER, ASSIGN, ASSIGNMENT_FAILED, DRAIN)
_OPTION = forms.text(default="").checked(OPTIONS.__contains__, f"{', '.join(OPTIONS[:-1])} or {OPTIONS[-1]}")
MAX_REASON = 1000


class Order(NamedTuple):
    """Position of a command among those of its channel."""

    epoch: int
    generation: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Command(Record):
    """One command.

    :ivar threads: for `start-fetcher`, thread -> partitions: the consumer's complete assignment.
    :ivar partitions: for `stop-fetcher`, the partitions to revoke; empty means all.
    :ivar topics: the ids of its topics.
    :ivar ask: of `assign` and `assignment-failed`, and of a start whose target is the answer to one.
    :ivar reason: of `assignment-failed`.
    :ivar region: of a start and of `drain` in a consistent region.
    """

    FIRST = ("option", "ownershipMap", "partitions", "topics", "ask", "reason", "region")

    option: Annotated[str, _OPTION]
    epoch: Annotated[int, forms.count()]
    generation: Annotated[int, forms.count()]
    incarnation: Annotated[str, forms.text(64)]
    threads: Annotated[Mapping[str, PartitionSet], OWNERSHIP] = field(default_factory=dict)
    partitions: Annotated[PartitionSet, forms.partitions(MAX_OWNED).optional] = NONE
    topics: Annotated[Mapping[str, str], forms.TEXTS] = field(default_factory=dict)
    ask: Annotated[str, forms.text(64).optional] = ""
    reason: Annotated[str, forms.text(MAX_REASON).optional] = ""
    region: Annotated[regions.Order | None, forms.inner(regions.Order).optional] = None

    @property
    def started(self) -> PartitionSet:
        """All partitions of a `start-fetcher`."""
        return united(self.threads.values())

    def to_json(self) -> dict[str, Any]:
        """Its fields, without those that its option has no use for."""
        unused = {"partitions"} if self.option == START_FETCHER else {"ownershipMap"}
        if self.option not in (START_FETCHER, STOP_FETCHER):
            unused.add("topics")
        return {key: value for key, value in Record.to_json(self).items() if key not in unused}
