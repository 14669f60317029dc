"""`zk-coordinator groups describe` and `verify`. All else is in `command_lines/groups.txt`."""

from __future__ import annotations

import json

import pytest

from coordinator.admin.topics import create_topic
from coordinator.cli.groups import NO_LAG
from coordinator.zk.store import Store
from coordinator.zk.znodes.group_state import COMPLETING, PREPARING, STABLE
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import Topic
from tests.support.cli import run, run_ok
from tests.support.hand import ManualStage
from tests.support.made_group import MadeGroup
from tests.support.world import World


@pytest.mark.parametrize("option", ["--offsets", "--members", "--state"])
@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("Empty", "Consumer group 'g' has no active members.\n"),
        (PREPARING, "Warning: Consumer group 'g' is rebalancing.\n"),
        (COMPLETING, "Warning: Consumer group 'g' is rebalancing.\n"),
        (STABLE, ""),
    ],
)
def test_group_without_members_or_in_a_rebalance_is_reported(
    zk: str, store: Store, option: str, state: str, message: str
) -> None:
    MadeGroup(store, state=state).offsets_at(create_topic(store, Brokers(), "t", 4), {0: 7})

    result = run_ok(zk, "groups", "describe", "g", option)

    assert result.stderr == message + (f"{NO_LAG}\n" if option == "--offsets" else "")
    assert run_ok(zk, "groups", "describe", "g", "-o", "json").stderr == message


def test_verify_agrees_with_the_coordinators_left_out_members(world: World, stage: ManualStage) -> None:
    hand = stage.hand()
    made, bare = world.topic("t", 2), world.topic("bare", 1)
    world.put(world.brokers.topic("bare"), Topic("bare", bare.id, ()).to_bytes())
    stage.topic("t", 2, made.id)
    stage.topics["bare"] = Topic("bare", bare.id, ())
    one = stage.puppet("g", "c1", {"t": 1, "bare": 1, "missing": 1})
    stuck = stage.puppet("g", "c2", {"t": 1}, max_poll_interval_ms=1)
    hand.evict(stuck, one)

    left_out = world.state("g").left_out
    document = json.loads(run(world.zk, "groups", "verify", "g", "-o", "json").stdout)
    found = {each["what"]: each["why"] for each in document["problems"]}

    assert (document["healthy"], "evicted" in left_out["c2"]) == (False, True)
    assert {what: why for what, why in found.items() if what in left_out} == dict(left_out)
    assert set(left_out) == {"bare", "missing", "c2"}
