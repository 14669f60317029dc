"""The cases of `checker/*.txt`: what happens at a point of a made story, and the checker's verdicts on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.written_histories import Case, cases

FILES = sorted(Path(__file__).with_name("checker").glob("*.txt"))
CASES = {file.stem: cases(file) for file in FILES}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{stem}: {case}") for stem, some in CASES.items() for case in some]
)
def test_verdict(case: Case) -> None:
    case.judge()


@pytest.mark.parametrize("stem", CASES)
def test_titles_of_cases_are_unique(stem: str) -> None:
    some = [str(case) for case in CASES[stem]]

    assert some and len(some) == len(set(some))
