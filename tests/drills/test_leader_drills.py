"""Drills on client-side assignment: each passes, and each promise is broken by a product that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.drills.broken import consumers, nodes
from tests.support.drills import bitten, require_pass
from zk_group.drills.evidence.fetch_intervals import AskShown, asks_of
from zk_group.drills.runner import DRILLS
from zk_group.drills.scenarios.coordinators import LEADERS
from zk_group.drills.scenarios.definition import (
    ASKED_ONCE,
    EVERYBODY_HEARS,
    NEXT_LEADER_AFTER_A_HANG,
    NOTHING_IS_REVOKED,
    SETTLED_WITHOUT_THE_LEADER,
)

pytestmark = [pytest.mark.full("each environment and kind of drill"), pytest.mark.integration, pytest.mark.timeout(900)]

NAMES = [drill.name for drill in LEADERS]
BACKOFF_S = 0.2


class Bite(NamedTuple):
    """A mutation of `tests/drills/broken`, and the promise that a drill then does not see kept."""

    mutation: str
    drill: str
    promise: str


BITES = (
    Bite("dead_leader_is_waited_for", "leader-sigkill", SETTLED_WITHOUT_THE_LEADER.name),
    Bite("hung_leader_is_waited_for", "leader-hangs-in-assign", NEXT_LEADER_AFTER_A_HANG.name),
    Bite("asks_of_another_are_made_anew", "coordinator-sigkill-each-step-client", ASKED_ONCE.name),
    Bite("failures_are_not_told", "leader-raises", EVERYBODY_HEARS.name),
    Bite("leader_stops_before_it_assigns", "leader-hangs-in-assign", NOTHING_IS_REVOKED.name),
)
ROUNDS = (BITES[:2], BITES[2:4], BITES[4:])
"""One run has each drill once."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Mutation -> the report of its drill."""
    return bitten(tmp_path_factory, [{bite.drill: bite.mutation for bite in some} for some in ROUNDS])


def asks(drill: dict[str, Any]) -> list[AskShown]:
    """Of the group in a run, since its fault."""
    lines = (Path(drill["folder"]) / "history.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    fault_at = next(event["at"] for event in events if event["event"] == "fault")
    return [ask for ask in asks_of(events) if ask.made >= fault_at]


@pytest.mark.parametrize("name", NAMES)
def test_leader_and_coordinator_failures_stay_within_bounds(quiet_set: dict[str, dict[str, Any]], name: str) -> None:
    require_pass(quiet_set[name])


@pytest.mark.parametrize("name", ["leader-hangs-in-assign", "leader-raises"])
def test_the_next_leader_is_asked_after_a_backoff_and_all_hear(quiet_set: dict[str, dict[str, Any]], name: str) -> None:
    failed, adopted = asks(quiet_set[name])

    assert failed.failed is not None and failed.adopted is None
    assert failed.leader != adopted.leader and adopted.adopted is not None
    assert adopted.made - failed.failed >= BACKOFF_S - 0.002
    assert failed.leader in failed.heard == failed.members == adopted.members


def test_a_killed_leader_leaves_nothing_then_a_part_then_a_whole_answer(quiet_set: dict[str, dict[str, Any]]) -> None:
    lines = (Path(quiet_set["leader-sigkill"]["folder"]) / "history.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    killed = [event["process"] for event in events if event.get("kind") == "kill"]
    ends = [ask for ask in asks_of(events) if ask.leader in {who.partition("#")[0] for who in killed}]
    made = {op["path"] for event in events for op in event.get("ops", ()) if op["op"] == "create"}

    def left(ask: AskShown) -> set[str]:
        return {path.partition(f"/{ask.name}/")[2].partition("-")[0] for path in made if f"/{ask.name}/" in path}

    without_answer = [left(ask) for ask in ends if ask.adopted is None]
    assert len(killed) == 3
    assert without_answer == [set(), {"member"}]


def test_the_ask_of_a_dead_coordinator_is_sent_again_to_the_same_leader(quiet_set: dict[str, dict[str, Any]]) -> None:
    found = asks(quiet_set["coordinator-sigkill-each-step-client"])

    assert len(found) == 7
    assert all(ask.adopted is not None for ask in found)
    assert len({ask.leader for ask in found}) == 1


@pytest.mark.parametrize("bite", BITES, ids=[bite.mutation for bite in BITES])
def test_a_drill_fails_by_the_promise_that_is_broken(reports: dict[str, dict[str, Any]], bite: Bite) -> None:
    drill = reports[bite.mutation]

    assert drill["verdict"] == "FAIL"
    broken = [promise["name"] for promise in drill["promises"] if promise["held"] is False]
    assert bite.promise in broken, drill["why"]


@pytest.mark.parametrize("bite", BITES, ids=[bite.mutation for bite in BITES])
def test_a_mutation_is_of_nodes_or_of_consumers_and_its_promise_is_one_of_its_drill(bite: Bite) -> None:
    assert hasattr(nodes, bite.mutation) != hasattr(consumers, bite.mutation)
    assert bite.promise in [promise.name for promise in DRILLS[bite.drill].promises]
