"""S7: leftovers of ended processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zk_group.coordinator.zk.znodes.group_state import EMPTY, STABLE
from zk_group.coordinator.zk.znodes.records import Channel
from zk_group.coordinator.zk.znodes.segments import QUERY_ABSENCE_S

from ..replay.commits import Changed, ChannelChange, Commit
from ..replay.conditions import measured
from ..replay.expected_target import is_cut_touched
from ..replay.replay import Replay
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelView, GroupView, MemberView, OwnerView, QueryView, SegmentView
from .base import Invariant, Rules

Remnant = tuple[str, Event | None, float, float]
"""The leftover, the event of its end, when that was, and how long it may remain."""

WITH_ITS_ID = ("evicted", "refused", "removed")
"""Prefixes of the reasons for which a coordinator ends a live incarnation, with its `ids`."""


class Remains(Invariant):
    """Nothing of the dead remains after the collection period.

    Judged at the end: no ephemeral of a closed session, no owner znode of an ended incarnation, no commands and no
    `running` in an ended channel, no channel of a departed consumer (after `channel_retention`), no segment that
    every query has finished (`segment_retention` after its seal; `QUERY_ABSENCE_S` after the session of a query that
    has not finished it), no assignment request except that of a Stable group's target,
    and no request of a leader. The period counts from the end, or from when a coordinator has been able to act
    without a break (and twice the session timeout: it must have watched for itself); manually created znodes stay,
    and so do leftovers of turns in a group whose consistent region has a manually edited cut. `Living` judges
    removals of live objects.
    """

    name = "S7"
    sentence = "Nothing of the dead remains after the collection period."
    wants = Changed.MEMBER | Changed.LIFE | Changed.NAMED | Changed.SEAT
    events = ("end",)
    needs_bounds = needs_end = True

    def __init__(self, world: Replay) -> None:
        super().__init__(world)
        self._excused: str | None = None
        self._left: dict[tuple[str, str], Event] = {}
        self._living = Living(self)

    def on_commit(self, commit: Commit) -> None:
        self._living.on_commit(commit)
        for group, before, after in commit.members:
            if before is not None and after is None:
                self._left[group.name, before.consumer] = commit.event

    def undecided(self) -> tuple[str, bool] | None:
        return (self._excused, False) if self._excused is not None else None

    def on_end(self, event: Event) -> None:
        if not self.world.bounds:
            return
        now: float = event["at"]
        acting = self.world.conditions.undisturbed_since(now) + 2 * self.world.bounds["session_timeout"]
        for name in sorted(self.world.groups):
            group = self.world.groups[name]
            self.judged += 1
            turns = max(acting, self.world.conditions.unpaused_since(name))
            if is_cut_touched(self.world, group):
                turns = float("inf")
            for what, since, at, _ in self._of_sessions(group):
                self._report(what, since, at, now, event)
            for remnants, able in ((self._of_turns(group), turns), (self._of_collection(group), acting)):
                for what, since, at, allowed in remnants:
                    if now - max(at, able) > allowed:
                        self._report(what, since, at, now, event)
                    elif now - at > allowed:
                        self._excused = self._excused or f"{what} remains, and no coordinator could act for long enough"

    def _report(self, what: str, since: Event | None, at: float, now: float, end: Event) -> None:
        self.broken(f"{what} is dead since {moment(at)}, and there at {moment(now)}", since, end)

    def _of_sessions(self, group: GroupView) -> Iterator[Remnant]:
        for partition, owner in sorted(group.owners.items()):
            if (closed := self.world.closed.get(owner.session)) is not None:
                yield f"owner {partition} of {group}", closed, closed["at"], 0.0
        for name, member in sorted(group.members.items()):
            if (closed := self.world.closed.get(member.session)) is not None:
                yield f"the registration of {name} in {group}", closed, closed["at"], 0.0

    # ---- leftovers of turns

    def _of_turns(self, group: GroupView) -> Iterator[Remnant]:
        allowed = self.world.bounds["collection"]
        for name, view in sorted(group.channels.items()):
            if view.by_hand or view.data is None:
                continue
            for command in view.commands.values():
                is_dead = view.data.ended is not None or (
                    command.data is not None and command.data.incarnation != view.data.incarnation
                )
                if is_dead and not command.by_hand:
                    since = max(view.since, command.made, key=lambda event: event["at"])
                    yield f"{command.name} for {name} of {group}", since, since["at"], allowed
            if view.data.ended is not None and view.data.running:
                what = f"{min(view.data.running)} in `running` of {name}, ended, in {group}"
                yield what, view.since, view.since["at"], allowed
        yield from self._of_asks(group, allowed)
        for partition, owner in sorted(group.owners.items()):
            death = _end_of_owner(group, owner)
            if death is not None:
                yield f"owner {partition} of {group}", death, death["at"], allowed

    def _of_asks(self, group: GroupView, allowed: float) -> Iterator[Remnant]:
        """Once every member has the adopted assignment's command, other requests are obsolete."""
        if group.requested is not None and group.hand_at < group.requested["at"]:
            yield f"`sync_request` of {group}", group.requested, group.requested["at"], allowed
        state = group.state
        if state is None or state.by_hand or state.data is None or state.data.state not in (STABLE, EMPTY):
            return
        named = state.data.client.ask if state.data.client is not None else ""
        for name, view in sorted(group.asks.items()):
            if name != named and not view.by_hand:
                since = max(state.written, view.made, key=lambda event: event["at"])
                yield f"{name} of {group}", since, since["at"], allowed

    # ---- leftovers of collection

    def _of_collection(self, group: GroupView) -> Iterator[Remnant]:
        bounds = self.world.bounds
        allowed = bounds["channel_retention"] + bounds["collection"]
        for name, view in sorted(group.channels.items()):
            data = view.data
            if data is None or name in group.members or data.is_live or data.running or view.commands:
                continue
            # Its last activity is a write of its channel, or the end of its registration.
            left = self._left.get((group.name, name), view.written)
            since = max(left, view.written, key=lambda event: event["at"])
            yield f"the channel of {name} in {group}", since, since["at"], allowed
        readers = [query for query in group.queries.values() if not query.is_expired]
        for segment in group.segments.values():
            death = _finished(readers, group.readers_changed, segment)
            if death is not None:
                what = f"{segment.name} of {group}, finished by every query,"
                retained_until = segment.made["at"] + bounds.get("segment_retention", 0.0)
                held_until = [
                    ended_at + QUERY_ABSENCE_S
                    for query, ended_at in group.queries_lost.values()
                    if _finishing(query, segment.czxid) is None
                ]
                yield what, death, max(death["at"], retained_until, *held_until), bounds["collection"]


