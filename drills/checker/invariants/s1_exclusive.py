"""S1: exclusive fetching, by fetch intervals and by channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ..replay.channel_data import ChannelData
from ..replay.commits import EPOCH, LIFE, RUNNING, SENT, STATE, Commit, Terms
from ..replay.fast_json import NUMBERS, Partition
from ..replay.fetch_intervals import Hold
from ..replay.reading import read_owner
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelChange, ChannelView, CommandView, GroupView, OwnerView, StateView
from .base import Invariant
from .session_leases import SessionLeases

CLOCK_ROUNDING_S = 0.001

SOON_S = 0.005
"""Real transactions have times in milliseconds: a claim so soon after a begin may have been before it."""

LATE_S = 0.0015
"""Likewise the end of fetching so soon after the leave that it precedes."""

_Waiting = tuple[Event, ChannelView, set[Partition]]
"""An event that is judged later, of a channel, with the partitions that would break the rule."""

Mark = tuple[str, str]
"""Consumer, incarnation."""
Why = tuple[str, Event | None]
"""Why a partition is not free, and the event that proves it."""

UNKNOWN = "unknown"
"""The consumer of the one mark that a coordinator makes where `state` was lost."""

ROUNDING_S = 0.01
"""Times of real transactions are whole milliseconds."""


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


class Claims:
    """A fetcher begins only with what its channel runs, and `running` and owner znodes change together.

    A partition that enters `running` has an owner znode of the same session after that commit, and one that leaves it
    has none of that incarnation; a claim replaces no owner znode of another session. Who leaves of its own accord has
    stopped fetching before. A begin is judged while the channel has its incarnation, alive. Manually edited
    channels are not judged, nor manually created owner znodes.
    """

    def __init__(self, world: Replay, report: Callable[..., None]) -> None:
        self._world = world
        self._report = report
        self._unclaimed: list[_Waiting] = []
        self._unhalted: list[_Waiting] = []

    # ---- owner znodes

    def on_change(self, change: ChannelChange, commit: Commit) -> None:
        """`running` of a channel has changed, by no hand."""
        view, before, after = change.view, change.before, change.after
        if view.by_hand:
            return
        was = before.running if before is not None else {}
        now = after.running if after is not None else {}
        if self._unclaimed:
            self._claimed(view, commit)
        if after is not None and after.is_live and commit.who == view.owner:
            entered = now.keys() - was.keys()
            if entered and commit.session is not None:
                self._judge_entered(view, entered, commit)
                self._judge_replaced(view, entered, commit)
        if before is not None and (left := was.keys() - now.keys()):
            self._judge_left(view, before.incarnation, left, commit)

    def _judge_entered(self, view: ChannelView, entered: set[Partition], commit: Commit) -> None:
        owners = view.group.owners
        for topic, number in sorted(entered):
            owner = owners.get((topic, number))
            if owner is None or (owner.session != commit.session and not owner.by_hand):
                self._report(
                    f"{topic}-{number} of group {view.group.name} came into `running` of {view.consumer} at "
                    f"{moment(commit.at)}, without an owner znode of its session",
                    owner.made if owner is not None else None,
                    commit.event,
                )
                return

    def _judge_left(self, view: ChannelView, incarnation: str, left: set[Partition], commit: Commit) -> None:
        owners = view.group.owners
        for topic, number in sorted(left & owners.keys()):
            owner = owners[topic, number]
            if _is_owner(owner, view.consumer, incarnation) and not owner.by_hand:
                self._report(
                    f"{topic}-{number} of group {view.group.name} left `running` of {view.consumer} (incarnation "
                    f"{incarnation}) at {moment(commit.at)}, and its owner znode stayed",
                    owner.made,
                    commit.event,
                )
                return

    def _judge_replaced(self, view: ChannelView, entered: set[Partition], commit: Commit) -> None:
        for group, partition, owner, _ in commit.owners:
            if owner is None or group is not view.group or partition not in entered:
                continue
            if owner.session != commit.session:
                self._report(
                    f"{view.consumer} of group {group.name} claimed {partition[0]}-{partition[1]} at "
                    f"{moment(commit.at)}, and removed an owner znode that was in the way",
                    owner.made,
                    commit.event,
                )
                return

    # ---- begins, and ends

    def on_begin(self, event: Event) -> None:
        """A process begins to fetch."""
        group = self._world.groups.get(event["group"])
        view = group.channels.get(event["consumer"]) if group is not None else None
        if view is None or not self._is_judged(view, event) or view.data is None:
            return
        running = view.data.running
        missing = {
            (topic, NUMBERS[str(number)])
            for topic, numbers in event["partitions"].items()
            for number in numbers
            if (topic, NUMBERS[str(number)]) not in running
        }
        if missing:
            self._unclaimed.append((event, view, missing))

    def on_left(self, commit: Commit) -> None:
        """Processes have left."""
        for view, fetched in commit.left:
            if fetched and not view.by_hand:
                self._unhalted.append((commit.event, view, set(fetched)))

    def on_halt(self, event: Event) -> None:
        """A process stops fetching."""
        for left, view, fetched in self._unhalted:
            if (left["who"], view.consumer) == (event["who"], event["consumer"]) and event["at"] - left["at"] <= LATE_S:
                for topic, numbers in event["partitions"].items():
                    fetched.difference_update((topic, NUMBERS[str(number)]) for number in numbers)

    def _is_judged(self, view: ChannelView, event: Event) -> bool:
        data = view.data
        return data is not None and data.is_live and not view.by_hand and data.incarnation == event["incarnation"]

    def _claimed(self, view: ChannelView, commit: Commit) -> None:
        for event, other, missing in self._unclaimed:
            if other is view and commit.at - event["at"] <= SOON_S and view.data is not None:
                missing.difference_update(view.data.running)

    def on_tick(self, now: float) -> None:
        """Report what was begun without a claim, and what was still fetched by who had left."""
        due, self._unhalted = _due(self._unhalted, now - LATE_S)
        for event, view, fetched in due:
            if fetched:
                topic, number = min(fetched)
                self._report(
                    f"{event['who']} left group {view.group.name} at {moment(event['at'])} while it still fetched "
                    f"{topic}-{number}",
                    event,
                )
        due, self._unclaimed = _due(self._unclaimed, now - SOON_S)
        for event, view, missing in due:
            if missing:
                topic, number = min(missing)
                self._report(
                    f"{event['who']} began to fetch {topic}-{number} of group {event['group']} at "
                    f"{moment(event['at'])}, which the channel of {view.consumer} did not have in `running`",
                    view.written,
                    event,
                )


def _due(waiting: list[_Waiting], before: float) -> tuple[list[_Waiting], list[_Waiting]]:
    """Those of events before a time, and the others."""
    return [one for one in waiting if one[0]["at"] < before], [one for one in waiting if one[0]["at"] >= before]


def _is_owner(owner: OwnerView, consumer: str, incarnation: str) -> bool:
    record = read_owner("", owner.text)
    return record is not None and (record.consumer, record.incarnation) == (consumer, incarnation)


class FreePartitions:
    """A start gives a consumer only partitions that are free, and an eviction mark stays until its lease is over.

    Free, as of the commit that sends the start: no other channel has the partition in `running`, no start that named it
    stood before (one withdrawn by the same commit may have been obeyed), no mark of the written state covers it, and it
    has no owner znode. What a channel runs already is not given.

    A live incarnation that is ended while it runs partitions, together with its `ids`, has a mark in the same commit
    that covers them for its lease. The lease counts from the commit that wrote the mark, or from the election of
    another coordinator that reads it; where `state` was lost, from its first manual write, which the coordinator reads
    before it writes the mark. A mark is dropped earlier only when its incarnation was never ended.

    Manually written znodes are not judged, nor marks of a manually written state.
    """

    def __init__(self, world: Replay, terms: Terms, report: Callable[..., None]) -> None:
        self._world = world
        self._terms = terms
        self._report = report
        self._marked: dict[tuple[str, Mark], Event] = {}
        self._lost: dict[str, Event] = {}

    def on_commit(self, commit: Commit) -> None:
        """After the channels of the commit are known."""
        if commit.by_hand or not self._world.process(commit.who).is_node:
            for group, _, _ in commit.states:
                self._forget(group)
                self._lost.setdefault(group.name, commit.event)
            return
        for group, before, after in commit.states:
            self._judge_marks(group, before, after, commit)
            self._lost.pop(group.name, None)
        for change in commit.channels:
            if change.before is not None and change.before.is_live and change.before.running:
                self._judge_end(change, change.before, commit)
        for view, command in commit.made:
            if command.data is not None and command.data.is_start and view.data is not None and view.is_live:
                self._judge_start(view, command, commit)

    # ---- starts

    def _judge_start(self, view: ChannelView, command: CommandView, commit: Commit) -> None:
        given = command.data.partitions - view.data.running.keys() if command.data and view.data else frozenset()
        if not given or view.by_hand:
            return
        for partition in sorted(given):
            for what, since in self._taken(view, partition, commit):
                self._report(
                    f"{command.name} gives {partition[0]}-{partition[1]} of group {view.group.name} to "
                    f"{view.consumer} at {moment(commit.at)}, and {what}",
                    since,
                    commit.event,
                )
                return

    def _taken(self, view: ChannelView, partition: Partition, commit: Commit) -> Iterator[Why]:
        group = view.group
        for name, other in group.channels.items():
            if other is not view and other.data is not None and partition in other.data.running and not other.by_hand:
                yield f"{name} runs it", other.written
        for other, command in _stood(group, commit):
            data = command.data
            if data is None or not data.is_start or partition not in data.partitions or command.by_hand:
                continue
            runs = other.is_live and other.data is not None and partition in other.data.running
            if not runs and not other.by_hand:
                yield f"{command.name} of {other.consumer}, a start with it, was not acknowledged", command.made
        state = group.state.data if group.state is not None else None
        for (name, incarnation), covered in state.marks.items() if state is not None else ():
            if partition in covered:
                since = self._marked.get((group.name, (name, incarnation)))
                yield f"the lease of {name} (incarnation {incarnation}) still covers it", since
        owner = group.owners.get(partition)
        if owner is not None and not owner.by_hand:
            yield "its owner znode is there", owner.made

    # ---- marks

    def _judge_end(self, change: ChannelChange, before: ChannelData, commit: Commit) -> None:
        view, after, group = change.view, change.after, change.view.group
        state = group.state.data if group.state is not None and not group.state.by_hand else None
        is_end = after is not None and after.ended is not None and after.incarnation == before.incarnation
        if not is_end or view.by_hand or state is None:
            return
        for of, was, now in commit.members:
            registration = was.registration if was is not None and now is None and of is group else None
            if registration is None or was is None or registration.incarnation != before.incarnation or was.by_hand:
                continue
            mark = view.consumer, before.incarnation
            is_covered = before.running.keys() <= state.marks.get(mark, frozenset())
            if not is_covered or state.leases[mark] * 1000 < registration.lease_ms:
                self._report(
                    f"{view.consumer} of group {group.name} (incarnation {before.incarnation}) was ended at "
                    f"{moment(commit.at)} while it lived, and no mark covers its partitions for its lease of "
                    f"{registration.lease_ms} ms",
                    was.written,
                    commit.event,
                )

    def _forget(self, group: GroupView) -> None:
        for key in [key for key in self._marked if key[0] == group.name]:
            del self._marked[key]

    def _judge_marks(self, group: GroupView, before: StateView | None, after: StateView | None, commit: Commit) -> None:
        was = before.data if before is not None and not before.by_hand else None
        now = after.data if after is not None else None
        if was is None or now is None:
            self._forget(group)
        if now is None:
            return
        for mark in now.marks:
            if was is None or mark not in was.marks:
                self._marked[group.name, mark] = self._since(group, before, mark, commit)
                if _lives(group, mark):  # its end was planned, and is not committed yet
                    del self._marked[group.name, mark]
        for mark in was.marks if was is not None else ():
            if mark in now.marks:
                continue
            marked = self._marked.pop((group.name, mark), None)
            elected = self._terms.elected(commit)
            if was is None or marked is None or elected is None or _lives(group, mark):
                continue
            since = max(marked, elected, key=lambda event: event["at"])
            lease = was.leases[mark]
            if commit.at - since["at"] < self._terms.measured(lease) - ROUNDING_S:
                self._report(
                    f"the mark of {mark[0]} (incarnation {mark[1]}) in group {group.name} was dropped at "
                    f"{moment(commit.at)}, and its lease of {lease:g} s counts from {moment(since['at'])}",
                    marked,
                    elected,
                    commit.event,
                )

    def _since(self, group: GroupView, before: StateView | None, mark: Mark, commit: Commit) -> Event:
        """The earliest event from which the lease of a new mark counts."""
        if mark[0] == UNKNOWN and before is not None:
            return self._lost.get(group.name, before.written)
        return commit.event


def _stood(group: GroupView, commit: Commit) -> Iterator[tuple[ChannelView, CommandView]]:
    """The commands of a group that stood before a commit."""
    made = {id(command) for _, command in commit.made}
    for view in group.channels.values():
        for command in view.commands.values():
            if id(command) not in made:
                yield view, command
    for view, command in commit.gone:
        if view.group is group:
            yield view, command


def _lives(group: GroupView, mark: Mark) -> bool:
    view = group.channels.get(mark[0])
    return view is not None and view.data is not None and view.is_live and view.data.incarnation == mark[1]
