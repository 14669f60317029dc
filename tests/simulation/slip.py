"""What a slip is: a mutation before it is known in which world it is found."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.mutation import Patch


@dataclass(frozen=True, slots=True)
class Slip:
    """
    :ivar name: what is broken, for people and test names.
    :ivar rule: the section of zk_paths.md and the number there that it takes away.
    :ivar patches: what to change.
    :ivar breaks: the invariants of which one shows it.
    :ivar where: names of stock profiles in which it is looked for first.
    :ivar also: changes that leave the product right, and take away what would hide it.
    """

    name: str
    rule: str
    patches: tuple[Patch, ...]
    breaks: frozenset[str]
    where: tuple[str, ...]
    also: tuple[Patch, ...] = ()


def of(*names: str) -> frozenset[str]:
    """Invariants."""
    return frozenset(names)
