"""A group's strategy by Kafka's rule: the one with the most votes among those that all members support. Pure.

Client-side assignment takes part in the vote: it wins when every member offers it and most prefer it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..assignors import Assignor
from ..zk.errors import RebalanceFailed
from ..zk.values import shown
from ..zk.znodes.group_state import CONSUMER, MAX_GROUP_METADATA_BYTES, MAX_METADATA_BYTES, ClientProtocols
from ..zk.znodes.regions import RegionMembership

ESTABLISHED, RETURNING, NEWCOMER = range(3)
"""Ranks of members: those with a target; static ones that return to theirs; all others."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The properties that a group's members share.

    :ivar is_client_side: whether a member decides by the strategy, not this node.
    :ivar region: the group's consistent region.
    """

    strategy: str = ""
    is_client_side: bool = False
    protocol_type: str = CONSUMER
    region: RegionMembership | None = None


class Offer(NamedTuple):
    """A strategy that a member supports. A client-side one need not be installed on this node."""

    name: str
    is_client_side: bool = False
    protocol_type: str = CONSUMER

    def __str__(self) -> str:
        if not self.is_client_side:
            return shown(self.name)
        kind = "" if self.protocol_type == CONSUMER else f"{shown(self.protocol_type)} "
        return f"{kind}{shown(self.name)} (client-side)"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that votes.

    :ivar protocols: the coordinator's strategies that it supports, in order of preference.
    :ivar rank: one of the three above.
    :ivar czxid: order of registration.
    :ivar client: its client-side assignment protocols.
    """

    consumer: str
    protocols: tuple[str, ...]
    rank: int
    czxid: int
    client: ClientProtocols | None = None

    @property
    def offers(self) -> tuple[Offer, ...]:
        """All that it supports, in order of preference."""
        here = tuple(Offer(name) for name in self.protocols)
        if self.client is None:
            return here
        there = tuple(Offer(name, True, self.client.protocol_type) for name in self.client.protocols)
        return there + here if self.client.is_preferred else here + there


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen strategy.

    :ivar offer: None without a candidate.
    :ivar refused: member -> the reason.  :ivar too_many: members over the maximum size.
    """

    offer: Offer | None
    refused: Mapping[str, str] = field(default_factory=dict)
    too_many: tuple[str, ...] = ()


def choose(
    candidates: Iterable[Candidate],
    current: str,
    installed: Mapping[str, Assignor],
    most: int = 2**31 - 1,
    is_client_side: bool = False,
) -> Choice:
    """Choose a group's strategy by its members' votes among those that all of them support.

    Members are admitted by rank, then in order of registration; one that leaves no common strategy, or exceeds the
    limits of metadata, is refused. Every admitted one votes for the side of its first common strategy; then, on the
    side with the most votes, for its first one there. Ties go to the current strategy, so that a rolling change
    switches once, then to the coordinator's side, then to the first name.

    :param current: the group's current strategy, empty without one; a client-side one if `is_client_side`.
    :param installed: the strategies of this node.
    :param most: maximum number of members.
    :raises RebalanceFailed: when this node has no strategy of any existing member: it then refuses none.
    """
    common: set[Offer] | None = None
    members: list[Candidate] = []
    refused: dict[str, str] = {}
    too_many: list[str] = []
    strange: Candidate | None = None
    room = MAX_GROUP_METADATA_BYTES
    for candidate in sorted(candidates, key=lambda candidate: (candidate.rank, candidate.czxid, candidate.consumer)):
        left = {offer for offer in candidate.offers if offer.is_client_side or offer.name in installed}
        left &= left if common is None else common
        size = candidate.client.metadata_bytes if candidate.client is not None else 0
        if size > min(MAX_METADATA_BYTES, room):
            refused[candidate.consumer] = _too_large(size, room)
        elif not left:
            strange = strange or (candidate if candidate.rank == ESTABLISHED else None)
            shared = [Offer(name) for name in installed] if common is None else common
            refused[candidate.consumer] = (
                f"it supports {_listed(candidate.offers)}, and the group's members with this node "
                f"{_listed(sorted(shared))}: give it one of those as well (protocols)"
            )
        elif len(members) >= most:
            too_many.append(candidate.consumer)
        else:
            common = left
            room -= size
            members.append(candidate)
    if strange is not None and all(candidate.rank != ESTABLISHED for candidate in members):
        raise RebalanceFailed(
            f"member {strange.consumer} supports {_listed(strange.offers)}, and this node has "
            f"{_listed([Offer(name) for name in sorted(installed)])}: install what is missing on every node"
        )
    if not members or common is None:
        return Choice(None, refused, tuple(too_many))
    sides = Counter(_first(candidate, common).is_client_side for candidate in members)
    side = min(sides, key=lambda side: (-sides[side], side != is_client_side, side))
    there = {offer for offer in common if offer.is_client_side is side}
    votes = Counter(_first(candidate, there) for candidate in members)
    held = current if side == is_client_side else ""
    return Choice(
        min(votes, key=lambda offer: (-votes[offer], offer.name != held, offer.name)), refused, tuple(too_many)
    )


def _first(candidate: Candidate, common: set[Offer]) -> Offer:
    return next(offer for offer in candidate.offers if offer in common)


def _too_large(size: int, room: int) -> str:
    if size > MAX_METADATA_BYTES:
        return f"its metadata has {size} bytes, and a member's may have {MAX_METADATA_BYTES}"
    return (
        f"with its {size} bytes of metadata the group would have {MAX_GROUP_METADATA_BYTES - room + size}, over the "
        f"{MAX_GROUP_METADATA_BYTES} that it may have"
    )


def _listed(offers: Sequence[Offer]) -> str:
    return ", ".join(str(offer) for offer in offers[:10]) or "none"
