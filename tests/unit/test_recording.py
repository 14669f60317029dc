"""The record of an assignment in the history (S8): every input of an assignor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from coordinator.assignors import Subscriber
from coordinator.assignors.sticky import StickyAssignor
from coordinator.rebalance.handlers import RecordingAssignor
from tests.unit.manual import ManualRuntime
from tests.unit.strategies import numbered, parts


class Remembering(ManualRuntime):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Mapping[str, Any]] = []

    def record(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event, **fields})


ONE = Subscriber("c1", {"t": 2}, parts("t:0"), 3, "data", "instance", {part: "c1-1" for part in parts("t:0-1")})


def recorded(*members: Subscriber) -> Mapping[str, Any]:
    runtime = Remembering()
    RecordingAssignor(StickyAssignor(), runtime, "g").assign(members, numbered("t:3"))
    (event,) = runtime.events
    return event


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, threads={"t": 3}),
        replace(ONE, running=parts("t:1")),
        replace(ONE, generation=4),
        replace(ONE, user_data=""),
        replace(ONE, instance_id=""),
        replace(ONE, on_thread={}),
        replace(ONE, on_thread=dict.fromkeys(parts("t:0-1"), "c1-0")),
    ],
)
def test_another_input_is_another_text(other: Subscriber) -> None:
    assert recorded(other)["input"] != recorded(ONE)["input"]


def test_the_order_of_an_input_is_not_in_the_text() -> None:
    two = Subscriber("c0", {"t": 1})
    turned = replace(ONE, on_thread=dict(reversed(list(ONE.on_thread.items()))))

    assert recorded(ONE, two) == recorded(two, turned)
