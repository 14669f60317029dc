"""Fetch intervals, from `begin` to `halt`, and the leases within which they count; ended ones are kept.

An interval also ends with its process, when another process registers under the name, when its own process has ended
the incarnation in ZooKeeper (a consumer that leaves because its application hangs), and when its session was ended by
password: no timeout passed then, and later records cannot be committed. While its lease has expired it does not count;
the lease may be renewed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from .verdict import Event

FOREVER = float("inf")

PartitionKey = tuple[str, str, str, int]
"""Group, topic, topic id, partition."""


@dataclass(slots=True, eq=False)
class LeaseView:
    """When a process's lease expires; never before its first `lease` event.

    :ivar spans: the times in which it was valid, each from and to.
    """

    until: float = FOREVER
    event: Event | None = None
    spans: list[tuple[float, float]] = field(default_factory=lambda: [(-FOREVER, FOREVER)])

    def renewed(self, event: Event) -> None:
        """Apply a `lease` event."""
        at, until = event["at"], event["until"]
        if self.event is not None and until <= self.until:
            return
        if self.event is not None and at > self.until:
            self.spans.append((at, until))
        else:
            self.spans[-1] = (self.spans[-1][0], until)
        self.until, self.event = until, event


@dataclass(slots=True, eq=False)
class Hold:
    """One partition, fetched by one incarnation.

    :ivar number: unique number.  :ivar first: its initial offset.
    :ivar until: when it ended; infinite while it lasts.
    :ivar is_suspended: whether a manual edit has made it undecidable.
    """

    number: int
    key: PartitionKey
    who: str
    consumer: str
    incarnation: str
    begun: Event
    first: int | None
    lease: LeaseView
    until: float = FOREVER
    is_suspended: bool = False

    @property
    def text(self) -> str:
        """Its fetcher, in words."""
        return f"{self.who} (consumer {self.consumer}, incarnation {self.incarnation})"

    def spans(self) -> list[tuple[float, float]]:
        """The times in which it counts, each from and to: without a valid lease nothing is fetched."""
        cut = ((max(self.begun["at"], first), min(self.until, last)) for first, last in self.lease.spans)
        return [(first, last) for first, last in cut if first < last]


Life = tuple[str, str, str]
"""Group, consumer, incarnation."""


class FetchIntervals:
    """Every interval.

    :ivar kept: all of them, ordered by their begin.  :ivar holds: the open ones.
    :ivar contested: partitions with more than one open interval.
    """

    events = ("registered", "lease", "begin", "halt", "exit", "closed")

    def __init__(self) -> None:
        self.kept: list[Hold] = []
        self.holds: dict[PartitionKey, list[Hold]] = {}
        self.contested: set[PartitionKey] = set()
        self._lives: dict[Life, dict[PartitionKey, Hold]] = {}
        self._of: dict[str, set[Life]] = {}
        self._leases: dict[tuple[str, object], LeaseView] = {}
        self._latest: dict[str, LeaseView] = {}
        self._sessions: dict[tuple[str, str], object] = {}
        self._ended: set[object] = set()
        self._by_hand: set[tuple[str, str]] = set()
        self._over: set[Life] = set()

    def on_registered(self, event: Event) -> None:
        self._by_hand.discard((event["group"], event["consumer"]))
        self._sessions[event["who"], event["incarnation"]] = event.get("session")

    def on_lease(self, event: Event) -> None:
        if event["role"] != "coordinator":
            lease = self._latest[event["who"]] = self._lease(event["who"], event.get("session"))
            lease.renewed(event)

    def lease_of(self, who: str, incarnation: str) -> LeaseView:
        """The lease of an incarnation."""
        session = self._sessions.get((who, incarnation))
        return self._lease(who, session) if session is not None else self._latest.get(who) or LeaseView()

    def _lease(self, who: str, session: object) -> LeaseView:
        return self._leases.setdefault((who, session), LeaseView())

    def on_begin(self, event: Event) -> None:
        who, group, ids = event["who"], event["group"], event.get("topics") or {}
        life = (group, event["consumer"], event["incarnation"])
        if life in self._over or self._sessions.get((who, event["incarnation"])) in self._ended:
            return  # superseded without its knowledge
        lease = self.lease_of(who, event["incarnation"])
        mine = self._lives.setdefault(life, {})
        self._of.setdefault(who, set()).add(life)
        for topic, partitions in event["partitions"].items():
            for number, first in partitions.items():
                key = (group, topic, ids.get(topic, ""), int(number))
                if key in mine:
                    continue
                hold = mine[key] = Hold(len(self.kept), key, who, *life[1:], event, first, lease)
                self.kept.append(hold)
                hold.is_suspended = (group, event["consumer"]) in self._by_hand
                others = self.holds.setdefault(key, [])
                others.append(hold)
                if len(others) > 1:
                    self.contested.add(key)

    def on_halt(self, event: Event) -> None:
        mine = self._lives.get((event["group"], event["consumer"], event["incarnation"]))
        if not mine:
            return
        halted = {(topic, int(number)) for topic, numbers in event["partitions"].items() for number in numbers}
        for key in [key for key in mine if (key[1], key[3]) in halted]:
            self._drop(mine.pop(key), event["at"])

    def on_exit(self, event: Event) -> None:
        for life in self._of.pop(event["who"], ()):
            self.end(*life, event["at"])

    def on_closed(self, event: Event) -> None:
        """A session ended by its password did not expire: leases do not cover that."""
        if event.get("why") == "expired":
            return
        self._ended.add(event["session"])
        for (who, incarnation), session in self._sessions.items():
            if session == event["session"]:
                for life in [life for life in self._of.get(who, ()) if life[2] == incarnation]:
                    self.end(*life, event["at"])

    def take_over(self, group: str, consumer: str, incarnation: str, at: float) -> None:
        """Another process has the name: later intervals of the incarnation never count."""
        self._over.add((group, consumer, incarnation))
        self.end(group, consumer, incarnation, at)

    def end(self, group: str, consumer: str, incarnation: str, at: float) -> None:
        """End all intervals of an incarnation; a later `begin` is a violation, and counts."""
        for hold in self._lives.pop((group, consumer, incarnation), {}).values():
            self._drop(hold, at)

    def suspend(self, group: str, consumer: str) -> None:
        """A consumer's znodes were edited manually: its fetching is undecidable until it registers again."""
        self._by_hand.add((group, consumer))
        for (of, name, _), mine in self._lives.items():
            if of == group and name == consumer:
                for hold in mine.values():
                    hold.is_suspended = True

    def _drop(self, hold: Hold, at: float) -> None:
        hold.until = at
        others = self.holds[hold.key]
        others.remove(hold)
        if len(others) < 2:
            self.contested.discard(hold.key)

    def of(self, group: str, consumer: str, incarnation: str) -> dict[PartitionKey, Hold]:
        """The open intervals of an incarnation."""
        return self._lives.get((group, consumer, incarnation), {})

    def disputes(self) -> Iterator[tuple[Hold, Hold]]:
        """Each two open intervals of one partition."""
        for key in sorted(self.contested):
            yield from combinations([hold for hold in self.holds[key] if not hold.is_suspended], 2)
