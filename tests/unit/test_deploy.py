"""docs/deploy.md and deploy/: named objects exist, commands parse, and figures are the code's."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import shlex
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from consumer.config import ConsumerConfig
from consumer.spark.fetchers.config import SlotConfig
from consumer.spark.source.options import SourceConfig
from coordinator.term.config import CoordinatorConfig
from coordinator.zk.errors import AuthenticationFailed, MissingProgram, NotAuthorized, UsageError
from coordinator.zk.values import load
from tests.support.pages import parse, rows, shown_commands

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCUMENT = (ROOT / "docs" / "deploy.md").read_text()
COLUMNS: tuple[Any, ...] = (CoordinatorConfig, ConsumerConfig, SlotConfig, SourceConfig)
PERMANENT = (UsageError, MissingProgram, NotAuthorized, AuthenticationFailed)
SECTIONS = {"Unit", "Service", "Install"}


def section(title: str) -> list[list[str]]:
    """The rows of the tables below a heading."""
    return list(rows(DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]))


def defaults(kind: Any) -> dict[str, object]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


# ---- tables


def test_every_default_in_the_table_of_timeouts_is_the_codes_own() -> None:
    options = [row for row in section("Timeouts") if len(row) == 6 and row[0].startswith("`")]
    assert len(options) >= 12
    for name, *cells, _ in options:
        for cell, kind in zip(cells, COLUMNS, strict=True):
            known = defaults(kind).get(name.strip("`"))
            shown = None if cell == "-" else int(cell.replace(",", ""))
            assert shown == known, f"{name} of {kind.__name__}"


def test_every_timeout_that_can_be_configured_is_in_the_table() -> None:
    named = {row[0].strip("`") for row in section("Timeouts")}

    known = {name for kind in COLUMNS for name in defaults(kind) if name.endswith("_ms")}

    assert known - named == set()


def test_every_other_option_that_is_named_exists() -> None:
    paragraph = DOCUMENT.split("Other options that bound something:")[1].split("\n\n")[0]
    known = {name for kind in COLUMNS for name in defaults(kind)}

    named = set(re.findall(r"`(\w+)`", paragraph))

    assert named
    assert named <= known


@pytest.mark.parametrize("title", ["Timeouts", "Sizing"])
def test_every_figure_beside_a_name_of_the_code_is_its_value(title: str) -> None:
    found = [(row[1], match) for row in section(title) if (match := re.search(r"\(`([\w.]+)\.([A-Z_]+)`\)", row[1]))]
    assert len(found) >= 5
    for cell, match in found:
        value = getattr(importlib.import_module(match[1]), match[2])
        number = re.match(r"[\d,./]+", cell)
        assert number is not None, cell
        assert float(Fraction(number[0].replace(",", ""))) == pytest.approx(float(value)), cell


# ---- names


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"(tests/[\w/]+\.py)(?:::(test_\w+))?", DOCUMENT))
    assert len(named) >= 25
    for file, function in named:
        assert (ROOT / file).exists(), file
        assert not function or f"def {function}(" in (ROOT / file).read_text(), f"{file}::{function}"


# ---- commands


@pytest.mark.parametrize("text", shown_commands(DOCUMENT))
def test_every_command_that_the_page_shows_parses(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZK_GROUP_ZK", "127.0.0.1:1/x")
    parse(text)


# ---- the application


def test_the_application_that_the_page_shows_names_options_of_a_pool() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)

    (call,) = [
        node
        for node in ast.walk(ast.parse(program))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "FetcherPool"
    ]

    assert {keyword.arg for keyword in call.keywords} <= {*defaults(SlotConfig), "topics"}


# ---- deploy/


def units() -> list[Path]:
    return sorted((DEPLOY / "systemd").glob("*.service"))


def settings(unit: Path) -> dict[str, list[str]]:
    """`Section.Key` -> its values."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, line
            found.setdefault(f"{section}.{key}", []).append(value)
    return found


def test_there_is_a_unit_for_nodes_and_one_for_consumers() -> None:
    assert [unit.name for unit in units()] == ["zk-consumer@.service", "zk-coordinator@.service"]
    for unit in units():
        assert {name.split(".")[0] for name in settings(unit)} == SECTIONS
        assert f"deploy/systemd/{unit.name}" in DOCUMENT


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
def test_unit_command_parses_and_is_not_restarted_after_a_permanent_error(
    unit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZK_GROUP_ZK", "127.0.0.1:1/x")
    found = settings(unit)
    words = shlex.split(found["Service.ExecStart"][0].replace("%i", "c1").replace("${TOPICS}", "flights:2"))
    assert words[0].startswith("/opt/zk-group/bin/")

    parse(shlex.join([Path(words[0]).name, *words[1:]]))

    assert found["Service.KillSignal"] == ["SIGTERM"]
    assert found["Service.RestartPreventExitStatus"] == [" ".join(str(each.exit_code) for each in PERMANENT)]
    longest_s = 2 * CoordinatorConfig("zk").session_timeout_ms / 1000
    assert int(found["Service.TimeoutStopSec"][0]) > 2 * longest_s


def test_option_files_are_read_unchanged() -> None:
    config = load(CoordinatorConfig, {}, DEPLOY / "systemd" / "coordinator.toml", env={})
    pairs = (DEPLOY / "systemd" / "consumer.env").read_text().splitlines()
    environment = dict(line.split("=", 1) for line in pairs if line and not line.startswith("#"))

    consumer = load(ConsumerConfig, {}, env=environment)

    assert (config.zk, config.zk) == (consumer.zk, "zk1:2181,zk2:2181,zk3:2181/groups")
    known = {f"ZK_GROUP_{name.upper()}" for name in defaults(ConsumerConfig)}
    assert set(environment) - known == {"TOPICS"}


def test_command_of_the_container_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZK_GROUP_ZK", "127.0.0.1:1/x")
    text = (DEPLOY / "Containerfile").read_text()
    (command,) = re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)

    parse(shlex.join(word.strip(' "') for word in command.split(",")))

    for line in re.findall(r"^#   (.*)$", text, re.MULTILINE):
        assert f"    {line}\n" in DOCUMENT, "the page shows how it is built"
    (base,) = re.findall(r"^ARG BASE=\S+:(\S+)$", text, re.MULTILINE)
    assert base.startswith("3.") and sys.version_info >= (3, 11)
