"""The report of a drill in Markdown."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from drills.evidence.measurements import Measured
from drills.reports.facts import MINUS, amount, moment, seconds, sentences
from drills.reports.page import code, markdown, plain
from drills.reports.tables import NUMBERS, further_numbers, numbers
from tests.support.made_drill import begin, event, halt, history, run


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the tables in a section."""
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_report_lists_the_holders_of_each_partition_with_times() -> None:
    found = rows(markdown(run(), history()), "Timeline")

    assert ["g", "t-2", f"c2 {MINUS}8 s to 0 s; no fetcher 0 s to +5 s; c1 +5 s to end"] in found
    assert ["T2", "+4.1 s", "next coordinator"] in found
    assert ["T1", "did not happen", ""] in found


def test_overlap_is_highlighted() -> None:
    events = [*history()[:-1], begin(15.5, "c3#13", 0), halt(17.0, "c3#13", 0), event(20.0, "drill", "end")]

    assert "**two fetchers** +5.5 s to +7 s" in markdown(run(), events)


def test_report_has_promises_numbers_records_and_the_command_to_repeat_the_run() -> None:
    text = markdown(run(), history())

    assert ["the next coordinator acts", "session timeout + 2 ticks", "5.5 s", "4.1 s", "held"] in rows(
        text, "Promises"
    )
    assert ["no late write", "lease", "2.7 s", "not measured", "not measured"] in rows(text, "Promises")
    measured = rows(text, "Measurements")
    assert ["partitions with another consumer at the end than before the fault", "2"] in measured
    assert ["produced", "12,000"] in measured
    assert ["t-2", "5 s"] in measured
    assert "    zk-coordinator drill run coordinator-sigkill --seed 7" in text
    assert text.startswith("# PASS: Kill the coordinator\n")


def test_a_broken_invariant_has_its_witness_below() -> None:
    broken = run(verdict="FAIL", why=["S1 was broken"])
    broken["invariants"]["S1"].update(outcome="broken", why="by two", witness=[begin(15.5, "c3#13", 0)])

    text = markdown(broken, history())

    assert ["S1", "What S1 says.", "**broken**", "by two"] in rows(text, "Invariants")
    assert "### Witness of S1" in text
    assert any(row[:3] == ["+5.5 s", "c3\\#13", "begin"] for row in rows(text, "Invariants"))


def test_parts_missing_after_an_aborted_run_are_reported_in_their_place() -> None:
    text = markdown({}, [])

    assert text.startswith("# INCONCLUSIVE: Unnamed drill\n")
    assert "The run was aborted before it had a verdict." in text
    for what in ("T0 to T5", "the fetchers of the partitions", "the promises", "the numbers", "the record counts",
                 "the verdicts of the checker", "the plan of the drill", "the versions"):  # fmt: skip
        assert f"Missing: {what}" in text


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


def test_lasting_fault_and_fault_on_several_targets_are_described_as_such() -> None:
    events = [each for each in history() if each["event"] != "fault"]
    pause = event(10.0, "drill", "fault", kind="pause", process="c1#11", until=16.0)
    kills = [event(10.0 + n / 10, "drill", "fault", kind="sigkill", process=f"c{n}#1") for n in (1, 2)]
    odd = event(10.0, "drill", "fault", kind="full-disk")
    marks = run(marks={"T0": {"at": 10.0}})

    assert sentences(marks, [pause, *events])[0] == "c1 was paused for 6 s."
    assert "node-2 acted 4.1 s after it began (5.5 s promised)." in sentences(run(), [pause, *events])[0]
    assert sentences(marks, [*kills, *events])[0] == "c1 and c2 were killed."
    assert sentences(marks, [odd, *events])[0] == "The fault was full-disk."


def test_server_fault_is_described_for_the_server() -> None:
    events = [event(10.0, "server", "fault", kind="cut-server", server=2)]

    assert sentences(run(), events)[0].startswith("server 2 was cut off from its peers")


def test_seconds_and_amounts_are_written_in_readable_units() -> None:
    assert [seconds(value) for value in (0, 0.0421, 4.1, 12.345, 1234.56, -2.0, None)] == [
        "0 s", "0.042 s", "4.1 s", "12.35 s", "1,234.6 s", f"{MINUS}2 s", "not measured",
    ]  # fmt: skip
    assert [amount(value) for value in (12000, 2.0, None, True)] == ["12,000", "2", "not counted", "not counted"]
    assert [moment(at, 10) for at in (10, 14.1, 9)] == ["0 s", "+4.1 s", f"{MINUS}1 s"]
