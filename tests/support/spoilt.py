"""A made story with something in it that must not happen, and what the checker makes of it.

A case of one happening is its body, under a decorator that says where it happens and what is found:

    @breaks("S6", at="stop sent", witness="b#1 commit g/state, s1#1 commit channel/s1", why="flights-3 still runs")
    def test_acknowledged_stop_whose_partition_still_runs_breaks_it(history: StoryHistory) -> None:
        acknowledges(history, "s1")
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from drills.checker import Event, Verdicts, Violation, check
from tests.support.made_histories import Enough, Happening, Made
from tests.support.made_story import story

Making = Callable[[str, Happening], list[Made]]
Judge = Callable[[Verdicts, dict[str, object]], object]


def spoilt(
    point: str, happening: Happening, of: Making = story, goes_on: bool = False, lasts: float = 0.0, until: float = 0.0
) -> Verdicts:
    """The verdicts on a story with `happening` at one of its points, after which it ends, or goes on.

    :param lasts: s that pass after it.
    :param until: the time that it is then at least.
    """

    def happen(history: Any) -> None:
        happening(history)
        history.pass_(lasts)
        history.to(until)
        if not goes_on:
            raise Enough

    return check(of(point, happen))


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


# ---- cases


class Case:
    """How a case is judged, as a decorator of what happens: several may be on one body, each with its arguments.

    :param at: the point of the story; without one the body changes the events of the whole story.
    :param how: the story, and what follows, as `spoilt` has it.
    :param given: arguments of the body. What else it has besides the history are parameters of the test.
    """

    def __init__(self, judge: Judge, at: str, how: dict[str, Any], given: dict[str, object]) -> None:
        self._judge, self._at, self._how, self._given = judge, at, how, given

    def __call__(self, body: Callable[..., Any]) -> Callable[..., None]:
        happening = getattr(body, "happening", body)

        def test(**parameters: object) -> None:
            if happening is not body:
                body(**parameters)
            arguments = {**parameters, **self._given}
            happen = partial(happening, **arguments)
            self._judge(spoilt(self._at, happen, **self._how) if self._at else changed(happen), arguments)

        declared = signature(happening)
        parameters = [each for name, each in declared.parameters.items() if name not in self._given]
        test.__name__, test.__doc__, test.__module__ = happening.__name__, happening.__doc__, happening.__module__
        vars(test).update(happening=happening, __signature__=declared.replace(parameters=parameters[1:]))
        return test


def breaks(
    invariant: str, *why: str, at: str = "", witness: str = "", alone: bool = True, of: Making = story,
    goes_on: bool = False, lasts: float = 0.0, until: float = 0.0, **given: object,
) -> Case:  # fmt: skip
    """An invariant is broken.

    :param why: parts of the reason, with the arguments of the body in braces; ^ is its beginning, $ its end.
    :param witness: the whole of it, in short.
    :param alone: no other is broken, and this one in one way; otherwise the first finding counts.
    """

    def judge(verdicts: Verdicts, arguments: dict[str, object]) -> None:
        assert verdicts[invariant].findings, verdicts.text()
        found = only(verdicts, invariant) if alone else verdicts[invariant].findings[0]
        for each in why:
            assert each.format(**arguments) in f"^{found.why}$", found
        assert not witness or ", ".join(names(found)) == witness.format(**arguments), found

    return Case(judge, at, {"of": of, "goes_on": goes_on, "lasts": lasts, "until": until}, given)


def holds(
    invariant: str = "", at: str = "", of: Making = story, goes_on: bool = False, lasts: float = 0.0,
    until: float = 0.0, **given: object,
) -> Case:  # fmt: skip
    """Nothing is broken; with an invariant, this one is not, whatever others are."""

    def judge(verdicts: Verdicts, arguments: dict[str, object]) -> None:
        assert not (verdicts[invariant].findings if invariant else verdicts.broken), verdicts.text()

    return Case(judge, at, {"of": of, "goes_on": goes_on, "lasts": lasts, "until": until}, given)
