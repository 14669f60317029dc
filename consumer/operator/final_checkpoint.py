"""The checkpoint that a member of a consistent region takes before it leaves: no record is processed twice."""

from __future__ import annotations

import logging

from coordinator.zk.errors import CoordinatorError

from ..membership.context import MemberContext
from ..membership.member import ConsumerMember
from .region import RegionMember

log = logging.getLogger(__name__)

SAVE_S = 10.0
"""Time limit of a leaving member's checkpoint."""
RETRY_S = 0.5
"""Delay of the next request after an aborted checkpoint."""


def save(context: MemberContext, member: ConsumerMember, region: RegionMember) -> None:
    """Request a checkpoint and wait until it is complete; a member without new records needs none.

    Without one the member leaves anyway: records processed since the last checkpoint are processed again.
    """
    if not region.is_ready:
        return
    try:
        problem = _take(context, member, region)
    except CoordinatorError as error:
        problem = str(error)
    if problem:
        log.warning(
            "leaving without checkpoint: group=%s consumer=%s region=%s since=%d reason=%s",
            context.config.group, context.consumer, context.config.region, region.saved, problem,
        )  # fmt: skip


def _take(context: MemberContext, member: ConsumerMember, region: RegionMember) -> str:
    """Why there was none; empty when it completed."""
    saved, resets = region.saved, region.resets
    now = request_at = context.runtime.monotonic()
    until = now + SAVE_S
    while (now := context.runtime.monotonic()) < until:
        store = member.store
        if store is None or not region.is_ready or region.resets != resets:
            return "the region is reset"
        if not region.is_in_checkpoint and now >= request_at:
            if region.has_failed(store):
                return "the region has failed"
            member.in_session(region.request_checkpoint)
            request_at = now + RETRY_S
        member.tend()
        if region.saved != saved:
            return ""
        context.wake.wait(0.01)
    return f"none was complete within {SAVE_S:g} s"
