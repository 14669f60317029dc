"""The model of the lease: no session ends before its lease, and one does for each rule that is taken out."""

from __future__ import annotations

import pytest

from tests.model.lease import MUTATIONS, Config, model


@pytest.mark.full("every order of what a model can do")
@pytest.mark.parametrize("config", [Config(transit=0), Config(transit=1, deep=1, syncs=3), Config(syncs=3, silent=9)])
def test_no_interleaving_ends_a_session_before_its_lease(config: Config) -> None:
    found = model(config)
    assert not found.violation, "\n".join([found.violation, *found.trace])
    assert found.exhausted


@pytest.mark.rotates
@pytest.mark.parametrize("rule", MUTATIONS)
def test_lease_outlasts_its_session_without_the_rule(rule: str) -> None:
    found = model(Config(transit=int(rule == "sent"), syncs=3, silent=7, mut=rule))
    assert found.violation, (found.states, found.exhausted)
