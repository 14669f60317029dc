"""README, CONTRIBUTING, docs/ and deploy/: named objects exist, commands parse, figures are the code's."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import (
    ROOT,
    broken_links,
    missing_files,
    missing_tests,
    page,
    parse,
    rows,
    section,
    shown_commands,
)
from zk_group.consumer.config import ConsumerConfig
from zk_group.consumer.streaming.fetchers.config import SlotConfig
from zk_group.consumer.streaming.source.options import OPTIONS, SourceConfig
from zk_group.coordinator.cli import PLACES
from zk_group.coordinator.cli import main as coordinator_main
from zk_group.coordinator.term.config import CoordinatorConfig
from zk_group.coordinator.zk.errors import AuthenticationFailed, MissingProgram, NotAuthorized, UsageError
from zk_group.coordinator.zk.values import load

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "zk_paths.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "tests" / "simulation" / "README.md",
]
README_LINES = 110
GLOSSARY_TERMS = 30
DEPLOY = page("deploy.md")
COLUMNS: tuple[Any, ...] = (CoordinatorConfig, ConsumerConfig, SlotConfig, SourceConfig)
PERMANENT = (UsageError, MissingProgram, NotAuthorized, AuthenticationFailed)
SECTIONS = {"Unit", "Service", "Install"}


@pytest.fixture(autouse=True)
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZK_GROUP_ZK", "127.0.0.1:1/x")


def defaults(kind: Any) -> dict[str, object]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


@pytest.mark.parametrize("missing", [broken_links, missing_files, missing_tests], ids=["link", "file", "test"])
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_file_and_test_that_a_page_names_exists(path: Path, missing: Callable[[Path], list[str]]) -> None:
    assert missing(path) == []


def test_every_cited_source_is_a_row() -> None:
    text = page("sources.md")
    ids = re.findall(r"^\| ([A-Z]\d+) \|", text, re.MULTILINE)
    folders = ("coordinator", "consumer", "drills", "tests", "scripts", "docs")
    files = [*(one for folder in folders for one in (ROOT / folder).rglob("*")), *ROOT.glob("*.md")]
    cited: set[str] = set()
    old: list[str] = []
    for one in files:
        name = one.relative_to(ROOT).as_posix()
        if one.is_file() and one.suffix in ("", ".py", ".md", ".txt") and "__pycache__" not in name:
            content = one.read_text()
            for found in re.findall(r"\b[Ss]ources ([A-Z]\d+(?:(?:, | to | and )[A-Z]\d+)*)", content):
                cited |= set(re.findall(r"[A-Z]\d+", found))
            if re.search(r"\bseed[ -]?00\d\b", content, re.IGNORECASE):
                old.append(name)

    assert (len(ids) > 140, len(set(ids))) == (True, len(ids))
    assert (len(cited) > 15, cited - set(ids), old) == (True, set(), [])


def test_the_readme_fits_on_a_page_and_links_every_page_of_the_docs() -> None:
    text = (ROOT / "README.md").read_text()

    assert len(text.splitlines()) <= README_LINES
    assert [path.name for path in sorted((ROOT / "docs").glob("*.md")) if f"docs/{path.name}" not in text] == []


@pytest.mark.parametrize(("path", "least"), [("README.md", {"log_dir", "segments_dir"}), ("docs/deploy.md", set())])
def test_the_application_that_a_page_shows_names_options_of_a_pool(path: str, least: set[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)
    calls = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call)]
    (pool,) = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "FetcherPool"]

    named = {keyword.arg for keyword in pool.keywords if keyword.arg}

    assert {"topics", *least} <= named <= {"topics", *defaults(SlotConfig)}


COMMAND_LINES = [
    (name, text)
    for name in ("../README.md", "commands.md", "configuration.md", "membership.md", "regions.md", "deploy.md")
    for text in shown_commands(page(name))
]


@pytest.mark.parametrize(("name", "text"), COMMAND_LINES, ids=lambda value: value)
def test_every_command_that_a_page_shows_parses(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "deploy.md":  # its commands are whole
        monkeypatch.setenv("ZK_GROUP_LOG_DIR", "/tmp/x")
    parse(text, may_lack_arguments=name != "deploy.md")


def test_the_page_of_commands_has_every_command_and_exit_code() -> None:
    text = page("commands.md")
    shown = {line.split()[1] for line in shown_commands(text) if line.startswith("zk-coordinator ")}
    codes = re.findall(r"(\d+) [A-Za-z]", coordinator_main.epilog or "")

    assert PLACES.keys() - {"conformance"} <= shown
    assert [row[0] for row in rows(text.split("| exit code |")[1])] == codes


def test_every_default_in_the_table_of_options_is_the_codes_own() -> None:
    known = defaults(SlotConfig) | defaults(ConsumerConfig) | defaults(CoordinatorConfig)
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


@pytest.mark.parametrize(
    ("name", "end", "head", "least"),
    [
        ("evidence.md", "\n## Drills before a release\n", "claim", 25),
        ("field.md", "\n## Numbers without a text\n", "report", 70),
    ],
)
def test_every_claim_and_every_report_of_the_field_names_tests(name: str, end: str, head: str, least: int) -> None:
    found = [row for row in rows(page(name).partition(end)[0]) if row[0] != head]

    assert len(found) >= least
    assert [row[0] for row in found if "`tests/" not in row[-1] and "**Open**" not in row[-2]] == []


def test_the_glossary_is_short() -> None:
    terms = [row for row in rows(page("glossary.md")) if row[0] != "term"]

    assert 20 <= len(terms) <= GLOSSARY_TERMS
    assert all(len(meaning) < 120 for _, meaning in terms)


def test_the_page_of_the_architecture_names_every_folder_of_the_layout() -> None:
    text = page("architecture.md")
    folders = [folder for top in ("coordinator", "consumer", "drills") for folder in (ROOT / top).iterdir()]

    assert [one.name for one in folders if one.is_dir() and one.name[0] != "_" and one.name not in text] == []


def test_nothing_is_fixed_or_changed_before_the_first_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()

    assert text.startswith("# Changelog\n\n## 0.1.0")
    assert "### Fixed" not in text.split("## 0.1.0")[1]


def test_events_are_renamed_to_those_of_the_tables() -> None:
    above, events = page("logs.md").split("## Renamed events")
    pairs = [(before.strip("`"), after.strip("`")) for before, after in rows(events)][1:]  # without their head

    assert len(pairs) > 70
    assert [after for _, after in pairs if f"| `{after}` |" not in above] == []
    assert [before for before, _ in pairs if f"| `{before}` |" in above] == []


# ---- the page of deployment


def test_every_default_in_the_table_of_timeouts_is_the_codes_own() -> None:
    options = [row for row in rows(section(DEPLOY, "Timeouts")) if len(row) == 6 and row[0].startswith("`")]
    assert len(options) >= 12
    for name, *cells, _ in options:
        for cell, kind in zip(cells, COLUMNS, strict=True):
            known = defaults(kind).get(name.strip("`"))
            shown = None if cell == "-" else int(cell.replace(",", ""))
            assert shown == known, f"{name} of {kind.__name__}"


def test_every_timeout_is_in_the_table_and_every_other_option_named_below_it_exists() -> None:
    known = {name for kind in COLUMNS for name in defaults(kind)}
    paragraph = DEPLOY.split("Other options that bound something:")[1].split("\n\n")[0]
    in_table = {row[0].strip("`") for row in rows(section(DEPLOY, "Timeouts"))}
    others = set(re.findall(r"`(\w+)`", paragraph))

    assert {name for name in known if name.endswith("_ms")} - in_table == set()
    assert others and others <= known


@pytest.mark.parametrize("title", ["Timeouts", "Sizing"])
def test_every_figure_beside_a_name_of_the_code_is_its_value(title: str) -> None:
    found = [
        (row[1], match)
        for row in rows(section(DEPLOY, title))
        if (match := re.search(r"\(`([\w.]+)\.([A-Z_]+)`\)", row[1]))
    ]
    assert len(found) >= 5
    for cell, match in found:
        value = getattr(importlib.import_module(match[1]), match[2])
        number = re.match(r"[\d,./]+", cell)
        assert number is not None, cell
        assert float(Fraction(number[0].replace(",", ""))) == pytest.approx(float(value)), cell


# ---- deploy/


def units() -> list[Path]:
    return sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def settings(unit: Path) -> dict[str, list[str]]:
    """`Section.Key` -> its values."""
    found: dict[str, list[str]] = {}
    title = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            title = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            found.setdefault(f"{title}.{key}", []).append(value)
    return found


def test_there_is_a_unit_for_nodes_and_one_for_consumers() -> None:
    assert [unit.name for unit in units()] == ["zk-consumer@.service", "zk-coordinator@.service"]
    for unit in units():
        assert {name.split(".")[0] for name in settings(unit)} == SECTIONS
        assert f"deploy/systemd/{unit.name}" in DEPLOY


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.name)
def test_systemd_reports_no_problem_with_a_unit(unit: Path, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / unit.name
    copy.write_text(re.sub(r"/opt/zk-group/bin/[\w-]+", str(program), unit.read_text()))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=60, check=False
    )

    # It reports ignored lines, and exits with 0 nevertheless; lines about other units of this machine do not count.
    assert [line for line in (done.stdout + done.stderr).splitlines() if unit.stem.rstrip("@") in line] == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.name)
def test_unit_command_parses_and_is_not_restarted_after_a_permanent_error(unit: Path) -> None:
    found = settings(unit)
    words = shlex.split(found["Service.ExecStart"][0].replace("%i", "c1").replace("${TOPICS}", "flights:2"))
    assert words[0].startswith("/opt/zk-group/bin/")

    parse(shlex.join([Path(words[0]).name, *words[1:]]))

    assert found["Service.KillSignal"] == ["SIGTERM"]
    assert found["Service.RestartPreventExitStatus"] == [" ".join(str(each.exit_code) for each in PERMANENT)]
    longest_s = 2 * CoordinatorConfig("zk").session_timeout_ms / 1000
    assert int(found["Service.TimeoutStopSec"][0]) > 2 * longest_s


def test_option_files_are_read_unchanged() -> None:
    config = load(CoordinatorConfig, {}, ROOT / "deploy" / "systemd" / "coordinator.toml", env={})
    pairs = (ROOT / "deploy" / "systemd" / "consumer.env").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in pairs if line and not line.startswith("#"))

    consumer = load(ConsumerConfig, {}, env=environment)

    assert (config.zk, config.zk) == (consumer.zk, "zk1:2181,zk2:2181,zk3:2181/groups")
    known = {f"ZK_GROUP_{name.upper()}" for name in defaults(ConsumerConfig)}
    assert set(environment) - known == {"TOPICS"}


def test_command_of_the_container_parses() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    (command,) = re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)

    parse(shlex.join(word.strip(' "') for word in command.split(",")))

    for line in re.findall(r"^#   (.*)$", text, re.MULTILINE):
        assert f"    {line}\n" in DEPLOY, "the page shows how it is built"
    (base,) = re.findall(r"^ARG BASE=\S+:(\S+)$", text, re.MULTILINE)
    assert base.startswith("3.") and sys.version_info >= (3, 11)
