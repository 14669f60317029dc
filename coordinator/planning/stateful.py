"""The protocol of groups in a consistent region of consumers: a reset stops and starts every member at the cut. Pure.

Sources R12: a member with new partitions, and a new process, begins from the last complete cut, and so do all other
members of the region. A model of it (`tests/model/region.py`) tests each rule by its absence.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..zk.znodes.cuts import GroupCut
from ..zk.znodes.partitions import NONE, PartitionSet, topics_of
from ..zk.znodes.records import DRAIN, START_FETCHER, Command
from ..zk.znodes.regions import FAILED, Order, Progress, Region
from .reconciliation import MemberProtocol, Round, addressed
from .snapshot import ChannelView


@dataclass(frozen=True, slots=True)
class StatefulProtocol(MemberProtocol):
    """A reset stops every member, and starts it with the partitions and states of the cut.

    :ivar region: as the turn leaves it.
    :ivar cut: the group's contributions to its cut, which is checkpoint `sequence`.
    """

    region: Region
    cut: GroupCut
    sequence: int

    def desired(self, now: Round, name: str) -> Command | None:
        assignment, target, reset = now.assignment, now.assignment.target[name], self.region.reset
        if revoked := self._to_revoke(now, name):
            return now.stop(name, revoked, Order(reset))
        if self.region.state == FAILED:
            return None
        if self._is_ready(now, name):
            return drain_of(now, name, self.region)
        topics = {topic: assignment.topics[topic] for topic in topics_of(target.partitions)}
        order = self._start_order(now, name)
        return now.command(name, START_FETCHER, threads=target.threads, topics=topics, ask=assignment.ask, region=order)

    def has_settled(self, now: Round) -> bool:
        """Whether all members of the target have restored their state."""
        names = addressed(now)
        return (
            now.assignment.target.keys() <= {*names, *now.membership.away}
            and not self._is_heir_away(now)
            and all(not self._to_revoke(now, name) and self._is_ready(now, name) for name in names)
        )

    def _to_revoke(self, now: Round, name: str) -> PartitionSet:
        """All running partitions, where they are of an earlier reset, or not in the target."""
        view, assignment = now.members.channels[name], now.assignment
        topics = view.channel.topics if view.channel is not None else {}
        other_topics = any(topics.get(part.topic) != assignment.topics.get(part.topic) for part in view.running)
        is_right = progress_of(view).reset == self.region.reset and not other_topics and self.region.state != FAILED
        return NONE if is_right and view.running <= assignment.target[name].partitions else view.running

    def _is_ready(self, now: Round, name: str) -> bool:
        view = now.members.channels[name]
        progress = progress_of(view)
        is_commanded = (progress.reset, progress.ready) == (self.region.reset, self.region.reset)
        return is_commanded and view.running == now.assignment.target[name].partitions

    def _start_order(self, now: Round, name: str) -> Order:
        cut, target = self.cut, now.assignment.target
        sources = {cut.sources[part] for part in target[name].partitions if part in cut.sources}
        gone = self._gone(now) if name == min(target) else ()
        return Order(self.region.reset, self.sequence, tuple(sorted(sources | ({name} & set(cut.names)))), gone)

    def _is_heir_away(self, now: Round) -> bool:
        """Whether the member that inherits the states of departed members is a static one that is away."""
        return min(now.assignment.target, default="") in now.membership.away and bool(self._gone(now))

    def _gone(self, now: Round) -> tuple[str, ...]:
        """Contributions of departed members; one that was copied in part has no member state."""
        return tuple(sorted(name for name in set(self.cut.names) - now.assignment.target.keys() if "~" not in name))


def drain_of(now: Round, name: str, region: Region) -> Command | None:
    """The command to contribute to the open checkpoint; None after that, or before it runs its target."""
    view = now.members.channels[name]
    is_waited_for = region.open and progress_of(view).drained != region.open
    if not is_waited_for or view.running != now.assignment.target[name].partitions:
        return None
    return now.command(name, DRAIN, region=Order(region.reset, region.open))


def progress_of(view: ChannelView) -> Progress:
    """A member's progress in its region."""
    progress = view.channel.region if view.channel is not None else None
    return progress or Progress()
