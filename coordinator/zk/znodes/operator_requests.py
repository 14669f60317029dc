"""Operators' requests to the coordinator: paused groups, and a requested turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from . import forms
from .forms import Record

LONGEST_BY = 250
LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True)
class Pause(Record):
    """The author, time (wall clock, milliseconds) and reason of a pause."""

    by: Annotated[str, forms.text(LONGEST_BY, "")]
    since_ms: Annotated[int, forms.number(0)]
    reason: Annotated[str | None, forms.optional_text(LONGEST_REASON)] = None


@dataclass(frozen=True, slots=True)
class PausedRecord(Record):
    """`/consumers/paused`: groups without turns.

    :ivar everything: set when every group is paused, whether or not in `groups`.
    """

    MAY_BE_EMPTY = True

    everything: Annotated[Pause | None, forms.inner(Pause).named("all")] = None
    groups: Annotated[Mapping[str, Pause], forms.named(Pause)] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether anything is paused."""
        return self.everything is not None or bool(self.groups)

    def of(self, group: str) -> Pause | None:
        """The pause of `group`, None when it is not paused."""
        return self.everything or self.groups.get(group)

    def with_pause(self, group: str | None, pause: Pause) -> PausedRecord:
        """The same with `group` paused (None: everything); an existing pause stays unchanged."""
        if group is None:
            return replace(self, everything=self.everything or pause)
        return replace(self, groups={group: pause, **self.groups})

    def without(self, group: str) -> PausedRecord:
        """The same without the pause of `group` itself."""
        return replace(self, groups={name: pause for name, pause in self.groups.items() if name != group})


NOTHING_PAUSED = PausedRecord()


@dataclass(frozen=True, slots=True)
class TurnRequest(Pause):
    """`groups/[group]/request`: an operator's request for a turn; removed after the turn."""
