"""README, CONTRIBUTING and docs/: named objects exist, commands parse, and lengths are limited."""

from __future__ import annotations

import ast
import dataclasses
import re
from itertools import pairwise

import pytest

from consumer.config import ConsumerConfig
from consumer.spark.fetchers.config import SlotConfig
from consumer.spark.source.options import OPTIONS
from coordinator.cli import PLACES
from coordinator.cli import main as coordinator_main
from coordinator.term.config import CoordinatorConfig
from tests.support.pages import ROOT, broken_links, missing_files, missing_tests, parse, rows, shown_commands

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "zk_paths.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "tests" / "simulation" / "README.md",
]
README_LINES = 110
GLOSSARY_TERMS = 30


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_has_a_target(path: object) -> None:
    assert broken_links(path) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_file_that_a_page_names_exists(path: object) -> None:
    assert missing_files(path.read_text()) == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_test_that_a_page_names_exists(path: object) -> None:
    assert missing_tests(path.read_text()) == []  # type: ignore[attr-defined]


def test_the_readme_fits_on_a_page_and_links_every_page_of_the_docs() -> None:
    text = (ROOT / "README.md").read_text()

    assert len(text.splitlines()) <= README_LINES
    assert [path.name for path in sorted((ROOT / "docs").glob("*.md")) if f"docs/{path.name}" not in text] == []


def test_the_example_of_the_readme_names_options_of_a_pool() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    calls = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call)]
    (pool,) = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "FetcherPool"]

    named = {keyword.arg for keyword in pool.keywords if keyword.arg}

    assert {"topics", "log_dir", "segments_dir"} <= named
    assert named <= {"topics", *(field.name for field in dataclasses.fields(SlotConfig))}


COMMAND_LINES = [
    (name, text)
    for name in ("../README.md", "commands.md", "configuration.md", "membership.md", "regions.md")
    for text in shown_commands(page(name))
]


@pytest.mark.parametrize(("name", "text"), COMMAND_LINES, ids=lambda value: value)
def test_every_command_that_a_page_shows_parses(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZK_GROUP_ZK", "127.0.0.1:1/x")
    monkeypatch.setenv("ZK_GROUP_LOG_DIR", "/tmp/x")
    parse(text, may_lack_arguments=True)


def test_the_page_of_commands_has_every_command_and_exit_code() -> None:
    text = page("commands.md")
    shown = {line.split()[1] for line in shown_commands(text) if line.startswith("zk-coordinator ")}
    codes = re.findall(r"(\d+) [A-Za-z]", coordinator_main.epilog or "")

    assert PLACES.keys() - {"conformance"} <= shown
    assert [row[0] for row in rows(text.split("| exit code |")[1])] == codes


def test_every_default_in_the_table_of_options_is_the_codes_own() -> None:
    known = {
        field.name: field.default
        for kind in (SlotConfig, ConsumerConfig, CoordinatorConfig)
        for field in dataclasses.fields(kind)
    }
    found = [row for row in rows(page("configuration.md")) if row[0].startswith("`")]

    assert len(found) >= 15
    for name, default, _ in found:
        option, shown = name.strip("`"), default.split(" (")[0].strip("`").replace(",", "")
        assert option in known
        assert shown in ("none", str(known[option]), str(known[option]).lower()) or (option, shown) == (
            "max_poll_interval_ms",
            "300000",
        )


def test_every_option_of_the_source_is_on_its_page() -> None:
    table = " ".join(row[0] for row in rows(page("spark.md")))
    elsewhere = {"sessionTimeoutMs", "connectTimeoutMs", "zkWaitMs", "bootstrapServers", "brokersPath"}

    assert OPTIONS.keys() == set(re.findall(r"`(\w+)`", table)) | elsewhere


def test_every_figure_has_its_command_and_its_date() -> None:
    blocks = page("performance.md").split("\n\n")
    tables = [(before, list(rows(table))) for before, table in pairwise(blocks) if table.startswith("| ")]
    figures = [row for _, table in tables if table[0][0] == "what" for row in table[1:]]

    assert len(figures) >= 20
    for row in figures:
        assert len(row) == 4
        assert row[2].startswith("`scripts/bench ")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row[3])
    for before, table in tables:
        if table[0][0] != "what":
            assert "`scripts/bench " in before
            assert re.search(r"\d{4}-\d\d-\d\d", before), before


def test_every_claim_names_tests() -> None:
    text = page("evidence.md").partition("\n## Drills before a release\n")[0]
    claims = [row for row in rows(text) if row[0] != "claim"]

    assert len(claims) >= 25
    assert [claim for claim, shown_by in claims if "`tests/" not in shown_by] == []


def test_every_report_of_the_field_has_a_test_or_is_open() -> None:
    table = page("field.md").partition("\n## Numbers without a text\n")[0]
    reports = [row for row in rows(table) if row[0] != "report"]

    assert len(reports) >= 70
    assert [row[0] for row in reports if "**Open**" not in row[2] and "`tests/" not in row[3]] == []


def test_the_glossary_is_short() -> None:
    terms = [row for row in rows(page("glossary.md")) if row[0] != "term"]

    assert 20 <= len(terms) <= GLOSSARY_TERMS
    assert all(len(meaning) < 120 for _, meaning in terms)


def test_the_page_of_the_architecture_names_every_folder_of_the_layout() -> None:
    text = page("architecture.md")
    folders = [folder for top in ("coordinator", "consumer", "drills") for folder in (ROOT / top).iterdir()]

    assert [one.name for one in folders if one.is_dir() and one.name[0] != "_" and one.name not in text] == []


def test_loggers_are_renamed_to_modules() -> None:
    renamed = rows(page("logs.md").split("## Renamed loggers")[1].split("## Renamed events")[0])
    after = [row[2].strip("`") for row in renamed if row[1].startswith("`")]

    assert len(after) > 30
    assert [name for name in after if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []


def test_nothing_is_fixed_or_changed_before_the_first_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()

    assert text.startswith("# Changelog\n\n## 0.1.0")
    assert "### Fixed" not in text.split("## 0.1.0")[1]


def test_renamed_events_are_those_of_the_tables_above() -> None:
    above, renamed = page("logs.md").split("## Renamed loggers")
    pairs = [(before.strip("`"), after.strip("`")) for before, after in rows(renamed.split("## Renamed events")[1])]
    pairs = pairs[1:]  # the head of the table

    assert len(pairs) > 70
    assert [after for _, after in pairs if f"| `{after}` |" not in above] == []
    assert [before for before, _ in pairs if f"| `{before}` |" in above] == []
