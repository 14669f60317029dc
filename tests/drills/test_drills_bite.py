"""That the drills bite: each invariant, broken once in real processes, fails a drill by its name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.drills.broken import consumers, nodes
from tests.support.drills import ALL_DRILLS, BITES_AT_ONCE, asked_for, bitten
from zk_group.drills.checker import Checker
from zk_group.drills.runner import DRILLS


class Bite(NamedTuple):
    """A mutation of `tests/drills/broken`, and the invariant by which a drill shows it."""

    breaks: str
    mutation: str
    drill: str


BITES = (
    Bite("S1", "lease_outlives_its_session", "consumer-cut"),
    Bite("S2", "stable_before_it_is", "consumer-sigterm"),
    Bite("S3", "stop_forgets_the_epoch", "consumer-sigterm"),
    Bite("S4", "last_commit_is_sent_again", "coordinator-pause"),
    Bite("S5", "what_cannot_be_sealed_is_skipped", "disk-full"),
    Bite("S6", "stop_is_acknowledged_first", "consumer-sigterm"),
    Bite("S7", "commands_of_the_dead_stay", "consumer-sigkill"),
    Bite("L1", "starts_are_late", "two-processes-one-name"),
    Bite("L4", "removed_commands_are_sent_again_at_once", "member-lies-acknowledges-only"),
    Bite("L2", "new_partitions_are_overlooked", "partitions-added"),
    Bite("S9", "another_share_than_the_answer", "leader-hangs-in-assign"),
    Bite("S10", "region_does_not_look_back", "region-reset-to-initial"),
    Bite("S10", "states_of_the_gone_are_dropped", "region-member-sigkill-in-drain"),
    Bite("S10", "first_record_after_a_reset_counts_twice", "region-rebalance-in-drain"),
    Bite("S11", "region_does_not_look_back", "region-reset-to-initial"),
    Bite("L6", "region_that_went_back_stays_resetting", "region-reset-to-initial"),
    Bite("L5", "failed_leader_is_asked_again", "leader-raises"),
    Bite("L3", "handler_waits_for_acknowledgements", "consumer-never-acknowledges"),
)


ONE = BITES[0]
"""That a drill fails at all is in `scripts/test` without `full`."""


def rounds(bites: Sequence[Bite]) -> list[list[Bite]]:
    """The bites in as few runs as possible: one run has each drill once."""
    found: list[list[Bite]] = []
    for bite in bites:
        free = next((some for some in found if _has_room(some, bite)), None)
        if free is None:
            found.append([bite])
        else:
            free.append(bite)
    return found


def _has_room(some: list[Bite], bite: Bite) -> bool:
    """One run of a drill shows all that one mutation breaks."""
    return all(other.drill != bite.drill or other.mutation == bite.mutation for other in some)


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Mutation -> the report of its drill."""
    bites = asked_for(request, "bite")
    lanes = [some for lane in range(BITES_AT_ONCE) for some in rounds(bites[lane::BITES_AT_ONCE])]
    return bitten(tmp_path_factory, [{bite.drill: bite.mutation for bite in some} for some in lanes])


@pytest.mark.integration
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "bite",
    [bite if bite is ONE else pytest.param(bite, marks=ALL_DRILLS) for bite in BITES],
    ids=[f"{bite.breaks}-{bite.mutation}" for bite in BITES],
)
def test_a_drill_fails_by_the_name_of_the_broken_invariant(reports: dict[str, dict[str, Any]], bite: Bite) -> None:
    drill = reports[bite.mutation]

    assert drill["verdict"] == "FAIL"
    assert bite.breaks in drill["broken"], drill["why"]
    invariants = json.loads((Path(drill["folder"]) / "run.json").read_text())["invariants"]
    assert invariants[bite.breaks]["witness"]


def test_every_invariant_is_broken() -> None:
    assert {bite.breaks for bite in BITES} == {invariant.name for invariant in Checker().invariants}


@pytest.mark.parametrize("bite", BITES, ids=[bite.mutation for bite in BITES])
def test_a_mutation_is_of_nodes_or_of_consumers_and_its_drill_exists(bite: Bite) -> None:
    assert hasattr(nodes, bite.mutation) != hasattr(consumers, bite.mutation)
    assert bite.drill in DRILLS