def _end_of_owner(group: GroupView, owner: OwnerView) -> Event | None:
    """The commit that ended the incarnation of an owner znode; None while it lives, or when unknown."""
    view = group.channels.get(owner.data.consumer) if owner.data is not None else None
    if owner.data is None or view is None or view.by_hand or view.data is None:
        return None
    if view.data.incarnation == owner.data.incarnation and view.data.ended is None:
        return None
    return max(view.since, owner.made, key=lambda event: event["at"])


def _finished(readers: Sequence[QueryView], changed: Event | None, segment: SegmentView) -> Event | None:
    """The event by which the last of the queries had finished a segment; None while one has not, or without any."""
    found = [step for query in readers if (step := _finishing(query, segment.czxid)) is not None]
    if not readers or changed is None or len(found) < len(readers):
        return None
    return max([*found, changed, segment.made], key=lambda event: event["at"])


def _finishing(query: QueryView, czxid: int) -> Event | None:
    if query.data is None:
        return None
    return next((event for finished, event in query.steps if finished >= czxid), None)


class Living(Rules):
    """A coordinator ends an incarnation whose `ids` is gone, or removes `ids` in the same commit with a reason.

    The reasons are an eviction, a refusal, and a removal by an operator. An eviction comes `max_poll_interval_ms` after
    the election of its coordinator, and after the registration and the last applied command, or after a command that is
    not applied. It never writes another incarnation's data into a live channel. No seat is removed while its member
    lives, nor within its `session_timeout_ms` after a member in the target has left by itself. Manually edited channels
    and registrations are not judged.
    """

    def __init__(self, invariant: Invariant) -> None:
        super().__init__(invariant)
        self._signs: dict[tuple[str, str], tuple[str, Event]] = {}
        self._departures: dict[tuple[str, str], Event] = {}

    def on_commit(self, commit: Commit) -> None:
        """A life began or ended, a command was applied, or a seat was removed."""
        is_coordinator = not commit.by_hand and self.world.process(commit.who).is_node
        for change in commit.channels:
            if is_coordinator:
                self._judge_end(change, commit)
            self._note(change, commit)
        if not is_coordinator:
            return
        for group, name in commit.seats:
            self._judge_seat(group, name, commit)

    def _judge_seat(self, group: GroupView, name: str, commit: Commit) -> None:
        member, view, registration = group.members.get(name), group.channels.get(name), group.registration(name)
        if view is None or view.by_hand:
            return
        is_its_own = registration is not None and registration.instance_id == name
        if is_its_own and group.live(name) and member is not None and not member.by_hand:
            why = f"the seat of {name} in {group} was removed at {commit.moment}: its member lives"
            self.broken_by(commit, why, member.written)
        self._judge_kept(view, commit)

    def _judge_kept(self, view: ChannelView, commit: Commit) -> None:
        """A seat was removed: its member has been away for long enough, if it was in the target and left by itself."""
        group, name = view.group, view.consumer
        before = next((was for of, was, _ in commit.states if of is group), group.state)
        is_expected = before is not None and before.data is not None and name in before.data.target
        left, seat = self._departures.get((group.name, name)), group.seat_data.get(name)
        if left is None or left is not view.since or not is_expected or seat is None or seat.removed is not None:
            return
        kept_s = seat.session_timeout_ms / 1000
        if commit.at < left["at"] + measured(kept_s):
            why = f"the seat of {name} in {group} was removed at {commit.moment}, and is kept for {kept_s:g} s from"
            self.broken_by(commit, f"{why} {moment(left['at'])}, when its member left", left)

    def _note(self, change: ChannelChange, commit: Commit) -> None:
        """A leader's proposal is no activity: only an applied stop or start stops its clock."""
        before, after, key = change.same, change.after, (change.view.group.name, change.view.consumer)
        if after is None:
            return
        if before is not None and before.is_live and not after.is_live and commit.who == change.view.owner:
            self._departures[key] = commit.event
        applied = commit.removed_command(change.view, after.command)
        is_move = applied is None or applied.data is None or applied.is_start or applied.is_stop
        if before is None or (before.command != after.command and is_move):
            self._signs[key] = (after.incarnation, commit.event)

    def _judge_end(self, change: ChannelChange, commit: Commit) -> None:
        view, before, after = change.view, change.before, change.after
        if before is None or after is None or view.by_hand or not before.is_live:
            return
        name, group = view.consumer, view.group
        if after.incarnation != before.incarnation:
            _, since = self._signs.get((group.name, name), ("", None))
            why = f"the channel of {name} in {group} (incarnation {before.incarnation}) was overwritten at"
            self.broken_by(commit, f"{why} {commit.moment} with that of incarnation {after.incarnation}", since)
            return
        if after.ended is None or commit.who == view.owner:
            return
        what = f"{name} of {group} (incarnation {before.incarnation}) was ended at {commit.moment}"
        member = group.members.get(name)
        if member is not None and _is_of(member, before):
            self.broken_by(commit, f"{what}, and its registration is there", member.written)
            return
        left = (was for of, was, now in commit.members if of is group and now is None and was is not None)
        gone = next((was for was in left if _is_of(was, before)), None)
        if gone is None:
            return
        if not after.ended.startswith(WITH_ITS_ID):
            self.broken_by(commit, f"{what} while it lived, and it was not evicted: {after.ended}", gone.written)
        elif after.ended.startswith(WITH_ITS_ID[0]):
            self._judge_eviction(view, before, gone, what, commit)

    def _judge_eviction(self, view: ChannelView, before: Channel, gone: MemberView, what: str, commit: Commit) -> None:
        elected = self.world.conditions.elected_before(commit)
        life, sign = self._signs.get((view.group.name, view.consumer), ("", None))
        if elected is None or sign is None or life != before.incarnation or gone.registration is None:
            return
        limit = gone.registration.max_poll_interval_ms / 1000
        latest = commit.at - measured(limit)
        commands = [*view.commands.values(), *commit.removed_from(view)]
        asked = min((command.made for command in commands), key=lambda event: event["at"], default=sign)
        since = max(elected, min(sign, asked, key=lambda event: event["at"]), key=lambda event: event["at"])
        if since["at"] > latest:
            why = f"{what} as evicted, before its max_poll_interval_ms of {limit:g} s was over"
            self.broken_by(commit, f"{why}: it counts from {moment(since['at'])}", gone.written, since)


def _is_of(member: MemberView, life: Channel) -> bool:
    registration = member.registration
    return registration is not None and not member.by_hand and registration.incarnation == life.incarnation
