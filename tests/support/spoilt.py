"""A made story with something in it that must not happen, and what the checker makes of it.

Most cases are text (`written_histories.py`). One that changes the events is its body, under a decorator that says what
is found:

    @breaks("S1", "at 36 s", witness="s1#1 begin, s3#1 begin, s1#1 lease, s3#1 lease")
    def test_lease_renewed_after_the_partition_was_handed_on_breaks_it(events: list[Made]) -> None:
        events.insert(100, {**events[3], "at": 36.0})
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drills.checker import Event, Verdicts, Violation, check
from tests.support.made_histories import Enough, Happening, Made
from tests.support.made_story import story


def spoilt(point: str, happening: Happening, goes_on: bool = False) -> Verdicts:
    """The verdicts on the story with `happening` at one of its points, after which it ends, or goes on."""

    def happen(history: Any) -> None:
        happening(history)
        if not goes_on:
            raise Enough

    return check(story(point, happen))


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


def breaks(invariant: str, *why: str, witness: str = "", alone: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """A test of a body that changes the events: an invariant is broken.

    :param why: parts of the reason; ^ is its beginning, $ its end.
    :param witness: the whole of it, in short.
    :param alone: no other is broken, and this one in one way; otherwise the first finding counts.
    """

    def decorate(body: Callable[[list[Made]], object]) -> Callable[[], None]:
        def test() -> None:
            verdicts = changed(body)
            assert verdicts[invariant].findings, verdicts.text()
            found = only(verdicts, invariant) if alone else verdicts[invariant].findings[0]
            for each in why:
                assert each in f"^{found.why}$", found
            assert not witness or ", ".join(names(found)) == witness, found

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        return test

    return decorate
