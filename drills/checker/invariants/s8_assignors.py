"""S8: purity of assignors."""

from __future__ import annotations

import json

from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from .base import Invariant


class Pure(Invariant):
    """Assignors are pure, deterministic, independent of input order.

    The same input text (canonical: equal members and topics have equal text) gives the same target, in every group, on
    every node, at any time.
    """

    name = "S8"
    sentence = "Assignors are pure, deterministic, blind to input order."
    events = ("assignment",)

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._known: dict[tuple[str, str], Event] = {}

    def on_assignment(self, event: Event) -> None:
        text = event["input"]
        if not isinstance(text, str):
            text = json.dumps(text, sort_keys=True, default=str)
        known = self._known.setdefault((event["strategy"], text), event)
        self.judged += known is not event
        if known is not event and known["target"] != event["target"]:
            consumers = known["target"].keys() | event["target"].keys()
            odd = min(name for name in consumers if known["target"].get(name) != event["target"].get(name))
            self.broken(
                f"strategy {event['strategy']} gave {odd} another share in group {event['group']} at "
                f"{moment(event['at'])} than for the same input at {moment(known['at'])}",
                known,
                event,
            )
