"""`zk-coordinator drill` on real processes: the verdict, the evidence, and that a broken product fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.checker import check_file
from coordinator.drills.spark import below
from coordinator.zk.ensemble import command_line
from tests.support.wait import eventually

REPOSITORY = Path(__file__).parents[2]
BROKEN = Path(__file__).parent / "broken"
pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def started(runs: Path, *words: str, breaks: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BROKEN), str(REPOSITORY)])}
    environment |= {"DRILL_BREAKS": breaks} if breaks else {}
    command = [sys.executable, "-m", "coordinator.cli", "drill", "run", *words, "--runs", str(runs)]
    return subprocess.Popen(
        [*command, "--servers", "1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=REPOSITORY,
    )


def drilled(runs: Path, *words: str, breaks: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit code, what it said last, and all that it said to people."""
    with started(runs, *words, breaks=breaks) as drill:
        out, err = drill.communicate()
    return drill.returncode, json.loads(out.splitlines()[-1]), err


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], str]:
    """Two drills of one run: a coordinator is killed, a consumer is cut off."""
    return drilled(tmp_path_factory.mktemp("runs"), "coordinator-sigkill", "consumer-cut")


def test_drills_pass_when_the_promises_are_kept(passed: tuple[int, dict[str, Any], str]) -> None:
    code, said, err = passed

    assert (code, said["verdict"]) == (0, "PASS"), err
    killed, cut = said["drills"]
    assert [each["held"] for each in (*killed["promises"], *cut["promises"])] == [True] * 4
    assert killed["records"]["delivered"] == killed["records"]["produced"] > 100
    assert cut["numbers"]["moved"] <= 6
    assert cut["numbers"]["doubly_owned_s"] == 0.0


def test_everything_that_a_verdict_was_decided_from_is_kept(passed: tuple[int, dict[str, Any], str]) -> None:
    for drill in passed[1]["drills"]:
        folder = Path(drill["folder"])
        document = json.loads((folder / "run.json").read_text())
        assert (folder.parent / "latest").resolve() == folder
        assert {"T0", "T1"} <= document["marks"].keys()
        assert {each["outcome"] for each in document["invariants"].values()} <= {"held", "not decided"}
        assert document["versions"]["zookeeper"].startswith("3.")
        before, after = (json.loads((folder / name).read_text()) for name in ("before.json", "after.json"))
        assert "/consumers/groups/drill/state" in before.keys() & after.keys()
        assert {path.name for path in (folder / "logs").glob("node-*.log")} == {"node-1.log", "node-2.log"}
        assert not check_file(folder / "history.jsonl").broken
        assert document["title"] in (folder / "report.html").read_text()
        assert (folder / "report.md").read_text().startswith(f"# PASS: {document['title']}")


def test_two_that_fetch_one_partition_fail_the_drill_by_name(tmp_path: Path) -> None:
    """The consumer that is cut off takes its lease for longer than its session."""
    code, said, err = drilled(tmp_path, "consumer-cut", breaks="long_lease")

    assert (code, said["verdict"]) == (1, "FAIL"), err
    (drill,) = said["drills"]
    assert "S1" in drill["broken"]
    witness = json.loads((Path(drill["folder"]) / "run.json").read_text())["invariants"]["S1"]["witness"]
    assert {event["event"] for event in witness} >= {"begin", "lease"}


def test_a_drill_that_is_interrupted_leaves_no_process_behind(tmp_path: Path) -> None:
    with started(tmp_path, "coordinator-sigkill") as drill:
        try:
            family = eventually(
                lambda: (
                    [pid for pid in below(drill.pid) if "consumer.drill.producer" in command_line(pid)]
                    and [drill.pid, *below(drill.pid)]
                ),
                60,
                "the producer runs",
            )
            drill.send_signal(signal.SIGINT)
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
        (["run", "no-such"], "there is no drill 'no-such'"),
        (["describe", "no-such"], "there is no drill 'no-such'"),
        (["report", "."], "is no run of a drill"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words: list[str], message: str) -> None:
    command = [sys.executable, "-m", "coordinator.cli", "drill", *words]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)

    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
