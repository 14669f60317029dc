"""Cooperative sticky: what sticky decides, carried out by stopping only what moves."""

from __future__ import annotations

from .sticky import StickyAssignor


class CooperativeStickyAssignor(StickyAssignor):
    """Kafka's `CooperativeStickyAssignor`. Its rounds are the plan's turns: a partition starts where it goes only once
    it has been stopped where it was, and what stays is fetched all the time."""

    name = "cooperative-sticky"
    is_eager = False
