"""`/consumers/turn_times`: what the groups have cost the elected node lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .json_fields import Fields, compact

MOST_GROUPS = 100


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """Milliseconds of turns per second of each group that took 10 and more, `MOST_GROUPS` at most."""

    epoch: int
    groups: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, where: str, data: bytes) -> TurnTimes:
        fields = Fields.parse(where, data)
        numbers = Fields(f"{where}: groups", fields.mapping("groups"))
        return cls(fields.count("epoch"), {group: numbers.number(group) for group in numbers.values})

    def to_bytes(self) -> bytes:
        return compact({"epoch": self.epoch, "groups": dict(sorted(self.groups.items()))})
