"""How many examples a property is tried with: hundreds, or PROPERTY_EFFORT times as many.

Hypothesis takes milliseconds to draw a small group, plain Python a hundredth of that: so worlds are built from seeds.
It draws for tests that ask real servers, where its time makes no difference.
"""

from __future__ import annotations

import os
import string
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from random import Random
from typing import Any, TypeVar

from hypothesis import settings

T = TypeVar("T")

TIMES = float(os.environ.get("PROPERTY_EFFORT", "1"))
SEED = os.environ.get("PROPERTY_SEED", "")
ODD = '\x00\t\n\x1b\x7f"\\/%{}²٣\u0301\u2028\ufeff\uffff😀'
ANY = 3 * (string.printable + ODD) + "".join(map(chr, (*range(0x80, 0xD800, 997), *range(0xE000, 0x110000, 9973))))


def effort(examples: int) -> settings:
    """Settings for a property that Hypothesis draws for, and that is worth `examples` on every run."""
    return settings(max_examples=round(examples * TIMES))


class Draw(Random):
    """Choices from a seed.

    :ivar size: from 0 to 1: how much of its greatest length a collection may have.
    """

    size = 1.0

    def truth(self) -> bool:
        return self.random() < 0.5

    def another(self) -> Random:
        """For choices within a test."""
        return Random(self.getrandbits(32))

    def upto(self, most: int, least: int = 0) -> int:
        """A length."""
        return self.randint(least, least + round((most - least) * self.size))

    def usually(self, usual: T, *others: T) -> T:
        """`usual` four times of five."""
        return usual if self.random() < 0.8 else self.choice(others)

    def maybe(self, build: Callable[[Draw], T]) -> T | None:
        return build(self) if self.truth() else None

    def some(self, choices: Sequence[T], most: int | None = None, least: int = 0) -> list[T]:
        """Different ones of `choices`."""
        return self.sample(choices, self.upto(len(choices) if most is None else most, least))

    def many(self, build: Callable[[Draw], T], most: int, least: int = 0) -> list[T]:
        return [build(self) for _ in range(self.upto(most, least))]

    def text(self, most: int, alphabet: str = ANY, least: int = 0) -> str:
        return "".join(self.choices(alphabet, k=self.upto(most, least)))

    def number(self, most: int, least: int = 0) -> int:
        """One of any magnitude; often the least or the most."""
        some = least + self.getrandbits(self.randint(0, (most - least).bit_length())) % (most - least + 1)
        return self.choice((least, most, some, some, some, some))


def tried(examples: int, *builders: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with other last arguments for each example, in each run the same ones (of a PROPERTY_SEED).

    A builder takes a `Draw`, and parameters of the test by their names. Examples begin with the smallest, and after a
    failure more small ones are tried; the arguments that fail are in a note.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        parameters = list(signature(test).parameters.values())
        kept, names = parameters[: -len(builders)], [each.name for each in parameters[-len(builders) :]]
        takes = [[each.name for each in kept if each.name in signature(build).parameters] for build in builders]

        def built(number: int, size: float, given: dict[str, Any]) -> dict[str, Any]:
            case = " ".join(value for value in given.values() if isinstance(value, str))
            draw = Draw(f"{test.__name__} {case} {SEED} {number}")
            draw.size = size
            every = zip(names, builders, takes, strict=True)
            return {name: build(draw, **{taken: given[taken] for taken in has}) for name, build, has in every}

        def try_sizes(sizes: Iterable[float], given: dict[str, Any]) -> None:
            for number, size in enumerate(sizes):
                try:
                    test(**given, **built(number, size, given))
                except Exception as failure:
                    failure.add_note(f"Example {number} of size {size}: {built(number, size, given)}")
                    raise

        @wraps(test)
        def run(**given: Any) -> None:
            count = round(examples * TIMES)
            try:
                try_sizes((min(1.0, 2 * number / count) for number in range(count)), given)
            except Exception:
                try_sizes((step / 20 for step in range(20) for _ in range(examples)), given)
                raise

        run.__signature__ = signature(test).replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate
