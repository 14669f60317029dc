"""Operators' requests to the coordinator: paused groups, and a requested turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .json_fields import Fields, compact

LONGEST_BY = 250
LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class Pause:
    """The author, time (wall clock, milliseconds) and reason of a pause."""

    by: str
    since_ms: int
    reason: str | None = None

    @classmethod
    def read(cls, fields: Fields) -> Pause:
        return cls(
            fields.text("by", "", most=LONGEST_BY),
            fields.number("since_ms", 0),
            fields.optional_text("reason", most=LONGEST_REASON),
        )

    def to_json(self) -> dict[str, Any]:
        return {"by": self.by, "since_ms": self.since_ms, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class PausedRecord:
    """`/consumers/paused`: groups without turns.

    :ivar everything: set when every group is paused, whether or not in `groups`.
    """

    everything: Pause | None = None
    groups: Mapping[str, Pause] = field(default_factory=dict)

    @classmethod
    def parse(cls, where: str, data: bytes) -> PausedRecord:
        if not data:
            return cls()
        fields = Fields.parse(where, data)
        everything = Pause.read(Fields(f"{where}: all", fields.mapping("all"))) if fields.has("all") else None
        return cls(everything, fields.named("groups", Pause.read))

    def to_bytes(self) -> bytes:
        return compact(
            {
                "all": self.everything.to_json() if self.everything else None,
                "groups": {group: pause.to_json() for group, pause in sorted(self.groups.items())},
            }
        )

    def __bool__(self) -> bool:
        """Whether anything is paused."""
        return self.everything is not None or bool(self.groups)

    def of(self, group: str) -> Pause | None:
        """The pause of `group`, None when it is not paused."""
        return self.everything or self.groups.get(group)

    def with_pause(self, group: str | None, pause: Pause) -> PausedRecord:
        """The same with `group` paused (None: everything); an existing pause stays unchanged."""
        if group is None:
            return replace(self, everything=self.everything or pause)
        return replace(self, groups={group: pause, **self.groups})

    def without(self, group: str) -> PausedRecord:
        """The same without the pause of `group` itself."""
        return replace(self, groups={name: pause for name, pause in self.groups.items() if name != group})


NOTHING_PAUSED = PausedRecord()


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """`groups/[group]/request`: an operator's request for a turn; removed after the turn."""

    by: str
    since_ms: int
    reason: str | None = None

    @classmethod
    def parse(cls, where: str, data: bytes) -> TurnRequest:
        fields = Fields.parse(where, data)
        return cls(
            fields.text("by", "", most=LONGEST_BY),
            fields.number("since_ms", 0),
            fields.optional_text("reason", most=LONGEST_REASON),
        )

    def to_bytes(self) -> bytes:
        return compact({"by": self.by, "since_ms": self.since_ms, "reason": self.reason})
