"""The drill's own assignor: registered like a package's, with faults only on request."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest

from consumer.assignment.consumers import ENTRY_POINTS, client_assignors
from coordinator.zk.errors import UsageError
from drills.workloads import slot
from drills.workloads.slot import DrillAssignor
from tests.unit.test_client_cluster import assigned_by, subscribes


class Gate:
    """As `drills.workloads.process.Gate`, which takes signals."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()

    @property
    def is_open(self) -> bool:
        return self.opened.is_set()

    def pass_through(self) -> None:
        self.opened.wait()


@pytest.fixture
def gate() -> Iterator[Gate]:
    before = list(sys.meta_path)
    yield Gate()
    sys.meta_path[:] = before
    slot.installed = None


def loaded(misbehaves: str, gate: Gate, strategy: str = "cooperative-sticky") -> DrillAssignor:
    slot.install(strategy, gate, misbehaves)  # type: ignore[arg-type]
    found = client_assignors()["drill"]
    assert isinstance(found, DrillAssignor)
    return found


def shares(found: DrillAssignor) -> dict[str, int]:
    assignment = assigned_by(found, "t:4", {"a": subscribes("t"), "b": subscribes("t")})
    return {name: len(one.partitions) for name, one in assignment.items()}


def test_assignor_is_found_by_its_entry_point_and_assigns_as_the_named_strategy(gate: Gate) -> None:
    found = loaded("raises", gate)

    assert [point.name for point in entry_points(group=ENTRY_POINTS)].count("drill") == 1
    assert found.is_cooperative
    assert shares(found) == {"a": 2, "b": 2}
    assert not loaded("raises", gate, "range").is_cooperative


def test_assignor_raises_while_the_gate_is_shut(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    found = loaded("raises", gate)
    gate.opened.clear()

    with pytest.raises(RuntimeError, match="requested a failure"):
        shares(found)

    assert '"how":"raises"' in capsys.readouterr().out
    gate.opened.set()
    assert shares(found) == {"a": 2, "b": 2}


def test_assignor_hangs_until_the_gate_is_open(gate: Gate) -> None:
    found, answers = loaded("hangs", gate), list[dict[str, int]]()
    gate.opened.clear()
    leader = threading.Thread(target=lambda: answers.append(shares(found)))
    leader.start()

    leader.join(0.1)
    assert answers == []
    gate.opened.set()
    leader.join(10)
    assert answers == [{"a": 2, "b": 2}]


@pytest.mark.parametrize(("strategy", "misbehaves"), [("no-such", "hangs"), ("range", "sulks")])
def test_unknown_strategy_or_misbehaviour_is_an_error(gate: Gate, strategy: str, misbehaves: str) -> None:
    with pytest.raises(UsageError):
        slot.install(strategy, gate, misbehaves)  # type: ignore[arg-type]

    assert "drill" not in client_assignors()
