"""S1, third part: claims, by owner znodes and by the begin of fetching."""

from __future__ import annotations

from collections.abc import Callable

from ..replay.commits import Commit
from ..replay.fast_json import NUMBERS, Partition
from ..replay.reading import read_owner
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelChange, ChannelView, OwnerView

SOON_S = 0.005
"""Real transactions have times in milliseconds: a claim so soon after a begin may have been before it."""

LATE_S = 0.0015
"""Likewise the end of fetching so soon after the leave that it precedes."""

_Waiting = tuple[Event, ChannelView, set[Partition]]
"""An event that is judged later, of a channel, with the partitions that would break the rule."""


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
            if _is_of(owner, view.consumer, incarnation) and not owner.by_hand:
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


def _is_of(owner: OwnerView, consumer: str, incarnation: str) -> bool:
    record = read_owner("", owner.text)
    return record is not None and (record.consumer, record.incarnation) == (consumer, incarnation)
