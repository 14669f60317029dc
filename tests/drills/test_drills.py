"""`zk-coordinator drill` on real processes: the verdict, the evidence, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.drills import ALL_DRILLS, REPOSITORY, started
from tests.support.wait import eventually
from zk_group.coordinator.zk.embedded.ensemble import command_line, descendants
from zk_group.drills.base.processes import NotReached
from zk_group.drills.checker import check_files
from zk_group.drills.testbed.testbed import DataFrameReader

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
READER = pytest.mark.full("each environment and kind of drill")
"""Of tests of the Spark that reads the DataFrame."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["coordinator-sigkill", "consumer-cut"])
def test_everything_that_a_verdict_was_decided_from_is_kept(short_set: dict[str, dict[str, Any]], name: str) -> None:
    drill = short_set[name]
    folder = Path(drill["folder"])
    document = json.loads((folder / "run.json").read_text())

    assert (folder.parent / "latest").resolve() == folder
    assert {"T0", "T1"} <= document["marks"].keys()
    assert drill["records"]["delivered"] == drill["records"]["produced"] > 100
    assert {each["outcome"] for each in document["invariants"].values()} <= {"held", "not decided"}
    assert document["versions"]["zookeeper"].startswith("3.")
    before, after = (json.loads((folder / name).read_text()) for name in ("before.json", "after.json"))
    assert "/consumers/groups/drill/state" in before.keys() & after.keys()
    assert {path.name for path in (folder / "logs").glob("node-*.log")} == {"node-1.log", "node-2.log"}
    assert not check_files(folder / "history.jsonl").broken
    assert document["title"] in (folder / "report.html").read_text()
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert (folder / "report.md").read_text().startswith(f"# {drill['verdict']}: {document['title']}")


@ALL_DRILLS
@pytest.mark.timeout(1200)
def test_a_killed_consumers_history_has_the_measured_standstill(short_set: dict[str, dict[str, Any]]) -> None:
    drill = short_set["consumer-sigkill"]
    after = json.loads((Path(drill["folder"]) / "after.json").read_text())
    records = [json.loads(node["data"]) for path, node in after.items() if "/drill/history/rebalance-" in path]
    found = max((each for each in records if each["standstill_ms"] is not None), key=lambda each: each["standstill_ms"])
    measured_ms = 1000 * drill["numbers"]["standstill"]["max_s"]

    # More by the way to the first fetch; and records flow: the last commit was not long before the kill.
    assert found["standstill_ms"] - 1500 <= measured_ms <= found["standstill_ms"] + 500


def test_a_drill_that_is_interrupted_leaves_no_process_behind(tmp_path: Path) -> None:
    with started(tmp_path, "coordinator-sigkill") as drill:
        try:
            family = eventually(
                lambda: (
                    [pid for pid in descendants(drill.pid) if "zk_group.drills.workloads producer" in command_line(pid)]
                    and [drill.pid, *descendants(drill.pid)]
                ),
                60,
                "the producer runs",
            )
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the first one counts
                drill.send_signal(number)
            assert drill.wait(60) == 130
        finally:
            drill.kill()
            drill.communicate()

    eventually(lambda: not [pid for pid in family if command_line(pid)], 20, "all of them are gone")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run"], "name the drills to run"),
        (["run", "coordinator-sigkill", "--all"], "name the drills to run"),
        (["run", "no-such"], "unknown drill 'no-such'"),
        (["describe", "no-such"], "unknown drill 'no-such'"),
        (["report", "."], "is not the folder of a drill's run"),
    ],
)
def test_usage_error_is_one_sentence_and_exit_code_2(words: list[str], message: str) -> None:
    command = [sys.executable, "-m", "zk_group.coordinator.cli", "drill", *words]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@READER
def test_reader_that_exits_reports_its_error_without_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    reader = DataFrameReader(tmp_path)
    try:
        with pytest.raises(NotReached, match=r"Spark has ended: .*JAVA_GATEWAY_EXITED"):
            reader.read("localhost:1", "g")
    finally:
        reader.close()


@READER
def test_a_reader_that_was_killed_is_started_again_for_the_next_question(tmp_path: Path, zk: str) -> None:
    reader = DataFrameReader(tmp_path)
    try:
        with pytest.raises(NotReached, match="no group missing"):
            reader.read(zk, "missing")
        os.kill(reader.process.pid, signal.SIGKILL)
        eventually(lambda: not reader.process.is_running, 10, "it is gone")

        with pytest.raises(NotReached, match="no group missing"):
            reader.read(zk, "missing")
        family = [reader.process.pid, *descendants(reader.process.pid)]
        assert any("org.apache.spark" in command_line(pid) for pid in family)
    finally:
        reader.close()
    eventually(lambda: not [pid for pid in family if command_line(pid)], 20, "its JVM has ended with it")
