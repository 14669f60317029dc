"""`request` below a consistent region: requests of operators and members to the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..errors import BadData
from . import forms
from .forms import Record

CHECKPOINT = "checkpoint"
RESET = "reset"
FAIL = "fail"
REQUESTS = (CHECKPOINT, RESET, FAIL)


@dataclass(frozen=True, slots=True)
class RegionRequest(Record):
    """`request` below a region: a checkpoint, a reset, or a failed member.

    :ivar sequence: of a reset: the target cut; None for the region's current one.
    :ivar by_application: whether a reset counts for `max_consecutive_resets`.
    :ivar reset: of a member's request: the reset that it is in; a later reset voids the request. 0 for any.
    """

    what: Annotated[str, forms.text(64).checked(REQUESTS.__contains__, f"one of {', '.join(REQUESTS)}")]
    by: Annotated[str, forms.text(250)] = ""
    reason: Annotated[str, forms.text(1000)] = ""
    sequence: Annotated[int | None, forms.OPTIONAL_NUMBER] = None
    by_application: Annotated[bool, forms.FLAG.optional] = False
    reset: Annotated[int, forms.count().optional] = 0


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
