"""The model of client-side assignment: no violation as the rules stand, and one for each rule that is taken out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.client_assignment import MUTATIONS, Config, crash_loop, search, storm

# Each is searched to its end, in a second or less.
SMALL = {
    "a failover and a timeout": Config(epochs=2, timeout=1, progress=20),
    "a failover and a lost reply": Config(epochs=2, lost=1, progress=20),
    "a name taken over, and a leader that lies": Config(start="running", asks=3, take=1, lie=1, progress=10),
    "a static member expires and returns": Config(start="running", asks=3, static="AB", expire=1, join=1, progress=20),
    "a member changes while a reply is lost": Config(change=1, lost=1, progress=200),
    "a multi arrives after the sync": Config(late=1, latesync=1, timeout=1, progress=40),
    "another release takes over": Config(start="running", asks=3, amnesia=1, progress=5),
    "three members": Config(names=3, members=3, progress=5),
    "two of three bad, one failure": Config(names=3, members=3, lie=1, progress=20),
    "a number taken again, and the command checked": Config(timeout=1, mut="reuse", progress=0),
    "jobs: a name taken over": Config(kind="jobs", start="running", asks=3, take=1, progress=10),
    "jobs: static names taken over": Config(kind="jobs", start="running", static="AB", take=2, progress=20),
    "jobs: a member that is not polled": Config(kind="jobs", start="running", quit=1, join=1, progress=10),
    "jobs: an eviction": Config(kind="jobs", start="running", asks=2, evict=1, request=1, progress=50),
    "jobs: starts acknowledged in two multis": Config(kind="jobs", chunk=1, request=1, progress=10),
}

# What shows that a rule is needed: the faults under which its absence is found, and what is found.
NEEDED = {
    "nocommand": (Config(timeout=1), "S6"),
    "nochannel": (Config(late=1, latesync=1, parts=1), "S9: the answer mixes"),
    "checkonly": (Config(late=1, latesync=1, parts=1), "S9: the answer mixes"),
    "keepold": (Config(lost=1), "F"),
    "older": (Config(), "S9: ask 1 adopted after"),
    "half": (Config(), "S9: adopted without"),
    "unlisted": (Config(lost=1, change=1), "F"),
    "ghosts": (Config(expire=1), "S9: the target"),
    "volatile": (Config(names=3, members=3, progress=1), "L5"),
    "forgive": (Config(static="AB", progress=1), "L5"),
    "newcomer": (Config(take=1, lie=1, progress=1, bad="dies"), "L5"),
    "resend": (Config(progress=1), "L5"),
    "excuse": (Config(progress=1), "L5"),
    "reuse": (Config(timeout=1), "S6"),
    "askonly": (Config(static="AB", expire=1, join=1, progress=1, bad="good"), "L5"),
    "twice": (Config(lie=1), "S2"),
    "trusting": (Config(start="running", amnesia=1), "S9: ask 1 adopted after"),
    "nomark": (Config(kind="jobs", start="running", take=1), "J"),
    "endonly": (Config(kind="jobs", start="running", take=1), "J"),
    "withdrawn": (Config(kind="jobs", chunk=1, request=1), "J"),
    "quitclear": (Config(kind="jobs", start="running", quit=1, join=1), "J"),
    "noepoch": (Config(epochs=2), "S4"),
}
TOGETHER = {"reuse": "reuse,nocommand"}  # the check of the command alone makes it harmless


@pytest.mark.full("every order of what a model can do")
@pytest.mark.parametrize("faults", SMALL)
def test_every_interleaving_keeps_the_rules_and_settles(faults: str) -> None:
    found = search(SMALL[faults])
    assert not found.violation, "\n".join([found.violation, *found.trace])
    assert found.exhausted


@pytest.mark.rotates
@pytest.mark.parametrize("rule", NEEDED)
def test_a_rule_that_is_taken_out_is_missed(rule: str) -> None:
    faults, violation = NEEDED[rule]
    progress = 0 if faults.progress == 1 and violation != "L5" else faults.progress
    found = search(replace(faults, mut=TOGETHER.get(rule, rule), progress=progress))
    assert found.violation.startswith(violation), (found.violation, found.states, found.exhausted)


def test_entries_read_before_the_channels_and_the_answer_make_half_an_answer() -> None:
    assert search(Config(order="escwi", progress=0)).violation.startswith("S9")
    # Read after the channels they do no harm: the adopting turn withdraws a command that is gone by then.
    assert search(Config(order="scewi", progress=0)).exhausted
    assert search(Config(order="scwie", progress=0)).exhausted  # as the product reads them


def test_joins_without_end_do_not_keep_an_answer_from_being_adopted() -> None:
    assert len(storm(Config())) >= 8
    assert storm(Config(mut="restless")) == []


def test_a_member_that_dies_again_and_again_does_not_keep_jobs_from_starting() -> None:
    assert len(crash_loop(Config())) >= 8
    assert crash_loop(Config(mut="markall")) == []


def test_every_mutation_is_shown() -> None:
    assert {*NEEDED, "restless", "markall"} == {*MUTATIONS}
