"""The listeners' events: each once, and changes before long work."""

from __future__ import annotations

import pytest

from coordinator.listeners.listeners import Agenda, Event
from tests.unit.manual import Forever, ManualRuntime


def taken(agenda: Agenda, count: int) -> list[str]:
    return [agenda.take().kind for _ in range(count)]


def test_equal_changes_are_one_event() -> None:
    agenda = Agenda(ManualRuntime())
    for _ in range(3):
        agenda.put(Event("a"))
    agenda.put(Event("a", "of another group"))

    assert [agenda.take(), agenda.take()] == [Event("a"), Event("a", "of another group")]
    with pytest.raises(Forever):
        agenda.take()


def test_changes_wait_for_one_piece_of_long_work_at_most() -> None:
    agenda = Agenda(ManualRuntime())
    for number in range(4):
        agenda.put_long(Event(f"long{number}"))
    agenda.put(Event("a"))
    agenda.put(Event("b"))

    first = taken(agenda, 3)
    agenda.put(Event("c"))

    assert first in (["a", "b", "long0"], ["long0", "a", "b"])
    assert taken(agenda, 2).index("c") <= 1


def test_group_that_changes_all_the_time_delays_neither_others_nor_long_work() -> None:
    agenda = Agenda(ManualRuntime())
    agenda.put_long(Event("long"))
    agenda.put(Event("noisy"))
    order = []
    for turn in range(8):
        if turn == 2:
            agenda.put(Event("other"))
        order.append(event := agenda.take().kind)
        if event == "noisy":
            agenda.put(Event("noisy"))

    assert order.index("long") <= 2
    assert order.index("other") <= 5


def test_change_that_is_put_off_is_taken_at_its_time_and_once() -> None:
    runtime = ManualRuntime()
    agenda, began = Agenda(runtime), runtime.monotonic()
    agenda.put_at(Event("late"), began + 2)
    agenda.put_at(Event("late"), began + 1)
    agenda.put(Event("a"))

    assert (taken(agenda, 1), runtime.monotonic()) == (["a"], began)
    assert (taken(agenda, 1), runtime.monotonic()) == (["late"], began + 1)
    with pytest.raises(Forever):
        agenda.take()
