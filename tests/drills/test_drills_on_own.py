"""`zk-coordinator drill run --zk` on an ensemble that is not the drill's: the verdict, and what is left there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.drills import PATIENT, environment
from tests.support.wait import eventually
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.znodes.paths import (
    CONSUMERS,
    COORDINATOR,
    COORDINATOR_EPOCH,
    GROUPS,
    NODES,
    Brokers,
    GroupPaths,
)
from zk_group.drills.evidence.files import znodes

REPOSITORY = Path(__file__).parents[2]
pytestmark = [pytest.mark.full("each environment and kind of drill"), pytest.mark.integration, pytest.mark.timeout(300)]


def started(zk: str, runs: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "zk_group.coordinator.cli", "drill", "run", *words, "--zk", zk, "--runs", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=REPOSITORY,
    )


def tree(zk: str) -> dict[str, Any]:
    """Everything below a chroot."""
    store = open_kazoo(zk, 10_000)
    try:
        return znodes(store, ["/"])
    finally:
        store.close()


@pytest.fixture
def shared(zk: str) -> str:
    """A chroot with foreign znodes."""
    store = open_kazoo(f"{zk}/neighbour/consumers", 10_000)
    store.close()
    return zk


def test_drills_pass_on_an_ensemble_without_readable_logs_and_leave_no_znodes(shared: str, tmp_path: Path) -> None:
    before = tree(shared)

    with started(shared, tmp_path, "coordinator-reply-lost", "consumer-sigkill", "--json", *PATIENT) as run:
        out, err = run.communicate()

    said = json.loads(out.splitlines()[-1])
    assert (run.returncode, said["verdict"]) == (0, "PASS"), err
    assert tree(shared) == before
    for drill in said["drills"]:
        document = json.loads((Path(drill["folder"]) / "run.json").read_text())
        assert document["ensemble"]["kind"] == "own"
        assert document["ensemble"]["chroot"] == "/" + shared.partition("/")[2]
        assert document["bounds"]["session_timeout"] == document["ensemble"]["negotiated_ms"] / 1000
        held = {name for name, each in document["invariants"].items() if each["outcome"] == "held"}
        assert held >= {"S1", "S2", "S3", "S4", "S5", "S6", "S7", "L1"}


def test_a_drill_that_is_interrupted_removes_its_chroot(shared: str, tmp_path: Path) -> None:
    before = tree(shared)

    with started(shared, tmp_path, "coordinator-sigkill") as run:
        try:
            eventually(lambda: any(path.endswith("/ids") for path in tree(shared)), 60, "a consumer registers")
            run.send_signal(signal.SIGINT)
            assert run.wait(60) == 130
        finally:
            run.kill()
            run.communicate()

    assert tree(shared) == before


def test_dry_run_on_a_named_group_lists_its_writes_and_writes_nothing(shared: str, tmp_path: Path) -> None:
    before = tree(shared)

    with started(shared, tmp_path, "coordinator-sigkill", "--group", "orders") as run:
        out, err = run.communicate()

    assert run.returncode == 0, err
    assert "/consumers/groups/orders and below" in out and "/consumers/coordinator_epoch" in out
    assert all(word in out for word in ("hypothesis", "steady state", "abort", "promise", "nothing was written"))
    assert tree(shared) == before
    assert list(tmp_path.iterdir()) == []


def test_a_drill_on_a_named_group_leaves_nothing_of_it_but_the_epoch(shared: str, tmp_path: Path) -> None:
    before = tree(shared)

    with started(shared, tmp_path, "coordinator-sigkill", "--group", "orders", "--execute", "--json", *PATIENT) as run:
        out, err = run.communicate()

    said = json.loads(out.splitlines()[-1])
    assert (run.returncode, said["verdict"]) == (0, "PASS"), err
    parents = {COORDINATOR_EPOCH, GROUPS, NODES, CONSUMERS, Brokers().root, Brokers().topics}
    after = tree(shared)
    assert {path for path in after if path not in before} == parents
    assert {path: node for path, node in after.items() if path in before} == before


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (GroupPaths("orders").id("c1"), "group orders exists: give another name"),
        (GroupPaths("other").root, "group other exists at --zk, too"),
        (COORDINATOR, "a coordinator runs at --zk"),
    ],
)
def test_drill_on_a_named_group_may_affect_no_other_client(zk: str, tmp_path: Path, there: str, message: str) -> None:
    open_kazoo(f"{zk}{there}", 10_000).close()

    with started(zk, tmp_path, "coordinator-sigkill", "--group", "orders", "--execute") as run:
        _, err = run.communicate()

    assert run.returncode == 2
    assert message in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["consumer-sigkill", "--execute"], "--execute needs --group"),
        (["zookeeper-quorum-lost"], "the servers of --zk are not touched"),
        (["consumer-sigkill", "--docker"], "mutually exclusive"),
        (["consumer-sigkill", "--group", "orders", "--execute", "--keep"], "--keep cannot be used with --group"),
    ],
)
def test_impossible_drill_on_own_servers_is_refused(zk: str, tmp_path: Path, words: list[str], message: str) -> None:
    with started(zk, tmp_path, *words) as run:
        _, err = run.communicate()

    assert run.returncode == 2
    assert message in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("end", "code"), [("/no-such-chroot", 2), ("", 4)])
def test_missing_chroot_and_silent_server_have_own_exit_codes(zk: str, tmp_path: Path, end: str, code: int) -> None:
    hosts = zk.partition("/")[0] + end if end else "127.0.0.1:1"

    with started(hosts, tmp_path, "consumer-sigkill") as run:
        _, err = run.communicate()

    assert run.returncode == code
    assert "Traceback" not in err
