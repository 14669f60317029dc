"""Leases and the sessions that they were granted under."""

from __future__ import annotations

from ..replay.verdict import Event, moment
from .base import Invariant, Rules

ROUNDING_S = 0.001


class SessionLeases(Rules):
    """No lease outlasts its session: ZooKeeper ends a silent session only after the lease has lapsed.

    A lease is 2/3 of the session timeout, from a request that the leader has seen.

    Sessions that their client closed, or that another client ended with the password, are not judged.

    :param role: whose leases.
    :param unjudged: so many of a session count from their own syncs: its owner writes under another fence.
    """

    events = ("lease", "closed")

    def __init__(self, invariant: Invariant, role: str, unjudged: int = 0) -> None:
        super().__init__(invariant)
        self._role = role
        self._unjudged = unjudged
        self._renewals: dict[object, int] = {}
        self._leases: dict[object, Event] = {}
        self._expired: dict[object, Event] = {}

    def on_lease(self, event: Event) -> None:
        if event["role"] != self._role:
            return
        session = event["session"]
        self._renewals[session] = self._renewals.get(session, 0) + 1
        if self._renewals[session] <= self._unjudged:
            return
        known = self._leases.get(session)
        if known is None or event["until"] > known["until"]:
            self._leases[session] = event
            self._judge(session)

    def on_closed(self, event: Event) -> None:
        if event.get("why") == "expired":
            self._expired[event["session"]] = event
            self._judge(event["session"])

    def _judge(self, session: object) -> None:
        lease, end = self._leases.get(session), self._expired.get(session)
        if lease is not None and end is not None and lease["until"] > end["at"] + ROUNDING_S:
            self.broken(
                f"{lease['who']} ({self._role}) had a lease until {moment(lease['until'])}, and its session expired at "
                f"{moment(end['at'])}",
                lease,
                end,
            )
