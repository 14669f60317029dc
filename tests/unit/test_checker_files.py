"""Histories in files, and the command that checks them."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from tests.support.made_histories import Made
from tests.support.made_regions import region_story
from tests.support.made_story import G, story
from tests.support.written_histories import changed
from zk_group.coordinator.zk.errors import BadData
from zk_group.drills.checker import HELD, check, check_files
from zk_group.drills.checker.__main__ import main
from zk_group.drills.checker.replay import history_files
from zk_group.drills.checker.replay.history_files import merged
from zk_group.drills.checker.replay.txn_log import MAGIC, transactions


def write(path: Path, events: Iterable[Made | str]) -> Path:
    path.write_text("".join((e if isinstance(e, str) else json.dumps(e)) + "\n" for e in events))
    return path


def test_a_file_gives_the_verdicts_of_its_events(tmp_path: Path) -> None:
    events = story()

    assert check_files(write(tmp_path / "history.jsonl", events)) == check(events)


MALFORMED = [
    "",
    "what?",
    "[]",
    "1",
    '{"at":1}',
    '{"at":"soon","who":"a#1","event":"exit"}',
    '{"at":1,"who":"a#1","event":"exit","heard":"all"}',
    '{"at":1,"who":"a#1","event":"commit"}',
    '{"at":1,"who":"a#1","event":"commit","zxid":1,"ops":[{"op":"dance","path":"/"}]}',
    '{"at":1,"who":"a#1","event":"commit","zxid":1,"ops":[{"op":"set","path":"/","data":7}]}',
    '{"at":1,"who":"a#1","event":"commit","zxid":"1","ops":[]}',
    '{"at":1,"who":"a#1","event":"lease","role":"consumer","until":"late"}',
    '{"at":1,"who":"a#1","event":"begin","group":"g","consumer":"c","incarnation":"i","partitions":{"t":{"x":1}}}',
    '{"at":1,"who":"a#1","event":"halt","group":"g","consumer":"c","incarnation":"i","partitions":{"t":["x"]}}',
    '{"at":1,"who":"a#1","event":"fetch","group":"g","consumer":"c","incarnation":"i","ranges":[{"topic":"t"}]}',
    '{"at":1,"who":"a#1","event":"batch","group":"g","query":"q","batch":1,"after":0,"upto":0,"segments":[],"rows":7}',
    '{"at":1,"who":"server","event":"run","bounds":{"tick":1}}',
    '{"at":NaN,"who":"server","event":"calm"}',
    "[" * 100_000,
]


@pytest.mark.parametrize("line", MALFORMED[1:], ids=lambda line: line[:40])
def test_unreadable_line_is_ignored_and_reported_with_the_verdicts(tmp_path: Path, line: str) -> None:
    events: list[Made | str] = [*story()]
    events.insert(5, line)
    path = write(tmp_path / "history.jsonl", events)

    verdicts = check_files(path)

    assert (verdicts.set_aside, len(verdicts.problems)) == (1, 1)
    assert verdicts.problems[0].startswith(f"{path}:6: ")
    assert {(v.outcome, v.is_due) for v in verdicts.verdicts.values()} == {("not decided", True)}
    assert verdicts["S1"].why == "1 unreadable events were ignored"
    assert verdicts.is_inconclusive and "1 set aside" in verdicts.text()


def test_a_line_that_a_killed_process_has_not_finished_is_no_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "history.jsonl", story())
    with path.open("ab") as file:
        file.write(b'{"at":99,"who":"a#1","event":"commi')

    assert (check_files(path).set_aside, check_files(path).problems) == (0, ())


def test_empty_lines_are_no_events(tmp_path: Path) -> None:
    path = write(tmp_path / "history.jsonl", ["", *story(), "  "])

    assert check_files(path).set_aside == 0


def test_line_over_the_limit_is_ignored_and_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_files, "LONGEST_LINE", 10_000)
    events: list[Made | str] = [*story()]
    events.insert(3, " " * 35_000)
    path = write(tmp_path / "history.jsonl", events)

    verdicts = check_files(path)

    assert verdicts.problems == (f"{path}:4: over 10000 bytes",)
    assert verdicts.events == len(events) - 1


def test_at_most_ten_problems_are_reported(tmp_path: Path) -> None:
    verdicts = check_files(write(tmp_path / "history.jsonl", ["?"] * 30))

    assert (verdicts.set_aside, len(verdicts.problems)) == (30, 10)


def test_violation_is_reported_though_lines_were_ignored(tmp_path: Path) -> None:
    events = [event for event in story() if event["event"] != "halt"]

    verdicts = check_files(write(tmp_path / "history.jsonl", [*events, "?"]))

    assert "S1" in [verdict.invariant for verdict in verdicts.broken]
    assert not verdicts.is_inconclusive


def test_unknown_events_and_fields_are_ignored() -> None:
    def add(events: list[Made]) -> None:
        for event in events:
            event["novel"] = {"of": ["a", "later", "release"]}
        events[5:5] = [{"at": 0.5, "who": "x#1", "event": "daydream", "about": 1}]

    assert {verdict.outcome for verdict in changed(add).verdicts.values()} == {HELD}


@pytest.mark.long
def test_incomplete_or_shuffled_history_still_gives_a_verdict() -> None:
    events, random = story(), Random(7)
    for round_ in range(30):
        some = [event for event in events if random.random() < 0.8]
        if round_ % 2:
            random.shuffle(some)

        assert check(some).events == len(some)


def test_a_history_without_bounds_decides_nothing_that_needs_them() -> None:
    verdicts = changed(lambda events: events.pop(0))

    undecided = [v.invariant for v in verdicts.verdicts.values() if v.outcome == "not decided"]
    assert undecided == ["S7", "L1", "L2", "L3", "L4", "L5", "L6"]
    assert verdicts["S7"].why == "there is no `run` event, so the bounds are unknown"
    assert verdicts.is_inconclusive


def parted(folder: Path, events: list[Made]) -> list[str]:
    """A file for each process, with no two events at the same moment."""
    for number, event in enumerate(events):
        event["at"] = round(event["at"] + number * 1e-6, 6)
    paths = []
    for number, who in enumerate(sorted({event["who"] for event in events})):
        paths.append(write(folder / f"{number}.jsonl", [event for event in events if event["who"] == who]))
    return [str(path) for path in paths]


def test_the_files_of_several_processes_are_merged(tmp_path: Path) -> None:
    assert main(parted(tmp_path, story())) == 0


def test_commit_reported_late_is_ordered_before_its_successors(tmp_path: Path) -> None:
    events = story()
    seals = [e for e in events if e["event"] == "commit" and e["ops"][-1]["path"].startswith(G.segment_prefix)]
    late, after = seals[0], seals[1]
    assert (late["who"], after["who"], after["zxid"]) == ("s0#1", "s1#1", late["zxid"] + 1)
    late["at"] = after["at"] + 0.3

    assert main(parted(tmp_path, events)) == 0


REPORTS = ("restored", "taken", "saved", "state")


@pytest.mark.parametrize(("reporting", "broken"), [(REPORTS, set()), ((), {"S10", "S11"})])
def test_what_a_process_knew_precedes_its_report(tmp_path: Path, reporting: Iterable[str], broken: set[str]) -> None:
    """As on real processes: ZooKeeper's log has the time of a transaction in milliseconds."""
    zookeeper, processes, heard = [], [], 0
    for number, event in enumerate(region_story()):
        event["at"] += number * 1e-6
        if event["event"] in ("commit", "closed"):
            zookeeper.append({**event, "at": event["at"] + 0.001})
            heard = event["zxid"]
        else:
            processes.append({**event, "heard": heard} if event["event"] in reporting else event)
    files = [write(tmp_path / f"{number}.jsonl", events) for number, events in enumerate((processes, zookeeper))]

    found = {verdict.invariant for verdict in check(merged([history_files.Lines(file) for file in files])).broken}

    assert found & {"S10", "S11"} == broken


