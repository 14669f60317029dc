"""S8: assignors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from .invariant import Invariant
from .verdict import Event, moment
from .world import World


class Pure(Invariant):
    """Assignors are pure, deterministic, blind to input order.

    The same input text (it is canonical: the same members and topics give the same one) gives the same target, whatever
    the group, the node and the time.
    """

    name = "S8"
    sentence = "Assignors are pure, deterministic, blind to input order."

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._known: dict[tuple[str, str], Event] = {}

    def handlers(self) -> Mapping[str, Callable[[Event], None]]:
        return {"assignment": self._on_assignment}

    def _on_assignment(self, event: Event) -> None:
        text = event["input"]
        if not isinstance(text, str):
            text = json.dumps(text, sort_keys=True, default=str)
        known = self._known.setdefault((event["strategy"], text), event)
        if known is not event and known["target"] != event["target"]:
            consumers = known["target"].keys() | event["target"].keys()
            odd = min(name for name in consumers if known["target"].get(name) != event["target"].get(name))
            self.broken(
                f"strategy {event['strategy']} gave {odd} something else for group {event['group']} at "
                f"{moment(event['at'])} than for the same input at {moment(known['at'])}",
                known,
                event,
            )
