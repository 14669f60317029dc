"""`request` below a consistent region: requests of operators and members to the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadData
from .json_fields import Fields, compact

CHECKPOINT = "checkpoint"
RESET = "reset"
FAIL = "fail"
REQUESTS = (CHECKPOINT, RESET, FAIL)


@dataclass(frozen=True, slots=True)
class RegionRequest:
    """`request` below a region: a checkpoint, a reset, or a failed member.

    :ivar sequence: of a reset: the target cut; None for the region's current one.
    :ivar by_application: whether a reset counts for `max_consecutive_resets`.
    :ivar reset: of a member's request: the reset that it is in; a later reset voids the request. 0 for any.
    """

    what: str
    by: str = ""
    reason: str = ""
    sequence: int | None = None
    by_application: bool = False
    reset: int = 0

    @classmethod
    def parse(cls, where: str, data: bytes) -> RegionRequest:
        fields = Fields.parse(where, data)
        what = fields.text("what", most=64)
        if what not in REQUESTS:
            raise fields.bad("what", f"one of {', '.join(REQUESTS)}")
        return cls(
            what,
            fields.text("by", "", most=250),
            fields.text("reason", "", most=1000),
            fields.optional_number("sequence"),
            fields.values.get("by_application") is True,
            fields.count("reset", 0),
        )

    def to_bytes(self) -> bytes:
        return compact(
            {
                "what": self.what,
                "by": self.by,
                "reason": self.reason,
                "sequence": self.sequence,
                **({"by_application": True} if self.by_application else {}),
                **({"reset": self.reset} if self.reset else {}),
            }
        )


def is_replaced(where: str, data: bytes, asked: RegionRequest) -> bool:
    """Whether an existing request gives way to `asked`.

    A checkpoint request gives way to a reset or a failure, one of an earlier reset to a later, an unreadable one to
    any.
    """
    try:
        existing = RegionRequest.parse(where, data)
    except BadData:
        return True
    if asked.what != CHECKPOINT and existing.what == CHECKPOINT:
        return True
    return 0 < existing.reset < asked.reset
