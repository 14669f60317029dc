"""The sessions of `command_lines/*.txt`: command lines on made worlds, and what they print.

`pytest tests/integration/test_command_lines.py --rewrite` writes what is printed into the files: review the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_lines import Player
from tests.support.command_world import Hands
from tests.support.turns import Case, cases, file_of
from tests.support.world import World

FILES = sorted(Path(__file__).with_name("command_lines").glob("*.txt"))
CASES = [pytest.param(file, case, id=case.title) for file in FILES for case in cases(file.read_text())[1]]


@pytest.mark.parametrize(("file", "case"), CASES)
def test_session_prints(file: Path, case: Case, world: World, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    found = Player(Hands(world, tmp_path), tmp_path, case.common).played(case.text)

    if request.config.getoption("--rewrite"):
        head, some = cases(file.read_text())
        file.write_text(file_of(head, ((one.title, found if one == case else one.text) for one in some)))
    else:
        assert found == case.text


def test_titles_of_sessions_are_unique() -> None:
    titles = [case.title for file in FILES for case in cases(file.read_text())[1]]

    assert titles and len(titles) == len(set(titles))
