"""What a mutation is: a patch of the product that lasts for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Patch = Callable[[], Any]
"""Makes a context manager."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """
    :ivar name: what is broken, for people and test names.
    :ivar rule: the rule that is taken away: a hole of the draft, or a section and number of `zk_paths.md`.
    :ivar patches: what to change.
    :ivar breaks: the invariants of which one shows it; `plan` for those of every plan, which is not written then.
    :ivar where: the stock profiles in which it is looked for first.
    :ivar also: a second rule that covers this one, taken away too: the product is right without it, as long as this
        one holds.
    :ivar covered_by: that second rule, for people.
    """

    name: str
    rule: str
    patches: tuple[Patch, ...]
    breaks: frozenset[str]
    where: tuple[str, ...]
    also: tuple[Patch, ...] = ()
    covered_by: str = ""

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


def apply(*patches: Patch) -> None:
    """For as long as this process lasts."""
    for make in patches:
        make().start()
