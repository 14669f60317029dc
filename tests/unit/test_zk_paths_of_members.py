"""The rules and figures that zk_paths.md gives a member are those of the product's own consumer."""

from __future__ import annotations

import json
import re

import pytest

from tests.property.group_world import PATHS
from tests.unit.test_member import Life
from tests.unit.test_zk_paths import DOCUMENT


@pytest.fixture
def life() -> Life:
    """A group whose member has registered, and been sent nothing."""
    life = Life()
    life.poll()
    return life


def step(title: str) -> str:
    """A numbered rule of the document, on one line."""
    found = re.search(rf"^\d+\. \*\*{re.escape(title)}\*\*(.*?)(?=^\d+\. |^#|^\n)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, f"no rule {title}"
    return " ".join(found[1].split())


# ---- registration


def test_a_registration_creates_the_parents_that_the_rule_lists_in_its_order(life: Life) -> None:
    listed = re.search(r"in this order and without data: (.*?)\. Too", step("Register"))
    assert listed
    outer, below, channel = (re.findall(r"`([^`]+)`", part) for part in listed[1].split(";"))
    group = outer[-1]
    paths = [*outer, *(f"{group}/{name}" for name in below), *(f"{group}/{name}" for name in channel)]
    created = [path.replace("[group]", "g").replace("[consumer]", "a") for path in paths]

    tree = life.world.tree
    assert created == [*PATHS.skeleton, PATHS.channel("a")]
    assert [tree.data(path) for path in created[:-1]] == [b""] * len(PATHS.skeleton)
    zxids = [node.stat.czxid for node in map(tree.node, created) if node is not None]
    assert zxids == sorted(zxids)


def test_a_registration_writes_the_channel_that_the_rule_describes(life: Life) -> None:
    rule = step("Register")
    assert (
        '(`epoch` and `generation` 0, `command` "", `running` and `topics` empty, `ended` null, no other field)' in rule
    )

    data = json.loads(life.world.tree.data(PATHS.channel("a")) or b"")

    assert data.pop("incarnation")
    assert data == {
        "version": 1, "epoch": 0, "generation": 0, "command": "", "running": {}, "topics": {}, "ended": None
    }  # fmt: skip


def test_the_coordinator_creates_the_parents_of_a_topic_with_its_first_start(life: Life) -> None:
    tree = life.world.tree
    assert tree.data(PATHS.owners_of("t")) is None

    life.world.turn()

    assert life.commands
    assert (tree.data(PATHS.owners_of("t")), json.loads(tree.data(PATHS.offsets_of("t")) or b"")["topic_id"]) == (
        b"", "t-1"
    )  # fmt: skip
