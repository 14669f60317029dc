"""The report of a drill in Markdown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills.evidence.measurements import Measured
from drills.reports.facts import MINUS, amount, moment, seconds, sentences
from drills.reports.page import code, markdown, plain
from drills.reports.tables import NUMBERS, further_numbers, numbers
from tests.support.made_drill import DRILLS, happened, history, run

REPORTS = Path(__file__).with_name("drill_reports")


@pytest.mark.parametrize("drill", DRILLS)
def test_report_is_the_one_in_drill_reports(drill: str, request: pytest.FixtureRequest) -> None:
    """`--rewrite` writes what is found into the files: review the difference."""
    found, file = markdown(*DRILLS[drill]), REPORTS / f"{drill}.md"

    if request.config.getoption("--rewrite"):
        file.write_text(found)
    assert found == file.read_text()


def test_external_texts_add_no_markup_and_no_lines() -> None:
    nasty = "a | b\n# head <script>x</script> [l](u) `c` *d* \x1b[31m\u202e"
    lines = markdown(run(title=nasty, hypothesis=nasty, why=[nasty], drill=nasty), history()).splitlines()

    assert not any(line.startswith("# head") for line in lines)
    assert not any(re.search(r"(?<!\\)<script", line) for line in lines if not line.startswith("    "))
    assert not any(char in "".join(lines) for char in "\x1b\u202e")
    assert plain("a|b <i> `c`") == "a\\|b \\<i\\> \\`c\\`"
    assert code("a`b|c") == "`` a`b¦c ``"


def test_the_same_run_gives_the_same_report() -> None:
    assert markdown(run(), history()) == markdown(*json.loads(json.dumps([run(), history()])))


STOOD = {"t-0": 0.05, "t-1": 2.16, "t-2": 0.05, "t-3": 2.1, "t-4": 0.05, "t-5": 0.05, "t-6": 0.0}


def test_every_number_of_a_measurement_has_a_name_and_no_row_is_a_field() -> None:
    measured = Measured({"T0": 1.0}, {("t", 0): 2.0}, 1, 1, 1, 0.0, 0)

    assert further_numbers({"numbers": measured.to_json()}) == []
    without = [label for label, _ in numbers({"numbers": measured.to_json()})]
    with_all = replace(measured, resumed_s=1.0, settled_s=2.0).to_json()
    named = dict(numbers({"numbers": with_all}))
    assert len(named) == len(without) + 2 == len(NUMBERS) + 2
    assert named["longest from a kill to Stable without the killed process"] == "2 s"
    assert not [label for label in named if "_" in label]


def counts(*numbers: int) -> dict[str, int]:
    return dict(zip(("produced", "delivered", "lost", "duplicated"), numbers, strict=True))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"records": counts(9, 11, 1, 3)}, "Of 9 records 1 were lost and 3 were duplicated."),
        ({"records": counts(9, 8, 0, 0)}, "Of 9 records 0 were lost and 0 were duplicated."),
        ({"records": counts(9, 9, 0, 0)}, "9 records delivered once."),
        ({"numbers": {"standstill": {"max_s": 0, "by_partition": {"t-0": 0}}}}, "No partition stood still."),
        ({"numbers": {"standstill": {"max_s": 2, "by_partition": {"t-0": 2}}}},
         "1 partition stood still for 2 s, from one fetcher to the next."),
        ({"numbers": {"standstill": {"max_s": 2.16, "by_partition": STOOD}}},
         "2 of 7 partitions stood still for 2.1 s to 2.16 s, 4 for 0.05 s and 1 not at all, "
         "from one fetcher to the next."),
        ({"numbers": {"standstill": {"max_s": 2}}}, "Partitions stood still for 2 s at most."),
        ({"promises": []}, "node-1 was killed; node-2 acted 4.1 s later."),
        ({"marks": {"T0": {"at": 10.0}}}, "node-1 was killed."),
    ],
)  # fmt: skip
def test_summary_is_derived_from_the_measurements(changes: dict[str, object], sentence: str) -> None:
    assert sentence in sentences(run(**changes), history())


WITH_T0 = run(marks={"T0": {"at": 10.0}})


@pytest.mark.parametrize(
    ("of", "faults", "sentence"),
    [
        (WITH_T0, "10 drill fault kind=pause process=c1#11 until=16.0", "c1 was paused for 6 s."),
        (
            run(),
            "10 drill fault kind=pause process=c1#11 until=16.0",
            "c1 was paused for 6 s; node-2 acted 4.1 s after it began (5.5 s promised).",
        ),
        (
            WITH_T0,
            "10.1 drill fault kind=sigkill process=c1#1; 10.2 drill fault kind=sigkill process=c2#1",
            "c1 and c2 were killed.",
        ),
        (WITH_T0, "10 drill fault kind=full-disk", "The fault was full-disk."),
        (
            run(),
            "10 server fault kind=cut-server server=2",
            "server 2 was cut off from its peers; node-2 acted 4.1 s later (5.5 s promised).",
        ),
    ],
    ids=["lasting", "lasting, with a promise", "several targets", "another kind", "a server"],
)
def test_fault_is_described_as_such(of: dict[str, Any], faults: str, sentence: str) -> None:
    events = [*happened(faults), *(each for each in history() if each["event"] != "fault")]

    assert sentences(of, events)[0] == sentence


def test_seconds_and_amounts_are_written_in_readable_units() -> None:
    assert [seconds(value) for value in (0, 0.0421, 4.1, 12.345, 1234.56, -2.0, None)] == [
        "0 s", "0.042 s", "4.1 s", "12.35 s", "1,234.6 s", f"{MINUS}2 s", "not measured",
    ]  # fmt: skip
    assert [amount(value) for value in (12000, 2.0, None, True)] == ["12,000", "2", "not counted", "not counted"]
    assert [moment(at, 10) for at in (10, 14.1, 9)] == ["0 s", "+4.1 s", f"{MINUS}1 s"]
