"""Cases of the checker as lines of text: what happens at a point of a made story, and the verdicts on it.

    == joined: two starts in one channel break it
    turn: start s0 0-1              what happens, one after the other, then the story ends
    twice? turn: start s0 0-1       only in the variants that are `twice`
    pass $seconds                   another value in each variant
      seconds=1 => holds            of a variant, nothing is broken; `holds S6`: this one is not, though others may be
      twice seconds=2 => S6: is pending ... of s0
        by b#1 commit g/state, s1#1 commit channel/s1
                                    S6 is broken, and no other; the parts of its reason (^ is its beginning, $ its
                                    end) and its whole witness
      S6 too: is pending            others may be broken, too
      L2 open: the history ends     not decided; `L2 due: ...`: and it should have been
      S5 with: leaves out           of several findings one has this reason; `S5 without: ...`: none has;
                                    `S5 among: ...`: one has, and no other invariant is broken
      L1 L3: has waited             both are broken and no other; the reason and the witness are the second's

`go on` is for a story that does. Other lines are a method of the story with its arguments, or one of `VERBS` or `LATER`
in `history_words.py`; what follows a colon are the operations of a transaction (`OPERATIONS`), with paths as in
`g/ids/s2`. Words are numbers and JSON without spaces, or text; `@zxid` and the like are in `values`. Shares are s0=0-1
(of the topic `flights`, else c1=cities-1:0-3), and partitions flights-2 (flights-2@150 is one with its offset,
+flights-2 one without).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.history_words import LATER, say
from tests.support.made_asks import led
from tests.support.made_histories import Enough, Happening, Made
from tests.support.made_regions import region_story
from tests.support.made_story import story
from zk_group.drills.checker import Event, Verdicts, Violation, check

STORIES: dict[str, Callable[..., Any]] = {"story": story, "asks": led, "region": region_story}
EXPECTED = re.compile(r"(holds|[SL]\d+)( S\d+| L\d+)?( too| open| due| with| without| among)?(?:: (.*))?")


@dataclass(frozen=True)
class Case:
    """One variant of what happens.

    :ivar wanted: its verdict, and its witness or nothing.
    """

    story: str
    title: str
    lines: tuple[str, ...]
    variant: str
    wanted: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.title} [{self.variant}]" if self.variant else self.title

    def judge(self) -> None:
        """Let it happen, and compare the verdicts."""
        text = "\n".join((*self.lines, "==", *self.wanted))
        for name, _, value in (word.partition("=") for word in self.variant.split() if "=" in word):
            text = re.sub(rf"\${name}\b", value, text)
        given, _, wanted = text.rpartition("==\n")
        lines = [one for line in given.splitlines() for one in unfolded(line, self.variant.split())]
        later = [line.split() for line in lines if line.split()[0] in LATER]

        def happen(history: Any) -> None:
            for line in lines:
                if line.split()[0] not in LATER:
                    say(history, line)
            if "go on" not in lines:
                raise Enough

        events = STORIES[self.story](self.title.partition(": ")[0], happen)
        for word, *words in later:
            LATER[word](events, *words)
        expect(check(events), *wanted.split("\n"))


def unfolded(line: str, flags: Sequence[str]) -> list[str]:
    """The line without its flag, if it is one of the variant; `2 times a; b` are four lines."""
    flag, asks, rest = line.partition("? ") if re.match(r"\w+\? ", line) else ("", "", line)
    if asks and flag not in flags:
        return []
    times, _, some = rest.partition(" times ")
    return some.split("; ") * int(times) if some else [rest]


def cases(file: Path) -> list[Case]:
    """All variants; the second line of a file may name its story."""
    head, *parts = file.read_text().split("\n== ")
    found = []
    for part in parts:
        title, *lines = part.rstrip("\n").split("\n")
        given = tuple(line for line in lines if not line.startswith("  "))
        expected = [line.strip() for line in lines if line.startswith("  ")]
        while expected:
            variant, arrow, wanted = expected.pop(0).rpartition(" => ")
            witness = [expected.pop(0)] if expected and expected[0].startswith("by ") else []
            name = next((name for name in STORIES if f"of the {name}" in head), "story")
            found.append(Case(name, title, given, variant, (wanted, *witness)))
            assert arrow or not expected, f"{title}: variants have arrows"
    return found


def expect(verdicts: Verdicts, wanted: str, witness: str = "") -> None:
    """The verdicts are those of a case."""
    match = EXPECTED.fullmatch(wanted)
    assert match, wanted
    invariant, one, how, why = (each.strip() if each else "" for each in match.groups())
    if invariant == "holds":
        assert not (verdicts[one].findings if one else verdicts.broken), verdicts.text()
        return
    if how in ("open", "due"):
        verdict = verdicts[invariant]
        assert (verdict.outcome, verdict.is_due) == ("not decided", how == "due") and why in (verdict.why, ""), verdict
        return
    if how in ("with", "without", "among"):
        some = [each for each in verdicts[invariant].findings if all(part in each.why for part in why.split(" ... "))]
        assert len(some) == (how != "without"), verdicts.text()
        assert how != "among" or [verdict.invariant for verdict in verdicts.broken] == [invariant], verdicts.text()
        assert not witness or ", ".join(names(some[0])) == witness.removeprefix("by "), some[0]
        return
    if one:
        assert [verdict.invariant for verdict in verdicts.broken] == [invariant, one], verdicts.text()
        invariant = one
    assert verdicts[invariant].findings, verdicts.text()
    found = verdicts[invariant].findings[0] if how or one else only(verdicts, invariant)
    for part in why.split(" ... "):
        assert part in f"^{found.why}$", found
    assert not witness or ", ".join(names(found)) == witness.removeprefix("by "), found


# ---- cases that are no text


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


def breaks(wanted: str, witness: str = "") -> Callable[[Callable[[list[Made]], object]], Callable[[], None]]:
    """A test of a body that changes the events of the whole story: the verdict and the witness are as in a case."""

    def decorate(body: Callable[[list[Made]], object]) -> Callable[[], None]:
        def test() -> None:
            expect(changed(body), wanted, witness)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        return test

    return decorate
