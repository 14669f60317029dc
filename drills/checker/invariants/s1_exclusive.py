"""S1: exclusive fetching, by fetch intervals and by channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from zk_group.coordinator.zk.znodes.group_state import GroupState, Mark
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import Channel

from ..replay.commits import Changed, ChannelChange, Commit, StateChange
from ..replay.conditions import measured
from ..replay.fetch_intervals import Hold
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, CommandView, GroupView
from .base import LEASE_ROUNDING_S, Invariant, Rules, SessionLeases

SOON_S = 0.005
"""Real transactions have times in milliseconds: a claim this soon after a begin may have been before it."""

LATE_S = 0.0015
"""Likewise the end of fetching this soon after the leave that it precedes."""

_Waiting = tuple[Event, ChannelView, set[TopicPartition]]
"""An event to be judged later, of a channel, with the partitions in question."""

Marked = tuple[str, str]
"""Consumer, incarnation."""
Why = tuple[str, Event | None]
"""Why a partition is not free, and the event that proves it."""

UNKNOWN = "unknown"
"""The consumer of a coordinator's single eviction hold after a loss of `state`."""


class Exclusive(Invariant):
    """At any instant at most one fetcher runs a partition of a group. A fetch interval ends with the acknowledged stop,
    the lapse of the lease, or a takeover of its name (later records cannot be sealed).

    Two intervals of different incarnations never overlap in time; where they meet in one instant, not both fetch in it.
    No fetcher gets records of a partition that only another one runs. No fetch begins after the lapse of the lease, and
    `poll` returns nothing then, until it is renewed; a fetch that began before may end. And after no commit do two
    channels have the same partition in `running`. `FreePartitions` judges starts of coordinators, `Claims` claims of
    consumers: without them two would fetch only rarely, and late. No consumer's lease outlasts its
    session (`SessionLeases`).
    """

    name = "S1"
    sentence = "At any instant at most one fetcher runs a partition of a group."
    wants = Changed.LIFE | Changed.RUNNING | Changed.SENT | Changed.STATE
    events = ("fetch", "returned")

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._free, self._claims = FreePartitions(self), Claims(self)
        SessionLeases(self, "consumer")
        self._reported: set[frozenset[int]] = set()
        self._strays: set[tuple[int, str, str]] = set()
        self._fetched: dict[frozenset[int], dict[str, Event]] = {}
        self._runners: dict[tuple[str, TopicPartition], dict[str, Event]] = {}
        self._acts: dict[tuple[str, str, str], float] = {}
        self._lapses: set[tuple[str, str]] = set()

    # ---- fetch intervals

    def meet(self, before: float) -> None:
        """No event since `before`: contested partitions were fetched by both holders all that time."""
        for one, other in self.world.fetching.disputes():
            if min(one.lease.until, other.lease.until) > before:
                self._meet(one, other, before)

    def _meet(self, one: Hold, other: Hold, at: float, *fetches: Event) -> None:
        pair = frozenset((one.number, other.number))
        if pair in self._reported:
            return
        self._reported.add(pair)
        group, topic, _, number = one.key
        why = f"{topic}-{number} of group {group} was fetched by {one.text} and by {other.text} at {moment(at)}"
        self.broken(why, one.begun, one.lease.event, other.begun, other.lease.event, *fetches)

    def on_fetch(self, event: Event) -> None:
        self.judged += 1
        self.on_returned(event)
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
        view = self.world.channel(event)
        lease = self.world.fetching.lease_of(event["who"], event["incarnation"])
        if view is None or view.owner != event["who"] or lease.until <= event["at"]:
            return
        group, topic, _, number = hold.key
        stray = (hold.number, event["who"], event["incarnation"])
        if stray not in self._strays:
            self._strays.add(stray)
            by = f"{event['who']} (consumer {event['consumer']}, incarnation {event['incarnation']})"
            why = f"{topic}-{number} of group {group} was fetched by {by}, which does not run it, at"
            self.broken(f"{why} {moment(event['at'])} while {hold.text} did", hold.begun, hold.lease.event, event)

    # ---- leases

    def on_returned(self, event: Event) -> None:
        """A `fetch` or `returned` under a lapsed lease. `checked` is before its process looked at the lease; without
        `checked`, the end of the previous one is: one thread of control fetches, one after the other."""
        who, life = event["who"], event["incarnation"]
        previous = self._acts.get((who, life, event["event"]), float("-inf"))
        self._acts[who, life, event["event"]] = event["at"]
        checked = event.get("checked")
        since = previous if checked is None else checked
        lease = self.world.fetching.lease_of(who, life)
        if since <= lease.until + LEASE_ROUNDING_S or (who, life) in self._lapses:
            return
        self._lapses.add((who, life))
        what = "fetched" if event["event"] == "fetch" else "was given records"
        why = f"{who} (consumer {event['consumer']} of group {event['group']}, incarnation {life}) {what} at"
        why = f"{why} {moment(event['at'])}, by a look at its lease at {moment(since)} or later, and that had lapsed"
        self.broken(f"{why} at {moment(lease.until)}", lease.event, event)

    # ---- channels

    def on_commit(self, commit: Commit) -> None:
        claimed = []
        for change in commit.channels:
            claimed += self._note(change, commit.event)
            if not commit.by_hand:
                self._claims.take(change, commit)
        self._claims.take_left(commit)
        self._free.on_commit(commit)
        for group, partition in claimed:
            known, channels = self._runners.get((group.name, partition), {}), group.channels
            runners = {name: since for name, since in known.items() if not channels[name].by_hand}
            if len(runners) > 1:
                names = " and ".join(sorted(runners))
                why = f"{partition} of {group} is in `running` of {names} after the commit at {commit.moment}"
                self.broken(why, *runners.values())

    def _note(self, change: ChannelChange, event: Event) -> list[tuple[GroupView, TopicPartition]]:
        group, consumer = change.view.group, change.view.consumer
        for partition in change.left:
            self._runners.get((group.name, partition), {}).pop(consumer, None)
        running = change.after.running if change.after is not None else {}
        claimed = [partition for partition in running if partition in change.entered]
        for partition in claimed:
            self._runners.setdefault((group.name, partition), {})[consumer] = event
        return [] if change.view.by_hand else [(group, partition) for partition in claimed]


