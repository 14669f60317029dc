"""Kafka's error names: the `error` of an ended channel, and the consumer's errors."""

from __future__ import annotations

UNKNOWN_MEMBER_ID = "UnknownMemberId"
"""No longer a member: evicted, removed, session expired, not polled. It may rejoin as a new incarnation."""

FENCED_INSTANCE_ID = "FencedInstanceId"
"""A newer process has the member's name; the fenced one must not rejoin under it."""

INCONSISTENT_GROUP_PROTOCOL = "InconsistentGroupProtocol"
"""None of the member's strategies is supported by every member of the group."""

GROUP_MAX_SIZE_REACHED = "GroupMaxSizeReached"
"""The group has its maximum number of members."""

INCONSISTENT_REGION = "InconsistentRegion"
"""The group is in another consistent region, or in none."""
