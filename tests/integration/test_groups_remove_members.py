"""`zk-coordinator groups remove-members`: where no turn can be taken, no seat is marked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.zk.session.kazoo_store import open_kazoo
from coordinator.zk.store import Create
from coordinator.zk.znodes.paths import COORDINATOR
from coordinator.zk.znodes.records import CoordinatorRecord, Registration, Seat
from tests.support.cli import run, run_ok
from tests.support.made_group import MadeGroup


@pytest.fixture
def group(zk: str) -> Iterator[MadeGroup]:
    """A group with the seat of one absent member."""
    store = open_kazoo(zk, 10_000)
    made = MadeGroup(store)
    store.commit(
        [Create(made.paths.seat("c1"), Seat(Registration("life", {"t": 1}, instance_id="c1"), 10_000).to_bytes())]
    )
    yield made
    store.close()


def elected(group: MadeGroup) -> None:
    """An elected node that takes no turn."""
    group.store.commit([Create(COORDINATOR, CoordinatorRecord("a", "here", 1).to_bytes(), ephemeral=True)])


def seat(group: MadeGroup, instance: str = "c1") -> Seat:
    node = group.store.get(group.paths.seat(instance))
    assert node is not None
    return Seat.parse("", node.data)


def test_remove_members_marks_no_seat_without_an_elected_coordinator(zk: str, group: MadeGroup) -> None:
    result = run(zk, "groups", "remove-members", "g", "c1")

    assert (result.exit_code, result.stderr) == (
        1, "error: no coordinator is elected: start a node with `zk-coordinator run`\n"
    )  # fmt: skip
    assert seat(group).removed is None


def test_in_a_paused_group_no_seat_is_marked(zk: str, group: MadeGroup) -> None:
    elected(group)
    run_ok(zk, "pause", "g")

    result = run(zk, "groups", "remove-members", "g", "c1")

    assert (result.exit_code, "`resume g`" in result.stderr) == (2, True)
    assert seat(group).removed is None


def test_a_name_without_a_seat_among_others_leaves_all_as_they_are(zk: str, group: MadeGroup) -> None:
    elected(group)

    result = run(zk, "groups", "remove-members", "g", "c1", "missing")

    assert result.exit_code == 2
    assert "no seat of 'missing': it has those of c1" in result.stderr
    assert seat(group).removed is None


def test_seats_that_no_turn_removes_in_time_are_reported_as_marked(zk: str, group: MadeGroup) -> None:
    elected(group)

    result = run(zk, "groups", "remove-members", "g", "--all-members", "--timeout", "0.2", "--reason", "moved")

    assert result.exit_code == 1
    assert "the seats are marked as removed" in result.stderr
    assert seat(group).removed == "moved"
