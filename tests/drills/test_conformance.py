"""`zk-coordinator conformance`: consumers that pass the kit, and some that must not."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pyspark
import pytest

from tests.support.ci import in_ci
from tests.support.drills import PATIENT, REPOSITORY, environment, finished
from tests.support.wait import eventually
from zk_group.drills.conformance.bench import OPTIONAL
from zk_group.drills.conformance.cli import SCENARIOS

JAVA_CONSUMER = REPOSITORY / "examples" / "ZkConsumer.java"
JARS = f"{Path(pyspark.__file__).parent}/jars/*"
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.nio=ALL-UNNAMED")
MOST_LINES = 400

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


def tried(runs: Path, *words: str, breaks: Mapping[str, str] = {}) -> tuple[int, dict[str, Any]]:
    """Exit code and result of the kit.

    :param breaks: scenario -> a mutation of `tests/drills/broken`.
    """
    command = [
        sys.executable,
        "-m",
        "zk_group.coordinator.cli",
        "conformance",
        *words,
        *PATIENT,
        "--runs",
        str(runs),
        "--json",
    ]
    kit = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(breaks), cwd=REPOSITORY
    )
    code, result, _ = finished(kit)
    return code, result


def failures(result: dict[str, Any]) -> dict[str, list[str]]:
    """The scenarios that failed, each with the reasons."""
    return {each["name"]: each["why"] for each in result["scenarios"] if not each["passed"]}


def test_the_products_own_consumer_passes_every_scenario(tmp_path: Path) -> None:
    code, result = tried(tmp_path)

    assert failures(result) == {}
    assert (code, result["passed"], result["left_out"]) == (0, True, [])
    assert len(result["scenarios"]) == len(SCENARIOS) >= 20


@pytest.fixture(scope="module")
def java_consumer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The command of the Java consumer, compiled once: `java File.java` compiles at each start."""
    compiler = shutil.which("javac")
    if compiler is None:
        assert not in_ci(), "CI needs a JDK"
        pytest.skip("a JDK is needed")
    classes = tmp_path_factory.mktemp("classes")
    subprocess.run([compiler, "-proc:none", "-cp", JARS, "-d", str(classes), str(JAVA_CONSUMER)], check=True)
    return f"java -Xmx128m {' '.join(QUICK)} -cp {classes}:{JARS} ZkConsumer"


@pytest.mark.full("consumers of others")
def test_a_consumer_in_java_passes_every_scenario_it_does_not_leave_out(java_consumer: str, tmp_path: Path) -> None:
    code, result = tried(tmp_path, "--consumer", java_consumer, "--without", ",".join(OPTIONAL))

    assert failures(result) == {}
    assert (code, result["passed"], result["left_out"]) == (0, True, ["static-member", "wildcard"])


@pytest.mark.full("consumers of others")
def test_the_java_consumer_is_one_file_that_the_pages_command_runs(java_consumer: str, tmp_path: Path) -> None:
    printed = re.search(r'"(java .*)"', (REPOSITORY / "docs" / "conformance.md").read_text())
    assert printed is not None
    command = printed[1].replace("$JARS/*", JARS)

    code, result = tried(tmp_path, "leave", "--consumer", command)

    assert (code, failures(result)) == (0, {})
    assert len(JAVA_CONSUMER.read_text().splitlines()) <= MOST_LINES


WRONG = {
    "ownership": ("claims_without_owners", "owner"),
    "older-commands": ("obeys_every_command", "after commands that do not count"),
    "commands-for-others": ("obeys_every_command", "after commands that do not count"),
    "heartbeat": ("gives_few_signs_of_life", "times in 2.5 max_poll_interval_ms"),
    "cooperative": ("idles_until_the_group_is_stable", "meanwhile"),
    "lease": ("lease_outlives_its_session", "its lease is over"),
    "withdrawn-command": ("obeys_withdrawn_commands", "after commands that do not count"),
    "torn-start": ("obeys_withdrawn_commands", "of a start that was withdrawn"),
    "take-over": ("ends_well_without_its_name", "exit code 0"),
}
"""Scenario -> a mutation of the consumer, and a part of the reason for which it fails."""


@pytest.mark.full("consumers of others")
def test_a_consumer_that_breaks_a_rule_fails_the_scenario_of_that_rule(tmp_path: Path) -> None:
    breaks = {name: mutation for name, (mutation, _) in WRONG.items()}
    code, result = tried(tmp_path, *breaks, breaks=breaks)

    found = failures(result)
    assert (code, result["passed"]) == (1, False)
    assert {
        name: any(part in why for why in found.get(name, ())) for name, (_, part) in WRONG.items()
    } == dict.fromkeys(WRONG, True), found
    assert any(why.startswith("S1 is broken") for why in found["ownership"])
    page = (REPOSITORY / "docs" / "evidence.md").read_text()
    assert f"{len({*breaks.values()})} mutations of ours fail {len(breaks)} scenarios" in page


@pytest.mark.full("consumers of others")
def test_a_coordinator_that_ends_is_an_abort_of_the_kit_and_no_failure(tmp_path: Path) -> None:
    code, result = tried(tmp_path, "leave", breaks={"leave": "ends_at_once"})

    (scenario,) = result["scenarios"]
    assert (code, result["passed"], scenario["passed"]) == (3, False, False)
    assert scenario["aborted"] == ["the coordinator node-1 has ended unexpectedly"]


@pytest.mark.full("consumers of others")
def test_a_kit_that_is_interrupted_ends_its_processes(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "zk_group.coordinator.cli",
        "conformance",
        "eviction",
        "lease",
        "--runs",
        str(tmp_path),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=REPOSITORY
    ) as kit:
        try:
            eventually(lambda: list(tmp_path.rglob("c1.out")), 60, "a consumer is started")
            started = psutil.Process(kit.pid).children(recursive=True)
            kit.send_signal(signal.SIGINT)
            assert kit.wait(60) == 130
        finally:
            kit.kill()
            _, err = kit.communicate()

    assert "Traceback" not in err
    assert [each for each in started if each.is_running()] == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["no-such"], 2, "there is no scenario no-such"),
        (["--without", "speed"], 2, "--without takes static-members, wildcards, not speed"),
        (["--consumer", "no-such-program"], 69, "there is no program no-such-program"),
        (["--consumer", "'"], 2, "cannot be split into words"),
    ],
)
def test_wrong_usage_is_refused_in_one_sentence(words: list[str], code: int, message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "zk_group.coordinator.cli", "conformance", *words, "--runs", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=REPOSITORY, check=False)

    assert (found.returncode, message in found.stderr, "Traceback" in found.stderr) == (code, True, False), found.stderr
    assert list(tmp_path.iterdir()) == []
