"""Conditions of liveness: an acting coordinator, faults, pauses.

Liveness is promised only while a coordinator can act. Where a fault may be the cause of a delay, nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterable

from zk_group.coordinator.zk.znodes.records import PausedRecord

from .commits import Commit
from .reading import read_paused
from .verdict import Event

NEVER = float("-inf")
FOREVER = float("inf")
STUCK_KINDS = frozenset({"stuck", "hang", "pause"})
"""Faults of live processes without progress."""

CHANGES = frozenset({"join", "leave", "topic", "query"})
"""Faults that only cause turns of a coordinator."""

_NO_PROCESS = frozenset({"server", "hand"})
_NOT_NAMES = frozenset({"at", "event", "kind", "until"})

CLOCKS = 0.02
"""Maximum drift of two clocks, as a share of the measured time."""

ROUNDING_S = 0.01
"""Times of real transactions are whole milliseconds."""


class Fault:
    """A fault and its targets: any text in it may be a name. `until` is its own time for a momentary one."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self.at: float = event["at"]
        self.kind: str = event.get("kind", "")
        until = event.get("until")
        self.until: float = self.at if until is None else until
        texts = _texts(value for key, value in event.items() if key not in _NOT_NAMES)
        self.names = frozenset(texts) - _NO_PROCESS

    def hit(self, *names: str) -> bool:
        """Whether it hit one of them; a process may be named without its life's number."""
        return any(name and (name in self.names or name.partition("#")[0] in self.names) for name in names)


def _texts(values: Iterable[object]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from _texts(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            yield from _texts(value)


class Conditions:
    """The conditions up to now.

    :ivar coordinator: the last elected process.
    :ivar calm: the event that ends the faults.  :ivar ended: the last one of a complete history.
    :ivar broken: consumers whose assignors fail for good, by `calm`; None without any.
    :ivar disturbed_until: the end of the last fault; `STUCK_KINDS` of processes other than nodes are kept separately,
        in `stuck`.
    :ivar lasting_until: the end of the last fault with a duration.
    :ivar hindered_until: the end of the last fault that may delay coordinators: of servers, of nodes, of hands.
    """

    events = ("exit", "elected", "lease", "calm", "end")

    def __init__(self) -> None:
        self.coordinator = ""
        self.calm: Event | None = None
        self.ended: Event | None = None
        self.broken: Fault | None = None
        self.disturbed_until = NEVER
        self.lasting_until = NEVER
        self.hindered_until = NEVER
        self.stuck: list[Fault] = []
        self._session: object = None
        self._elections: dict[object, Event] = {}
        self._until = NEVER
        self._leases: dict[tuple[str, object], float] = {}
        self._acting_since = FOREVER
        self._pauses: list[tuple[Event, PausedRecord | None]] = []

    # ---- the coordinator

    def on_elected(self, event: Event) -> None:
        self.coordinator, self._session = event["who"], event.get("session")
        self._acting_since = event["at"]
        self._until = max(event["at"], self._leases.get((self.coordinator, self._session), NEVER))

    def on_lease(self, event: Event) -> None:
        if event["role"] != "coordinator":
            return
        self._leases[event["who"], event.get("session")] = event["until"]
        if event["who"] != self.coordinator or event.get("session") != self._session:
            return
        if self._until < event["at"]:
            self._acting_since = event["at"]
        self._until = max(self._until, event["until"])

    def on_exit(self, event: Event) -> None:
        if event["who"] == self.coordinator:
            self._until = NEVER

    def note_election(self, commit: Commit) -> None:
        """A coordinator's timers count from its own election, at the earliest."""
        self._elections[commit.who, commit.session] = commit.event

    def elected_before(self, commit: Commit) -> Event | None:
        """The election of the coordinator that sent a commit; None when it is unknown."""
        return self._elections.get((commit.who, commit.session))

    def acting_since(self, now: float) -> float:
        """Since when a coordinator has held its lease; infinity without one."""
        return self._acting_since if self._until >= now else FOREVER

    # ---- faults

    def disturb(self, fault: Fault, is_private: bool) -> None:
        """
        :param is_private: whether it hit only processes other than nodes.
        """
        if not is_private and fault.kind not in CHANGES:
            self.hindered_until = max(self.hindered_until, fault.until)
        if fault.kind in STUCK_KINDS and is_private:
            if fault.until == fault.at:
                fault.until = FOREVER
            self.stuck.append(fault)
        else:
            self.disturbed_until = max(self.disturbed_until, fault.until)
            if fault.until > fault.at:
                self.lasting_until = max(self.lasting_until, fault.until)

    def on_calm(self, event: Event) -> None:
        self.calm = event
        if event.get("broken"):
            self.broken = Fault({"at": event["at"], "event": "calm", "broken": event["broken"]})
        if event.get("stuck"):
            fault = Fault(event)
            fault.until = FOREVER
            self.stuck.append(fault)
        self.disturbed_until = min(self.disturbed_until, event["at"])
        self.hindered_until = min(self.hindered_until, event["at"])

    def on_end(self, event: Event) -> None:
        self.ended = event

    def undisturbed_since(self, now: float) -> float:
        """Since when a coordinator has acted without faults; infinity otherwise."""
        since = self.acting_since(now)
        return max(since, self.disturbed_until) if self.disturbed_until <= now else FOREVER

    def undisturbed_long(self, now: float, seconds: float) -> bool:
        """Whether a coordinator has acted since `seconds` before `now`, without a fault in that time."""
        return max(self._acting_since, self.lasting_until) <= now - seconds

    # ---- pauses

    def pause(self, event: Event, text: str) -> None:
        self._pauses.append((event, read_paused(text)))

    def paused_by(self, group: str) -> Event | None:
        """The commit since which the group has been paused, for every coordinator; None when it is not."""
        found = None
        for event, record in reversed(self._pauses):
            if record is None or record.of(group) is None:
                break
            found = event
        return found

    def unpaused_since(self, group: str) -> float:
        """Since when the group has turns; infinity while it is paused."""
        found = FOREVER
        for event, record in reversed(self._pauses):
            if record is None:
                continue  # the coordinator keeps the last readable one, if it has read one
            if record.of(group) is not None:
                return found
            found = event["at"]
        return NEVER


def measured(seconds: float) -> float:
    """The least time by the history's clock in which a coordinator's clock passes so many seconds."""
    return seconds * (1 - CLOCKS) - ROUNDING_S
