"""The scheduler: one thread at a time, in virtual time, and nobody waits for ever unnoticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from tests.simulation import scheduler as scheduling
from tests.simulation.runtime import SimRuntime
from tests.simulation.scheduler import Scheduler, SimulationFailure


class Machine:
    """One process, and what it has said."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler(seed)
        self.process = self.scheduler.process("p")
        self.said: list[int] = []
        self.recorded: list[tuple[str, dict[str, int]]] = []
        self.runtime = SimRuntime(self.scheduler, self.process, lambda _, *event: self.recorded.append(event))

    def spawn_steps(self) -> None:
        """A thread that says when it is, once a second."""

        def worker() -> None:
            try:
                while True:
                    self.runtime.sleep(1)
                    self.runtime.record("step", at=round(self.scheduler.now))
            finally:
                self.runtime.record("cleaned up")

        self.runtime.spawn(worker, "worker")

    def steps(self) -> list[int]:
        """When it was."""
        return [fields["at"] for event, fields in self.recorded if event == "step"]


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.scheduler.close()


def test_an_hour_of_sleep_takes_no_time_and_a_fast_clock_sees_more_of_it(machine: Machine) -> None:
    machine.process.clock_rate = 1.01
    woken: list[float] = []

    def sleeper() -> None:
        machine.runtime.sleep(3600)
        woken.append(machine.scheduler.now)

    machine.runtime.spawn(sleeper, "sleeper")
    machine.scheduler.run(4000)

    assert woken == [pytest.approx(3600 / 1.01)]
    assert machine.runtime.monotonic() == pytest.approx(4000 * 1.01)


def test_threads_that_wait_for_each_other_are_a_deadlock_that_names_both(machine: Machine) -> None:
    first, second = machine.runtime.lock(), machine.runtime.lock()

    def takes(one: AbstractContextManager[object], other: AbstractContextManager[object]) -> None:
        with one:
            machine.runtime.sleep(1)
            with other:
                machine.said.append(1)

    machine.runtime.spawn(lambda: takes(first, second), "left")
    machine.runtime.spawn(lambda: takes(second, first), "right")

    with pytest.raises(SimulationFailure, match=r"(?s)deadlock.*left.*right"):
        machine.scheduler.run(10_000)
    assert machine.said == []


def test_world_without_a_runnable_process_is_a_deadlock(machine: Machine) -> None:
    def waits() -> None:
        machine.runtime.event().wait()

    machine.runtime.spawn(waits, "waiter")

    with pytest.raises(SimulationFailure, match=r"(?s)deadlock.*waiter: waits for an event"):
        machine.scheduler.run(10)


def test_threads_that_stay_busy_in_no_time_are_a_livelock(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling, "MOST_SWITCHES_AN_INSTANT", 100)

    def spins() -> None:
        while True:
            machine.scheduler.give_way()

    machine.runtime.spawn(spins, "spinner")

    with pytest.raises(SimulationFailure, match=r"(?s)livelock.*spinner"):
        machine.scheduler.run(10)


def test_a_process_that_crashes_has_no_effect_from_that_seam_on(machine: Machine) -> None:
    machine.process.crash_at = 5

    machine.spawn_steps()
    machine.scheduler.after(60, lambda: None)
    machine.scheduler.run(50)

    assert machine.process.is_dead
    assert machine.steps() == [1, 2, 3, 4]
    assert len(machine.recorded) == 4


def test_a_paused_process_does_nothing_while_time_goes_by_and_then_goes_on(machine: Machine) -> None:
    machine.spawn_steps()
    machine.scheduler.after(2.5, machine.process.pause)
    machine.scheduler.after(10.5, machine.process.resume)
    machine.scheduler.run(12)

    assert machine.steps() == [1, 2, 10, 12]


def test_what_a_thread_dies_of_is_kept(machine: Machine) -> None:
    def breaks() -> None:
        raise ValueError("nobody expected this")

    machine.runtime.spawn(breaks, "breaker")
    machine.scheduler.after(1, lambda: None)
    machine.scheduler.run(0.5)

    assert len(machine.scheduler.crashed) == 1
    assert "breaker" in machine.scheduler.crashed[0] and "nobody expected this" in machine.scheduler.crashed[0]


def test_the_order_of_threads_is_drawn_from_the_seed() -> None:
    def order(seed: int) -> list[int]:
        machine = Machine(seed)
        for number in range(8):
            machine.runtime.spawn(lambda number=number: machine.said.append(number), str(number))  # type: ignore[misc]
        machine.scheduler.after(2, lambda: None)
        machine.scheduler.run(1)
        machine.scheduler.close()
        return machine.said

    assert order(1) == order(1)
    assert sorted(order(2)) == sorted(order(1))
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_condition_wakes_its_waiter_and_hands_the_lock_over(machine: Machine) -> None:
    condition = machine.runtime.condition()
    items: list[int] = []

    def taker() -> None:
        with condition:
            while not items:
                condition.wait(None)
            machine.said.append(items.pop())

    def giver() -> None:
        machine.runtime.sleep(1)
        with condition:
            items.append(7)
            condition.notify_all()

    machine.runtime.spawn(taker, "taker")
    machine.runtime.spawn(giver, "giver")
    machine.scheduler.after(3, lambda: None)
    machine.scheduler.run(2)

    assert machine.said == [7]


def test_a_process_that_is_to_stop_at_an_operation_does_so_and_goes_on_from_there(machine: Machine) -> None:
    machine.process.pause_at = 3

    machine.spawn_steps()
    machine.scheduler.after(7.5, machine.process.resume)
    machine.scheduler.run(5)
    stopped, operations = machine.process.is_paused, machine.process.operations
    machine.scheduler.run(9)

    assert (stopped, operations) == (True, 3)
    assert machine.steps()[:2] == [1, 2]
    assert machine.steps()[2] > 7
