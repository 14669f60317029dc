"""The models of `tests/model`: no violation by the rules of `rules.txt`, and one for each that is taken out."""

from __future__ import annotations

import pytest

from tests.model.__main__ import BY_ITSELF, MODELS
from tests.model.client_assignment import Config
from tests.model.search import Result, configured

TABLES = {model: module.Config.TABLE for model, module in MODELS.items()}


def found(model: str, words: str) -> Result:
    module = MODELS[model]
    result: Result = module.run(configured(module.Config, words.split()))
    return result


@pytest.mark.full("every order of what a model can do")
@pytest.mark.parametrize(("model", "title"), [(model, title) for model in MODELS for title in TABLES[model].searches])
def test_every_interleaving_keeps_the_rules_and_comes_to_rest(model: str, title: str) -> None:
    result = found(model, TABLES[model].searches[title])
    assert not result.violation, "\n".join([result.violation, *result.trace])
    assert result.exhausted


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("model", "rule"), [(model, name) for model in MODELS for name, rule in TABLES[model].rules.items() if rule.faults]
)
def test_a_rule_that_is_taken_out_is_missed(model: str, rule: str) -> None:
    _, faults, violation = TABLES[model].rules[rule]
    if faults in BY_ITSELF:
        assert len(BY_ITSELF[faults](Config())) >= 8
        assert BY_ITSELF[faults](Config(mut=rule)) == []
        return
    progress = "" if violation == "L5" else "progress=0"
    result = found(model, f"mut={rule} {progress} {faults}")
    assert result.violation, (result.states, result.exhausted)
    assert result.violation.startswith(violation)


def test_entries_read_before_the_channels_and_the_answer_make_half_an_answer() -> None:
    assert found("client_assignment", "order=escwi progress=0").violation.startswith("S9")
    # Read after the channels they do no harm: the adopting turn withdraws a command that is gone by then.
    assert found("client_assignment", "order=scewi progress=0").exhausted
    assert found("client_assignment", "order=scwie progress=0").exhausted  # as the product reads them
