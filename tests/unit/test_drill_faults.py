"""Faults of drills on ZooKeeper: recorded before the injection, and undone even when incomplete."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from drills.environments.containers import EngineError
from drills.runner import DRILLS
from drills.testbed.testbed import Stage

SESSION_S = 0.2


class Environment:
    """Three servers, of which 0 leads until a fault on it. `refuses` has the faults that fail."""

    addresses = ("one", "two", "three")

    def __init__(self, done: list[str], refuses: dict[str, BaseException]) -> None:
        self._done = done
        self._refuses = refuses

    def act(self, action: str, server: int) -> None:
        self._done.append(f"{action} {server}")
        if action in self._refuses:
            raise self._refuses[action]

    def leader(self) -> int:
        return 1 if self._done else 0

    def has_leader(self) -> bool:
        return True

    def is_healthy(self) -> bool:
        return True


class Recorded:
    """In place of a stage; its faults, in order."""

    bounds = {"session_timeout": SESSION_S}

    def __init__(self, **refuses: BaseException) -> None:
        self.done: list[str] = []
        self.environment = Environment(self.done, refuses)
        self.lasted: list[tuple[float, float]] = []

    def fault(self, kind: str, seconds: float = 0.0, **_: Any) -> float:
        at = time.monotonic()
        self.done.append(kind)
        self.lasted.append((at, seconds))
        return at

    def slots(self) -> set[str]:
        return set()

    def wait_settled(self, _: set[str]) -> None:
        """It is."""


def run(name: str, stage: Recorded) -> None:
    DRILLS[name].run(cast(Stage, stage))


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("zookeeper-leader-sigkill", ["stop-server", "kill 0", "start 0", "server-returns"]),
        ("zookeeper-follower-sigkill", ["stop-server", "kill 1", "start 1", "server-returns"]),
        ("zookeeper-leader-pause", ["pause-server", "pause 0", "resume 0", "server-returns"]),
        ("zookeeper-leader-cut-off", ["cut-server", "cut off 0", "join 0", "server-returns"]),
        ("zookeeper-quorum-lost", ["zookeeper-away", *(f"{do} {n}" for do in ("kill", "start") for n in range(3))]),
    ],
)
def test_fault_is_recorded_before_it_is_injected(name: str, done: list[str]) -> None:
    stage = Recorded()

    run(name, stage)

    assert stage.done == done


@pytest.mark.long
def test_zookeeper_is_down_for_at_least_the_recorded_time() -> None:
    stage = Recorded()

    run("zookeeper-quorum-lost", stage)

    ((begun, seconds),) = stage.lasted
    assert seconds == pytest.approx(1.5 * SESSION_S)
    assert time.monotonic() - begun >= seconds


@pytest.mark.parametrize("surprise", [EngineError("the first"), KeyboardInterrupt("the first")])
@pytest.mark.parametrize(
    ("name", "take", "give_back"),
    [("zookeeper-leader-pause", "pause", "resume"), ("zookeeper-leader-cut-off", "cut off", "join")],
)
def test_half_done_fault_on_the_leader_is_undone_and_the_first_error_is_raised(
    name: str, take: str, give_back: str, surprise: BaseException
) -> None:
    stage = Recorded(**{take: surprise, give_back: EngineError("it was not done")})

    with pytest.raises(type(surprise), match="the first"):
        run(name, stage)

    assert stage.done[1:] == [f"{take} 0", f"{give_back} 0"]
