"""The models of consistent regions: no violation as the rules stand, and one for each rule that is taken out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.model import slots
from tests.model.region import MUTATIONS, SPARE, Config, run

# Each is searched to its end, in some seconds at most.
SMALL = {
    "nothing": Config(start="running", cuts=1, progress=5),
    "a group that begins, and a member that joins": Config(members=1, join=1, cuts=1, progress=40),
    "a name taken over": Config(start="running", take=1, cuts=1, progress=400),
    "a member leaves and another comes": Config(start="running", leave=1, join=1, cuts=1, progress=400),
    "a lost reply": Config(start="running", lost=1, cuts=2, progress=40),
    "a multi that arrives late": Config(start="running", late=1, cuts=2, progress=40),
    "a failover, and a checkpoint that is aborted": Config(start="running", epochs=2, timeout=1, cuts=2, progress=40),
    "an operator resets": Config(start="running", resets=1, cuts=2, progress=400),
    "the region is read last": Config(start="running", resets=1, cuts=1, order="scir", progress=40),
    "a static member that is away": Config(static="B", start="cut", leave=1, join=1, cuts=2, progress=400),
    "two groups": Config(groups="ab", start="running", leave=1, cuts=1, progress=400),
}

# What shows that a rule is needed: the faults under which its absence is found, and what is found.
NEEDED = {
    "partial": (Config(start="running", take=1, cuts=1), "S1"),
    "bounce": (Config(start="running", take=1, cuts=1), "S1"),
    "commit": (Config(start="running", take=1, cuts=1), "S10"),
    "gone": (Config(start="cut", leave=1, cuts=1), "S10"),
    "everybody": (Config(groups="aaa", members=3, start="cut", leave=1, cuts=1), "S10"),
    "clock": (Config(start="running", cuts=1), "S11"),
    "incomplete": (Config(start="running", cuts=1), "S11"),
    "departed": (Config(start="running", leave=1, cuts=2), "S11"),
    "nocut": (Config(start="running", late=1, timeout=1, cuts=1), "S11"),
    "nochannel": (Config(start="running", take=1, cuts=1), "S11"),
    "uncopied": (Config(groups="ab", start="cut", leave=1, cuts=2), "S11"),
    "stateless": (Config(static="B", start="cut", leave=1, cuts=2), "S11"),
    "later": (Config(static="B", start="cut", leave=1, cuts=2), "S11"),
    "heirless": (Config(groups="aaa", members=3, static="A", start="cut", leave=2, cuts=2), "S11"),
    "noepoch": (Config(start="running", epochs=2, cuts=1), "S4"),
}


# What the product checks besides is not needed.
BESIDES = Config(start="running", cuts=1, progress=400, mut=",".join(SPARE))
WHOLE = {
    **{name: partial(run, config) for name, config in SMALL.items()},
    "two groups, without what is checked besides": partial(run, replace(BESIDES, groups="ab", leave=1)),
    "a name, without what is checked besides": partial(run, replace(BESIDES, take=1)),
    "slots": partial(slots.run, slots.Config(progress=400)),
    "slots, without what they check besides": partial(slots.run, slots.Config(mut=",".join(slots.SPARE), progress=400)),
}


@pytest.mark.full("every order of what a model can do")
@pytest.mark.parametrize("name", WHOLE)
def test_every_interleaving_keeps_the_states_exact_and_comes_to_a_new_cut(name: str) -> None:
    found = WHOLE[name]()
    assert not found.violation, "\n".join([found.violation, *found.trace])
    assert found.exhausted


@pytest.mark.rotates
@pytest.mark.parametrize("rule", NEEDED)
def test_a_rule_that_is_taken_out_is_missed(rule: str) -> None:
    faults, violation = NEEDED[rule]
    found = run(replace(faults, mut=rule, progress=0))
    assert found.violation.startswith(violation), (found.violation, found.states, found.exhausted)


def test_every_rule_of_the_model_has_a_case() -> None:
    assert {*NEEDED, *SPARE} == set(MUTATIONS)


@pytest.mark.rotates
@pytest.mark.parametrize("rule", sorted(slots.MUTATIONS.keys() - set(slots.SPARE)))
def test_a_rule_of_slots_that_is_taken_out_is_missed(rule: str) -> None:
    found = slots.run(slots.Config(mut=rule, progress=0))
    assert found.violation.startswith("S11"), (found.states, found.exhausted)
