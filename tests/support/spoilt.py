"""The made story with something in it that must not happen, and what the checker makes of it."""

from __future__ import annotations

from collections.abc import Callable

from drills.checker import Event, Verdicts, Violation, check
from tests.support.made_histories import Happening, Made
from tests.support.made_story import story


def spoilt(point: str, happening: Happening) -> Verdicts:
    """The verdicts on the story with `happening` at one of its points."""

    return check(story(point, happening))


def changed(change: Callable[[list[Made]], object]) -> Verdicts:
    """The verdicts on the story's events after `change` has been at them."""
    events = story()
    change(events)
    return check(events)


def only(verdicts: Verdicts, invariant: str) -> Violation:
    """The finding of a history that breaks one invariant, in one way."""
    assert [verdict.invariant for verdict in verdicts.broken] == [invariant], verdicts.text()
    findings = verdicts[invariant].findings
    assert len(findings) == 1, verdicts.text()
    assert verdicts[invariant].why == findings[0].why and verdicts[invariant].witness == findings[0].witness
    return findings[0]


def held(verdicts: Verdicts) -> None:
    """Nothing is broken."""
    assert not verdicts.broken, verdicts.text()


def names(finding: Violation) -> list[str]:
    """The witness in short: process and event, in order."""
    times = [event["at"] for event in finding.witness]
    assert times == sorted(times)
    return [name_of(event) for event in finding.witness]


def name_of(event: Event) -> str:
    """`s0#1 begin`; of a commit also the end of the first path that it writes."""
    name = f"{event['who']} {event['event']}"
    if event["event"] != "commit":
        return name
    path = next(op["path"] for op in event["ops"] if op["op"] != "check")
    return f"{name} {'/'.join(path.split('/')[-2:])}"


def at(finding: Violation, *positions: int) -> list[Event]:
    """Some of the witness."""
    return [finding.witness[position] for position in positions]
