"""The model of a member that lies: no violation as the rules stand, and one for each rule that is taken out."""

from __future__ import annotations

import pytest

from tests.model.lying import MUTATIONS, Config, run

SMALL = {
    "nothing": Config(),
    "a session ends": Config(expire=1),
    "a failover": Config(expire=1, epochs=2, progress=50),
    "a name taken over": Config(take=1, lies=1, progress=50),
}

# What shows that a rule is needed: the faults under which its absence is found, and what is found.
NEEDED = {
    "believed": (Config(), "S12"),
    "target": (Config(expire=1), "S12"),
    "owned": (Config(expire=1), "S12"),
    "shrunk": (Config(expire=1), "S12"),
    "late": (Config(expire=1, epochs=2), "S12"),
    "early": (Config(take=1), "S12"),
    "takeover": (Config(take=1), "S12"),
    "owners": (Config(), "S12"),
    "blocking": (Config(progress=5), "L3"),
}


@pytest.mark.full("every order of what a model can do")
@pytest.mark.parametrize("faults", SMALL)
def test_a_lying_member_costs_honest_members_no_record_and_no_partition(faults: str) -> None:
    found = run(SMALL[faults])
    assert not found.violation, "\n".join([found.violation, *found.trace])
    assert found.exhausted


@pytest.mark.rotates
@pytest.mark.parametrize("rule", NEEDED)
def test_a_rule_that_is_taken_out_is_missed(rule: str) -> None:
    faults, violation = NEEDED[rule]
    settings = {name: getattr(faults, name) for name in Config.__dataclass_fields__ if name not in ("mut", "muts")}
    found = run(Config(**{**settings, "mut": rule, "progress": 5 if violation == "L3" else 0}))
    assert found.violation.startswith(violation), (found.violation, found.states, found.exhausted)


def test_every_rule_of_the_model_is_shown_to_be_needed() -> None:
    assert MUTATIONS.keys() == NEEDED.keys()
