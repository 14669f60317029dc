"""When a group was Stable again after somebody was killed, and how often its members changed, by its history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..checker.verdict import Event
from ..zk.errors import BadData
from ..zk.paths import GROUPS
from ..zk.state import STABLE, GroupState

_ID = re.compile(rf"{GROUPS}/([^/]+)/ids/([^/]+)")
_STATE = re.compile(rf"{GROUPS}/([^/]+)/state")


@dataclass(slots=True)
class _Groups:
    """Groups as they stand: (group, consumer) of every registration, and group -> state."""

    members: set[tuple[str, str]] = field(default_factory=set)
    states: dict[str, GroupState] = field(default_factory=dict)

    def see(self, event: Event) -> bool:
        """Take an event in; whether members changed."""
        before = set(self.members)
        for op in event.get("ops", ()):
            if at := _ID.fullmatch(op["path"]):
                change = {"create": self.members.add, "delete": self.members.discard}.get(op["op"])
                _ = change((at[1], at[2])) if change else None
            elif (at := _STATE.fullmatch(op["path"])) and op["op"] in ("create", "set"):
                try:
                    self.states[at[1]] = GroupState.parse(op["path"], str(op.get("data", "")).encode())
                except BadData:
                    self.states.pop(at[1], None)
        for path in event.get("paths", ()):
            if at := _ID.fullmatch(path):
                self.members.discard((at[1], at[2]))
        return self.members != before

    def are_settled_without(self, name: str) -> bool:
        """Whether each group is Stable with all that are registered, and `name` is not among them."""
        return all(
            state.state == STABLE
            and set(state.target) == {consumer for of, consumer in self.members if of == group}
            and name not in state.target
            for group, state in self.states.items()
        )


def changes_of_members(events: Sequence[Event], fault_at: float) -> int:
    """How many transactions since the fault have made or removed a registration."""
    groups = _Groups()
    return sum(groups.see(event) and event["at"] >= fault_at for event in events)


def settled_after_kills_s(events: Sequence[Event]) -> float | None:
    """The longest from a kill until the group was Stable without who was killed; at least so long where it never was.

    None where nobody was killed.
    """
    return max(_waits(events), default=None)


def _waits(events: Sequence[Event]) -> Iterator[float]:
    groups = _Groups()
    killed: dict[str, float] = {}
    for event in events:
        groups.see(event)
        if event["event"] == "fault" and event.get("kind") == "kill":
            killed[str(event.get("process", "")).partition("#")[0]] = float(event["at"])
        for name in [name for name in killed if groups.are_settled_without(name)]:
            yield float(event["at"]) - killed.pop(name)
    yield from (float(events[-1]["at"]) - at for at in killed.values())
