"""Embedded servers in network namespaces: what is made, and that all of it is gone again."""

from __future__ import annotations

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.zk.errors import CoordinatorError
from drills.environments import namespaces
from drills.environments.namespaces import NETWORKS, Namespaces
from tests.support.ci import in_ci
from tests.support.drills import drilled

pytestmark = [pytest.mark.full("each environment and kind of drill"), pytest.mark.integration, pytest.mark.timeout(300)]

CUT_OFF = ("zookeeper-leader-cut-off", "--namespaces", "--session-timeout-ms", "6000")
REFUSALS = ("needs root", "install iproute2", "no network namespaces here")


def whether_possible() -> str:
    """The drill's error on a machine without permission for namespaces; empty with permission."""
    try:
        with Namespaces(1):
            return ""
    except CoordinatorError as error:
        return str(error)


REFUSAL = whether_possible()
possible = pytest.mark.skipif(bool(REFUSAL) and not in_ci(), reason=REFUSAL)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout


def left() -> set[str]:
    """The namespaces and interfaces of drills that there are."""
    return set(re.findall(r"zkdrill\d+-\d", ip("netns", "list") + ip("-brief", "link")))


def test_namespaces_that_are_not_permitted_are_one_clear_error() -> None:
    assert not REFUSAL or any(words in REFUSAL for words in REFUSALS)
    assert "\n" not in REFUSAL


@possible
def test_concurrent_runs_use_separate_networks_and_remove_them_on_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    before = left()

    with pytest.raises(KeyboardInterrupt), ExitStack() as stack:
        networks = [stack.enter_context(Namespaces(3)) for _ in range(2)]
        monkeypatch.setattr(namespaces, "_networks_in_use", lambda: list(NETWORKS[:-1]))
        networks.append(stack.enter_context(Namespaces(3)))
        hosts = [place.host for network in networks for place in network.places]
        assert len(set(hosts)) == len(left() - before) == 9
        assert hosts[-1] == str(NETWORKS[-1][4]), "the other networks are in use"
        raise KeyboardInterrupt

    assert left() == before


@possible
def test_partitions_keep_their_owners_when_the_leader_is_cut_off_from_its_peers(tmp_path: Path) -> None:
    before = left()

    code, said, err = drilled(tmp_path, *CUT_OFF, servers=3)

    assert (code, said["verdict"]) == (0, "PASS"), err
    assert said["drills"][0]["numbers"]["moved"] == 0
    assert left() == before
