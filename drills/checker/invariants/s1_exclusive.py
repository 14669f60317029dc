"""S1: exclusive fetching, by fetch intervals and by channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..replay.commits import EPOCH, LIFE, RUNNING, SENT, STATE, Commit
from ..replay.fast_json import Partition
from ..replay.fetch_intervals import Hold
from ..replay.replay import Replay
from ..replay.terms import Terms
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelChange
from .base import Invariant
from .s1_claimed import Claims
from .s1_free import FreePartitions
from .session_leases import SessionLeases

CLOCK_ROUNDING_S = 0.001


class Exclusive(Invariant):
    """At any instant at most one fetcher runs a partition of a group. A fetch interval ends with the acknowledged stop,
    the lapse of the lease, or a takeover of its name (later records cannot be sealed).

    Two intervals of different incarnations never overlap in time; where they meet in one instant, not both fetch in it.
    No fetcher gets records of a partition that only another one runs. No fetch begins after the lapse of the lease, and
    `poll` returns nothing then, until it is renewed; a fetch that began before may end. And after no commit do two
    channels have the same partition in `running`. What coordinators hand on is judged by `FreePartitions`, what
    consumers claim by `Claims`: without them two would fetch only rarely, and late. No consumer's lease outlasts its
    session (`SessionLeases`).
    """

    name = "S1"
    sentence = "At any instant at most one fetcher runs a partition of a group."
    wants = LIFE | RUNNING | SENT | STATE | EPOCH

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._terms = Terms()
        self._free = FreePartitions(world, self._terms, self.broken)
        self._claims = Claims(world, self.broken)
        self._reported: set[frozenset[int]] = set()
        self._strays: set[tuple[int, str, str]] = set()
        self._fetched: dict[frozenset[int], dict[str, Event]] = {}
        self._runners: dict[tuple[str, Partition], dict[str, Event]] = {}
        self._acts: dict[tuple[str, str, str], float] = {}
        self._lapses: set[tuple[str, str]] = set()
        self._leases = SessionLeases("consumer", self.broken)

    def handlers(self) -> Mapping[str, Callable[[Event], None]]:
        return {
            "fetch": self._on_fetch,
            "returned": self._judge_lease,
            "begin": self._claims.on_begin,
            "halt": self._claims.on_halt,
            **self._leases.handlers(),
        }

    def on_tick(self, now: float) -> None:
        self._claims.on_tick(now)

    # ---- fetch intervals

    def on_time(self, before: float, now: float) -> None:
        """No event between `before` and `now`: contested partitions were fetched by both holders all that time."""
        for one, other in self.world.fetching.disputes():
            if min(one.lease.until, other.lease.until) > before:
                self._meet(one, other, before)

    def _meet(self, one: Hold, other: Hold, at: float, *fetches: Event) -> None:
        pair = frozenset((one.number, other.number))
        if pair in self._reported:
            return
        self._reported.add(pair)
        group, topic, _, number = one.key
        self.broken(
            f"{topic}-{number} of group {group} was fetched by {one.who} (consumer {one.consumer}, incarnation "
            f"{one.incarnation}) and by {other.who} (consumer {other.consumer}, incarnation {other.incarnation}) "
            f"at {moment(at)}",
            one.begun,
            one.lease.event,
            other.begun,
            other.lease.event,
            *fetches,
        )

    def _on_fetch(self, event: Event) -> None:
        self.judged += 1
        self._judge_lease(event)
        group, fetching = event["group"], self.world.fetching
        for item in event["ranges"]:
            holds = fetching.holds.get((group, item["topic"], item["topic_id"], item["partition"]), ())
            if len(holds) == 1 and _is_of(holds[0], event):
                continue
            own = next((hold for hold in holds if _is_of(hold, event)), None)
            for hold in holds:
                if hold is not own and not hold.is_suspended and hold.lease.until > event["at"]:
                    if own is None:
                        self._stray(hold, event)
                    elif not own.is_suspended and own.lease.until > event["at"]:
                        self._both_fetch(own, hold, event)

    def _both_fetch(self, own: Hold, other: Hold, event: Event) -> None:
        """Two intervals meet in an instant; a violation when both fetch in it."""
        fetched = self._fetched.setdefault(frozenset((own.number, other.number)), {})
        fetched[own.incarnation] = event
        if len(fetched) == 2:
            one, two = sorted((own, other), key=lambda hold: self.world.fetching.holds[own.key].index(hold))
            self._meet(one, two, event["at"], *fetched.values())

    def _stray(self, hold: Hold, event: Event) -> None:
        """Records of a partition without an interval, or after its end."""
        known = self.world.groups.get(hold.key[0])
        view = known.channels.get(event["consumer"]) if known is not None else None
        if view is None or view.data is None or view.by_hand or not view.data.is_live or view.owner != event["who"]:
            return
        lease = self.world.fetching.lease_of(event["who"], event["incarnation"])
        if view.data.incarnation != event["incarnation"] or lease.until <= event["at"]:
            return
        group, topic, _, number = hold.key
        stray = (hold.number, event["who"], event["incarnation"])
        if stray not in self._strays:
            self._strays.add(stray)
            self.broken(
                f"{topic}-{number} of group {group} was fetched by {event['who']} (consumer {event['consumer']}, "
                f"incarnation {event['incarnation']}), which does not run it, at {moment(event['at'])} while "
                f"{hold.who} (consumer {hold.consumer}, incarnation {hold.incarnation}) did",
                hold.begun,
                hold.lease.event,
                event,
            )

    # ---- leases

    def _judge_lease(self, event: Event) -> None:
        """A `fetch` or `returned` under a lapsed lease. `checked` is before its process looked at the lease; without
        `checked`, the end of the previous one is: one thread of control fetches, one after the other."""
        who, life = event["who"], event["incarnation"]
        previous = self._acts.get((who, life, event["event"]), float("-inf"))
        self._acts[who, life, event["event"]] = event["at"]
        checked = event.get("checked")
        since = previous if checked is None else checked
        lease = self.world.fetching.lease_of(who, life)
        if since <= lease.until + CLOCK_ROUNDING_S or (who, life) in self._lapses:
            return
        self._lapses.add((who, life))
        what = "fetched" if event["event"] == "fetch" else "was given records"
        self.broken(
            f"{who} (consumer {event['consumer']} of group {event['group']}, incarnation {life}) {what} at "
            f"{moment(event['at'])}, by a look at its lease at {moment(since)} or later, and that had lapsed at "
            f"{moment(lease.until)}",
            lease.event,
            event,
        )

    # ---- channels

    def on_commit(self, commit: Commit) -> None:
        claimed = []
        self._terms.on_commit(commit)
        for change in commit.channels:
            claimed += self._note(change, commit.event)
            if not commit.by_hand:
                self._claims.on_change(change, commit)
        self._claims.on_left(commit)
        self._free.on_commit(commit)
        for key in claimed:
            channels = self.world.groups[key[0]].channels
            known = self._runners.get(key, {})
            runners = {name: since for name, since in known.items() if not channels[name].by_hand}
            if len(runners) > 1:
                group, (topic, number) = key
                names = " and ".join(sorted(runners))
                self.broken(
                    f"{topic}-{number} of group {group} is in `running` of {names} after the commit at "
                    f"{moment(commit.at)}",
                    *runners.values(),
                )

    def _note(self, change: ChannelChange, event: Event) -> list[tuple[str, Partition]]:
        before = change.before.running if change.before is not None else {}
        after = change.after.running if change.after is not None else {}
        group, consumer = change.view.group.name, change.view.consumer
        for partition in before:
            if partition not in after:
                self._runners.get((group, partition), {}).pop(consumer, None)
        claimed = [(group, partition) for partition in after if partition not in before]
        for key in claimed:
            self._runners.setdefault(key, {})[consumer] = event
        return [] if change.view.by_hand else claimed


def _is_of(hold: Hold, event: Event) -> bool:
    """Whether a `fetch` is of a hold's process and incarnation."""
    return bool(hold.who == event["who"] and hold.incarnation == event["incarnation"])