def _is_of(hold: Hold, event: Event) -> bool:
    """Whether a `fetch` is of a hold's process and incarnation."""
    return bool(hold.who == event["who"] and hold.incarnation == event["incarnation"])


class Claims(Rules):
    """A fetcher begins only with running partitions of its channel, and `running` and owner znodes change together.

    A partition that enters `running` has an owner znode of the same session after that commit, and one that leaves it
    has none of that incarnation; a claim replaces no owner znode of another session. A voluntarily leaving consumer has
    stopped fetching before. A begin is judged while the channel has its incarnation, alive. Manually edited
    channels are not judged, nor manually created owner znodes.
    """

    events = ("begin", "halt")

    def __init__(self, invariant: Invariant) -> None:
        super().__init__(invariant)
        self._unclaimed: list[_Waiting] = []
        self._unhalted: list[_Waiting] = []

    # ---- owner znodes

    def take(self, change: ChannelChange, commit: Commit) -> None:
        """`running` of a channel has changed, not manually."""
        view, before, after = change.view, change.before, change.after
        if view.by_hand:
            return
        for event, other, missing in self._unclaimed:
            if other is view and commit.at - event["at"] <= SOON_S:
                missing.difference_update(view.running)
        is_own = after is not None and after.is_live and commit.who == view.owner
        if is_own and change.entered and commit.session is not None:
            self._judge_entered(view, change.entered, commit)
            self._judge_replaced(view, change.entered, commit)
        if before is not None and change.left:
            self._judge_left(view, before.incarnation, change.left, commit)

    def _judge_entered(self, view: ChannelView, entered: Set[TopicPartition], commit: Commit) -> None:
        for partition in sorted(entered):
            owner = view.group.owners.get(partition)
            if owner is None or (owner.session != commit.session and not owner.by_hand):
                why = f"{partition} of {view.group} came into `running` of {view.consumer} at {commit.moment}"
                made = owner.made if owner is not None else None
                self.broken_by(commit, f"{why}, without an owner znode of its session", made)
                return

    def _judge_left(self, view: ChannelView, incarnation: str, left: Set[TopicPartition], commit: Commit) -> None:
        owners = view.group.owners
        for partition in sorted(left & owners.keys()):
            owner = owners[partition]
            named = (owner.data.consumer, owner.data.incarnation) if owner.data is not None else None
            if named == (view.consumer, incarnation) and not owner.by_hand:
                why = f"{partition} of {view.group} left `running` of {view.consumer} (incarnation {incarnation})"
                self.broken_by(commit, f"{why} at {commit.moment}, and its owner znode stayed", owner.made)
                return

    def _judge_replaced(self, view: ChannelView, entered: Set[TopicPartition], commit: Commit) -> None:
        for group, partition, owner, _ in commit.owners:
            if owner is None or group is not view.group or partition not in entered:
                continue
            if owner.session != commit.session:
                why = f"{view.consumer} of {group} claimed {partition} at {commit.moment}"
                self.broken_by(commit, f"{why}, and removed an owner znode that was in the way", owner.made)
                return

    # ---- begins, and ends

    def on_begin(self, event: Event) -> None:
        """A process begins to fetch."""
        view = self.world.channel(event)
        if view is not None and (missing := _partitions(event) - view.running.keys()):
            self._unclaimed.append((event, view, missing))

    def take_left(self, commit: Commit) -> None:
        """Processes have left."""
        for view, fetched in commit.left:
            if fetched and not view.by_hand:
                self._unhalted.append((commit.event, view, set(fetched)))

    def on_halt(self, event: Event) -> None:
        """A process stops fetching."""
        for left, view, fetched in self._unhalted:
            if (left["who"], view.consumer) == (event["who"], event["consumer"]) and event["at"] - left["at"] <= LATE_S:
                fetched -= _partitions(event)

    def on_tick(self, now: float) -> None:
        """Report begins without a claim, and fetches of departed consumers."""
        due, self._unhalted = _due(self._unhalted, now - LATE_S)
        for event, view, fetched in due:
            why = f"{event['who']} left {view.group} at {moment(event['at'])} while it still fetched {min(fetched)}"
            self.broken(why, event)
        due, self._unclaimed = _due(self._unclaimed, now - SOON_S)
        for event, view, missing in due:
            why = f"{event['who']} began to fetch {min(missing)} of {view.group} at {moment(event['at'])}"
            self.broken(f"{why}, which the channel of {view.consumer} did not have in `running`", view.written, event)


