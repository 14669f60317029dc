"""Kafka's words for why a consumer was refused: the `error` of an ended channel, and the consumer's errors."""

from __future__ import annotations

UNKNOWN_MEMBER_ID = "UnknownMemberId"
"""It is no member any more: evicted, removed, session over, not polled. It may come back as a new incarnation."""

FENCED_INSTANCE_ID = "FencedInstanceId"
"""A newer process has the name. This one must not come back under it."""

INCONSISTENT_GROUP_PROTOCOL = "InconsistentGroupProtocol"
"""None of its strategies is supported by every member of the group."""

GROUP_MAX_SIZE_REACHED = "GroupMaxSizeReached"
"""The group has as many members as it may have."""

INCONSISTENT_REGION = "InconsistentRegion"
"""The group is in another consistent region, or in none."""
