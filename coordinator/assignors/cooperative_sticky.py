"""Cooperative sticky: the sticky assignment, with incremental revocation."""

from __future__ import annotations

from .sticky import StickyAssignor


class CooperativeStickyAssignor(StickyAssignor):
    """Kafka's `CooperativeStickyAssignor`. Its rounds are the plan's turns: a moved partition starts once its previous
    owner has stopped it, and unmoved ones are fetched without a break."""

    name = "cooperative-sticky"
    is_eager = False
