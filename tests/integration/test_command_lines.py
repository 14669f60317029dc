"""The sessions of `command_lines/*.txt`: command lines on made worlds, and what they print.

`pytest tests/integration/test_command_lines.py --rewrite` writes what is printed into the files: review the difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_lines import Player, steps
from tests.support.command_world import Hands
from tests.support.pages import ROOT
from tests.support.turns import Case, cases, file_of
from tests.support.world import World

COMMAND_LINES = Path(__file__).with_name("command_lines")
FILES = sorted(COMMAND_LINES.glob("*.txt"))
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


EXAMPLE = re.compile(r"^    \$ zk-coordinator (.*)\n((?:    .*\n|\n)+)", re.MULTILINE)
EXAMPLES = [
    pytest.param(*found.groups(), id=f"{page.name}: {found[1]}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for found in EXAMPLE.finditer(page.read_text())
]


@pytest.mark.parametrize(("command", "output"), EXAMPLES)
def test_example_of_a_page_is_a_session(command: str, output: str) -> None:
    shown = re.sub(r"\s+", " ", output).strip()

    assert any(re.fullmatch(expected, shown) for expected in _printed(command)), f"in no session:\n{output}"


def _printed(command: str) -> Iterator[str]:
    """What sessions print on this command, as patterns: blanks count once, and exit codes are not shown."""
    for case in cases((COMMAND_LINES / "docs.txt").read_text())[1]:
        for step in steps(case.text):
            if step.parts[2].replace("<folder>", "/mnt") == command:
                lines = re.sub(r"^! |^\[\d+\]$", "", step.expected, flags=re.MULTILINE)
                yield re.sub("…", ".*", re.escape(" ".join(lines.split())))
