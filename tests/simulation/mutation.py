"""What a mutation is: a patch of the product that lasts for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.profile import Profile

Patch = Callable[[], Any]
"""Makes a context manager."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """
    :ivar name: what is broken, for people and test names.
    :ivar hole: number of the draft's hole that it opens, 0 for a fence of the design.
    :ivar patches: what to change.
    :ivar breaks: the invariants of which one shows it.
    :ivar profile: where it is looked for.
    :ivar seed: the first seed from 0 at which it was found when this was written.
    :ivar also: changes that leave the product right in this profile, and take away what would hide the hole.
    """

    name: str
    hole: int
    patches: tuple[Patch, ...]
    breaks: frozenset[str]
    profile: Profile
    seed: int
    also: tuple[Patch, ...] = ()

    @contextmanager
    def applied(self, only_also: bool = False) -> Iterator[None]:
        """The product is broken meanwhile; with `only_also`, only what would hide it is taken away."""
        made = [make() for make in (self.also if only_also else (*self.also, *self.patches))]
        for one in made:
            one.start()
        try:
            yield
        finally:
            for one in reversed(made):
                one.stop()


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """`owner.name` becomes what `make` makes of it."""
    return lambda: patch.object(owner, name, make(owner.__dict__[name]))


def constant(owner: Any, name: str, value: Any) -> Patch:
    """`owner.name` is another value."""
    return lambda: patch.object(owner, name, value)


def nothing(*_: Any, **__: Any) -> None:
    """Does nothing."""
    return
