"""The time until a group was Stable after a kill, and the number of its membership changes, from its history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coordinator.zk.errors import BadData
from coordinator.zk.znodes.group_state import STABLE, GroupState
from coordinator.zk.znodes.paths import GROUPS

from ..checker.replay.verdict import Event

_ID = re.compile(rf"{GROUPS}/([^/]+)/ids/([^/]+)")
_STATE = re.compile(rf"{GROUPS}/([^/]+)/state")


@dataclass(slots=True)
class _Groups:
    """The current groups: (group, consumer) of every registration, and group -> state."""

    members: set[tuple[str, str]] = field(default_factory=set)
    states: dict[str, GroupState] = field(default_factory=dict)

    def see(self, event: Event) -> bool:
        """Apply an event; returns whether members changed."""
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
        """Whether each group is Stable with all registered members, without `name`."""
        return all(
            state.state == STABLE
            and set(state.target) == {consumer for of, consumer in self.members if of == group}
            and name not in state.target
            for group, state in self.states.items()
        )


def changes_of_members(events: Sequence[Event], fault_at: float) -> int:
    """The number of transactions since the fault that created or removed a registration."""
    groups = _Groups()
    return sum(groups.see(event) and event["at"] >= fault_at for event in events)


def settled_after_kills_s(events: Sequence[Event]) -> float | None:
    """The longest time from a kill until the group was Stable without the killed process; else a lower bound.

    None without a kill.
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
