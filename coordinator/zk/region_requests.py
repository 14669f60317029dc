"""`request` below a consistent region: what operators and members ask the coordinator for."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BadData
from .fields import Fields, compact

CHECKPOINT = "checkpoint"
RESET = "reset"
FAIL = "fail"
REQUESTS = (CHECKPOINT, RESET, FAIL)


@dataclass(frozen=True, slots=True)
class RegionRequest:
    """`request` below a region: a checkpoint, a reset, or a member that cannot go on.

    :ivar sequence: of a reset: the cut to go back to; None for the one that the region stands on.
    :ivar by_application: a reset that counts for `max_consecutive_resets`.
    :ivar reset: of a member's: the reset that it is in; in another one it is of no use any more. 0 for any.
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
            fields.number("reset", 0),
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
    """Whether a request that stands gives way to `asked`.

    A checkpoint's does to a reset or a failure, one of an earlier reset to one of a later, and one that cannot be read.
    """
    try:
        standing = RegionRequest.parse(where, data)
    except BadData:
        return True
    if asked.what != CHECKPOINT and standing.what == CHECKPOINT:
        return True
    return 0 < standing.reset < asked.reset
