"""Which assignment strategy a group uses, and which newcomers cannot have a part in it. Pure.

Kafka's rule: among the strategies that every member supports, the one that most of them prefer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .assignors import Assignor
from .zk.errors import RebalanceFailed
from .zk.names import shown

ESTABLISHED, RETURNING, NEWCOMER = range(3)
"""The ranks of members: those that the group has a target for; static ones that come back to theirs; all others."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member that wants a part in the choice.

    :ivar protocols: the strategies that it supports, the preferred first.
    :ivar rank: one of the three above.
    :ivar czxid: the order in which members have registered.
    """

    consumer: str
    protocols: tuple[str, ...]
    rank: int
    czxid: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What a group uses.

    :ivar name: None when there is nobody to choose for.
    :ivar refused: member -> why it can have no part in the group.  :ivar too_many: those for whom there is no room.
    """

    name: str | None
    refused: Mapping[str, str] = field(default_factory=dict)
    too_many: tuple[str, ...] = ()


def choose(
    candidates: Iterable[Candidate], current: str, known: Mapping[str, Assignor], most: int = 2**31 - 1
) -> Choice:
    """The strategy of a group, chosen by its members' votes among those that all of them support.

    Members are taken by their rank, and then in the order in which they came: who leaves no strategy in common is
    refused. Every other one votes for the first of its own that all support. The most votes win; between equal ones
    `current`, so that a rolling change switches once, then the name.

    :param current: what the group uses now, empty when nothing yet.
    :param known: the strategies that this node has.
    :param most: members that there may be.
    :raises RebalanceFailed: when this node has no strategy of any member that the group has: it refuses nobody then.
    """
    common = set(known)
    members: list[Candidate] = []
    refused: dict[str, str] = {}
    too_many: list[str] = []
    strange: Candidate | None = None
    for one in sorted(candidates, key=lambda one: (one.rank, one.czxid, one.consumer)):
        left = common.intersection(one.protocols)
        if not left:
            strange = strange or (one if one.rank == ESTABLISHED else None)
            refused[one.consumer] = (
                f"it supports {_listed(one.protocols)}, and the group's members with this node "
                f"{_listed(sorted(common))}: give it one of those as well (protocols)"
            )
        elif len(members) >= most:
            too_many.append(one.consumer)
        else:
            common = left
            members.append(one)
    if strange is not None and all(one.rank != ESTABLISHED for one in members):
        raise RebalanceFailed(
            f"member {strange.consumer} supports {_listed(strange.protocols)}, and this node has "
            f"{_listed(sorted(known))}: install what is missing on every node"
        )
    if not members:
        return Choice(None, refused, tuple(too_many))
    votes = Counter(next(name for name in one.protocols if name in common) for one in members)
    chosen = min(votes, key=lambda name: (-votes[name], name != current, name))
    return Choice(chosen, refused, tuple(too_many))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(shown(name) for name in names[:10]) or "none"