def test_command_reports_that_everything_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "history.jsonl", story())

    assert main([str(path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith(" events") and printed[1:3] == ["S1 held", "S2 held"] and len(printed) == 17


def test_command_reports_the_violation_and_its_witness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = story()
    halt = next(event for event in events if event["event"] == "halt" and event["who"] == "s1#1")
    events.remove(halt)
    path = write(tmp_path / "history.jsonl", events)

    assert main([str(path)]) == 1
    printed = capsys.readouterr().out
    assert "S1 broken: flights-3 of group g was fetched by s1#1" in printed
    assert "\n    1.08 s s1#1 begin " in printed

    assert main([str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [each["invariant"] for each in document["verdicts"] if each["outcome"] == "broken"] == ["S1", "S6"]
    assert document["verdicts"][0]["witness"][0]["event"] == "begin"


def test_command_reports_an_undecided_invariant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "history.jsonl", story()[:-1])

    assert main([str(path)]) == 3
    assert "S7 not decided: the history has no `end`" in capsys.readouterr().out


def test_missing_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.jsonl")]) == 2
    assert "cannot read" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 2


def test_control_characters_of_a_history_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = story()
    for event in events:
        if event["event"] == "halt":
            event["why"] = "\x1b[2J"
    events.insert(1, {"at": 0, "who": "\x1b[31m", "event": "begin"})
    halt = next(event for event in events if event["event"] == "halt" and event["who"] == "s1#1")
    events.remove(halt)

    assert main([str(write(tmp_path / "history.jsonl", events))]) == 1
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(("stale", "found"), [(1, [7]), (2, None)], ids=["being written", "damaged"])
def test_transaction_that_its_server_was_writing_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stale: int, found: list[int] | None
) -> None:
    body = struct.pack(">qiqqi", 1, 1, 7, 0, -11) + b"x" * 300
    path = tmp_path / "log.1"
    path.write_bytes(MAGIC + bytes(12) + struct.pack(">qi", zlib.adler32(body), len(body)) + body + b"B")

    class Live(io.FileIO):
        left = stale

        def read(self, size: int | None = -1, /) -> bytes:
            read = super().read(size)
            if size == len(body) and self.left:
                self.left -= 1
                return read[:100] + bytes(len(read) - 100)
            return read

    monkeypatch.setattr(Path, "open", lambda self, *_, **__: Live(self))
    if found is None:
        with pytest.raises(BadData, match="checksum is wrong"):
            list(transactions(path))
    else:
        assert [each.zxid for each in transactions(path)] == found
