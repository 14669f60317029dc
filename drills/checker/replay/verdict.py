"""Results of a check: the outcome of each invariant, and for a violation the reason and the events that prove it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Event = Mapping[str, Any]
"""One event of a history."""

HELD, BROKEN, NOT_DECIDED = "held", "broken", "not decided"

LONGEST_SHOWN = 400
"""Characters of an event in a text; JSON has all of it."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of an invariant.

    :ivar why: one sentence, with names, partitions and times.
    :ivar witness: the few events that prove it, in order.
    """

    why: str
    witness: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one invariant.

    :ivar invariant: its name in the design, `S1` to `L6`.
    :ivar sentence: the design's.
    :ivar outcome: `held`, `broken` or `not decided`.
    :ivar why: null when it held.
    :ivar witness: of the first finding, empty unless it is broken.
    :ivar is_due: whether a complete history would have decided it; meaningful only when not decided.
    :ivar findings: all violations, in order of discovery (up to `MOST_FINDINGS`).
    :ivar judged: its opportunities for a violation: a history without a led group proves nothing about S9, for example.
    """

    invariant: str
    sentence: str
    outcome: str = HELD
    why: str | None = None
    witness: tuple[Event, ...] = ()
    is_due: bool = False
    findings: tuple[Violation, ...] = ()
    judged: int = 0

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        findings = [{**each, "witness": list(each["witness"])} for each in found["findings"]]
        return {**found, "witness": list(found["witness"]), "findings": findings}


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The outcomes of a history.

    :ivar verdicts: by the invariant's name, in the design's order.
    :ivar events: their number.
    :ivar set_aside: number of ignored events.  :ivar problems: the first of them, each with its reason.
    """

    verdicts: Mapping[str, Verdict]
    events: int = 0
    set_aside: int = 0
    problems: Sequence[str] = field(default_factory=tuple)

    def __getitem__(self, invariant: str) -> Verdict:
        return self.verdicts[invariant]

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """The invariants that were broken."""
        return tuple(verdict for verdict in self.verdicts.values() if verdict.outcome == BROKEN)

    @property
    def is_inconclusive(self) -> bool:
        """Whether nothing is broken but something is undecided that a complete history would have decided."""
        return not self.broken and any(v.outcome == NOT_DECIDED and v.is_due for v in self.verdicts.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "events": self.events,
            "set_aside": self.set_aside,
            "problems": list(self.problems),
            "verdicts": [verdict.to_json() for verdict in self.verdicts.values()],
        }

    def text(self) -> str:
        """For people: one line per invariant, and below a broken one its witness."""
        lines = [f"{self.events} events" + (f", {self.set_aside} set aside" if self.set_aside else "")]
        lines += [f"  set aside: {problem}" for problem in self.problems]
        for verdict in self.verdicts.values():
            lines.append(f"{verdict.invariant} {verdict.outcome}" + (f": {verdict.why}" if verdict.why else ""))
            lines += [f"    {shown(event)}" for event in verdict.witness]
            lines += [f"  also: {finding.why}" for finding in verdict.findings[1:]]
        return "\n".join(lines)


def shown(event: Event) -> str:
    """An event on one line, truncated after `LONGEST_SHOWN` characters."""
    rest = {key: value for key, value in event.items() if key not in ("at", "who", "event")}
    head = f"{moment(event.get('at'))} {event.get('who')} {event.get('event')} "
    text = ascii_line(json.dumps(rest, default=str, ensure_ascii=False))
    return head + (text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…")


def ascii_line(text: str) -> str:
    """`text` without terminal control characters."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def moment(at: object) -> str:
    """A time in messages: `12.5 s`."""
    return f"{round(at, 6):g} s" if isinstance(at, int | float) else f"{at}"


def handlers_of(part: Any) -> list[tuple[str, Callable[[Event], None]]]:
    """The handlers of the events that `part` names in its `events`: `query-failed` is that of `on_query_failed`."""
    return [(kind, getattr(part, f"on_{kind.replace('-', '_')}")) for kind in part.events]