def _partitions(event: Event) -> set[TopicPartition]:
    return {TopicPartition(topic, int(number)) for topic, numbers in event["partitions"].items() for number in numbers}


def _due(waiting: list[_Waiting], before: float) -> tuple[list[_Waiting], list[_Waiting]]:
    """The violating ones of the events before a time, and the later ones."""
    due = [one for one in waiting if one[0]["at"] < before and one[2]]
    return due, [one for one in waiting if one[0]["at"] >= before]


class FreePartitions(Rules):
    """A start gives a consumer only free partitions, and an eviction hold stays until its lease is over.

    Free, as of the commit that sends the start: no other channel has the partition in `running`, no start of it was
    pending before (one withdrawn by the same commit may have been applied), no eviction hold of the written state
    covers it, and it has no owner znode. Running partitions of a channel are not given.

    A live incarnation that is ended while it runs partitions, together with its `ids`, has an eviction hold in the same
    commit that covers them for its lease. The lease counts from the commit that wrote the hold, or from the election of
    another coordinator that reads it; where `state` was lost, from its first manual write, which the coordinator reads
    before it writes the hold. A hold is dropped earlier only when its incarnation was never ended.

    Manually written znodes are not judged, nor eviction holds of a manually written state.
    """

    def __init__(self, invariant: Invariant) -> None:
        super().__init__(invariant)
        self._marked: dict[tuple[str, Marked], Event] = {}
        self._lost: dict[str, Event] = {}

    def on_commit(self, commit: Commit) -> None:
        """After the channels of the commit are known."""
        if commit.by_hand or not self.world.process(commit.who).is_node:
            for group, _, _ in commit.states:
                self._forget(group)
                self._lost.setdefault(group.name, commit.event)
            return
        for written in commit.states:
            self._judge_marks(written, commit)
            self._lost.pop(written.group.name, None)
        for change in commit.channels:
            if change.before is not None and change.before.is_live and change.before.running:
                self._judge_end(change, change.before, commit)
        for view, command in commit.made:
            if command.is_start and view.is_live and not view.by_hand:
                self._judge_start(view, command, commit)

    # ---- starts

    def _judge_start(self, view: ChannelView, command: CommandView, commit: Commit) -> None:
        for partition in sorted(command.partitions - view.running.keys()):
            for what, since in self._taken(view, partition, commit):
                why = f"{command.name} gives {partition} of {view.group} to {view.consumer} at {commit.moment}"
                self.broken_by(commit, f"{why}, and {what}", since)
                return

    def _taken(self, view: ChannelView, partition: TopicPartition, commit: Commit) -> Iterator[Why]:
        group = view.group
        for name, other in group.channels.items():
            if other is not view and partition in other.running and not other.by_hand:
                yield f"{name} runs it", other.written
        for other, command in _stood(group, commit):
            if not command.is_start or partition not in command.partitions or command.by_hand or other.by_hand:
                continue
            if not other.is_live or partition not in other.running:
                yield f"{command.name} of {other.consumer}, a start with it, was not acknowledged", command.made
        for key, mark in _marks(group.known).items():
            if partition in mark.partitions:
                since = self._marked.get((group.name, key))
                yield f"the lease of {mark.consumer} (incarnation {mark.incarnation}) still covers it", since
        owner = group.owners.get(partition)
        if owner is not None and not owner.by_hand:
            yield "its owner znode is there", owner.made

    # ---- eviction holds

    def _judge_end(self, change: ChannelChange, before: Channel, commit: Commit) -> None:
        view, after, group = change.view, change.after, change.view.group
        is_end = after is not None and after.ended is not None and change.same is not None
        if not is_end or view.by_hand or group.known is None or group.is_edited:
            return
        for of, was, now in commit.members:
            registration = was.registration if was is not None and now is None and of is group else None
            if registration is None or was is None or registration.incarnation != before.incarnation or was.by_hand:
                continue
            mark = _marks(group.known).get((view.consumer, before.incarnation))
            is_covered = mark is not None and before.running.keys() <= mark.partitions
            if mark is None or not is_covered or mark.lease_ms < registration.lease_ms:
                why = f"{view} (incarnation {before.incarnation}) was ended at {commit.moment} while it lived, and no"
                why = f"{why} mark covers its partitions for its lease of {registration.lease_ms} ms"
                self.broken_by(commit, why, was.written)

    def _forget(self, group: GroupView) -> None:
        for key in [key for key in self._marked if key[0] == group.name]:
            del self._marked[key]

    def _judge_marks(self, written: StateChange, commit: Commit) -> None:
        group, before, _ = written
        was, now = _marks(written.was), _marks(written.now)
        if written.was is None or written.now is None:
            self._forget(group)
        if written.now is None:
            return
        for name in now.keys() - was.keys():
            since = commit.event
            if name[0] == UNKNOWN and before is not None:
                since = self._lost.get(group.name, before.written)
            if not _lives(group, name):  # else its end was planned, and is not committed yet
                self._marked[group.name, name] = since
        for name, mark in was.items():
            marked = self._marked.pop((group.name, name), None) if name not in now else None
            elected = self.world.conditions.elected_before(commit)
            if marked is None or elected is None or _lives(group, name):
                continue
            since, lease = max(marked, elected, key=lambda event: event["at"]), mark.lease_ms / 1000
            if commit.at - since["at"] < measured(lease):
                dropped = f"the mark of {mark.consumer} (incarnation {mark.incarnation}) in {group} was dropped at"
                counts = f"its lease of {lease:g} s counts from {moment(since['at'])}"
                self.broken_by(commit, f"{dropped} {commit.moment}, and {counts}", marked, elected)


def _marks(state: GroupState | None) -> Mapping[Marked, Mark]:
    return {(mark.consumer, mark.incarnation): mark for mark in (state.marks if state is not None else ())}


def _stood(group: GroupView, commit: Commit) -> Iterator[tuple[ChannelView, CommandView]]:
    """The pending commands of a group before a commit."""
    made = {id(command) for _, command in commit.made}
    yield from (each for each in group.pending if id(each[1]) not in made)
    yield from (each for each in commit.gone if each[0].group is group)


def _lives(group: GroupView, mark: Marked) -> bool:
    view = group.channels.get(mark[0])
    return view is not None and view.lives_as(mark[1])
