"""Log lines whose number others decide: the first few of a kind, then a count."""

from __future__ import annotations

import logging

import pytest

from coordinator.term.reading import Findings, Problems
from coordinator.zk.runtime import INTERVAL_S, MOST_LINES, FirstLines
from coordinator.zk.znodes.paths import Brokers, GroupPaths
from tests.unit.manual import ManualRuntime

PATHS = GroupPaths("g")


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return lines


def test_first_lines_of_a_kind_are_taken_and_the_others_counted(caplog: pytest.LogCaptureFixture) -> None:
    runtime = ManualRuntime()
    lines = FirstLines(runtime)

    assert [lines.take("a") for _ in range(1_000)] == [True] * MOST_LINES + [False] * (1_000 - MOST_LINES)
    assert lines.take("b")
    assert logged(caplog) == ["further lines counted: kind=a interval_s=60"]

    runtime.sleep(INTERVAL_S - 1)
    lines.settle()
    assert logged(caplog) == []
    runtime.sleep(1)
    lines.settle()
    assert logged(caplog) == [f"lines left out: kind=a count={1_000 - MOST_LINES} interval_s=60"]
    assert lines.take("a")


def test_ten_thousand_bad_znodes_give_a_handful_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runtime = ManualRuntime()
    problems = Problems(runtime)
    findings = Findings(problems)
    paths = [PATHS.id(f"m{number}") for number in range(10_000)]

    for _ in range(3):  # rounds of one reader
        for path in paths:
            findings.report(path, "garbage")
        findings.done()
    findings.report(Brokers().topic("t"), "garbage")

    assert len(problems.current()) == problems.count == 10_001
    lines = logged(caplog)
    assert len(lines) == MOST_LINES + 2 and "topics/t" in lines[-1]

    findings.done()
    findings.done()
    assert len(problems.current()) == 0
    assert len(logged(caplog)) == MOST_LINES + 2
    runtime.sleep(INTERVAL_S)
    findings.done()
    assert sorted(logged(caplog)) == [
        f"lines left out: kind=recovered ids count={10_000 - MOST_LINES} interval_s=60",
        f"lines left out: kind=unreadable ids count={10_000 - MOST_LINES} interval_s=60",
    ]


def test_name_of_a_megabyte_is_cut_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    findings = Findings(Problems(ManualRuntime()))

    assert list(findings.usable(PATHS.ids, ["c1", "a" * 1_000_000, "b\nlevel=error"])) == ["c1"]

    assert all(len(line) < 500 and line.isprintable() for line in logged(caplog))
