"""Pages of the docs: their tables, links, commands and the files that they name."""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import click

from zk_group.consumer.cli import main as consumer_main
from zk_group.coordinator.cli import main as coordinator_main

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, click.Command] = {"zk-coordinator": coordinator_main, "zk-consumer": consumer_main}


def page(name: str) -> str:
    """The text of a page of docs/."""
    return (ROOT / "docs" / name).read_text()


def section(text: str, title: str) -> str:
    """The text under a heading, up to the next one of its level or above."""
    begin = re.search(rf"^(##+) {re.escape(title)}\n", text, re.MULTILINE)
    assert begin, f"no section {title}"
    return re.split(rf"^#{{2,{len(begin[1])}}} ", text[begin.end() :], maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> Iterator[list[str]]:
    """The rows of all tables in `text`, their cells stripped."""
    for line in text.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def broken_links(page: Path) -> list[str]:
    """The links of a page to files or headings that do not exist."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    return [target for target in targets if not _leads_somewhere(page, target)]


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    return file.exists() and (not anchor or anchor in _anchors(file))


def _anchors(file: Path) -> set[str]:
    titles = [line.lstrip("# ") for line in file.read_text().splitlines() if line.startswith("#")]
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def missing_files(page: Path) -> list[str]:
    """The paths below the repository that a page names in backticks, and that do not exist; globs match a file."""
    text = page.read_text()
    folders = "consumer|coordinator|deploy|docs|drills|scripts|tests"
    named = set(re.findall(rf"`((?:{folders})/[\w./*-]+?)/?(?:::\w+)?`", text))
    named |= set(re.findall(r"\b((?:scripts)/[a-z]+)\b", text))
    named |= {f"tests/{path}" for path in re.findall(r"`((?:integration|property|simulation|unit)/[\w./*-]+)`", text)}
    return sorted(path for path in named if "..." not in path and not any(ROOT.glob(path)))


def missing_tests(page: Path) -> list[str]:
    """The tests that a page names, and that do not exist: `tests/FILE.py`, `tests/FILE.py::NAME`, `NAME` or `NAME*`."""
    text, tests = page.read_text(), tests_by_file()
    missing = {
        f"{file}::{name}"
        for file, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", text)
        if not (ROOT / file).exists() or (name and name not in tests[file])
    }
    known = {*chain.from_iterable(tests.values()), *(Path(file).stem for file in tests)}
    return sorted(missing | {name for name in re.findall(r"`(test_\w+\*?)`", text) if not fnmatch.filter(known, name)})


@cache
def tests_by_file() -> dict[str, set[str]]:
    """The names of the functions in each file of tests."""
    files = (ROOT / "tests").rglob("*.py")
    return {one.relative_to(ROOT).as_posix(): set(re.findall(r"def (\w+)\(", one.read_text())) for one in files}


def shown_commands(text: str) -> list[str]:
    """Every command of ours in a page: in code blocks, and between backticks."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    blocks = re.findall(r"^    .*?(?<![\w./_-])((?:zk-coordinator|zk-consumer) .*)$", text, re.MULTILINE)
    blocks = [block.split("  #")[0].rstrip(" &") for block in blocks]
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    return sorted({text for text in (*blocks, *spans) if text.split()[0] in PROGRAMS})


def parse(command_line: str, may_lack_arguments: bool = False) -> None:
    """As click parses it, without running anything.

    :param may_lack_arguments: a bare `zk-coordinator groups delete` is the name of a command.
    :raises click.UsageError: when it is wrong.
    :raises LookupError: when there is no such command.
    """
    words = shlex.split(command_line)
    command: click.Command = PROGRAMS[words[0]]
    context, rest = click.Context(command, info_name=words[0]), words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:
            raise LookupError(rest[0])
        command, context, rest = found, click.Context(found, parent=context, info_name=rest[0]), rest[1:]
    is_name = rest in ([], ["--help"], ["--version"]) and (may_lack_arguments or isinstance(command, click.Group))
    if not is_name:
        command.make_context(words[0], rest, parent=context.parent, resilient_parsing=False)


# ---- access control

ALL: Final = "all"
READERS: Final = "readers"
NONE: Final = "none"
HEADER: Final = ["znode", "C", "M", "read by others", "created by", "written by", "removed by"]


class AccessRow(NamedTuple):
    """A row of the table of access control in zk_paths.md; letters are zkCli's, parties `C` and `M`."""

    coordinators: str
    members: str
    others: str
    created_by: str
    written_by: str
    removed_by: str


def access_table() -> dict[str, AccessRow]:
    """Path -> its row, in the order of the page."""
    header, *found = rows(section(page("../zk_paths.md"), "The table"))
    assert header == HEADER
    return {path.strip("`"): AccessRow(*cells) for path, *cells in found}
