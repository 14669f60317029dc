"""S7, second part: what lives is not removed."""

from __future__ import annotations

from collections.abc import Callable

from ..replay.channel_data import ChannelData
from ..replay.commits import Commit
from ..replay.reading import read_seat
from ..replay.replay import Replay
from ..replay.terms import Terms
from ..replay.verdict import Event, moment
from ..replay.znode_views import ChannelChange, ChannelView, GroupView, MemberView

WITH_ITS_ID = ("evicted", "refused", "removed")
"""How the reasons begin for which a coordinator ends a live incarnation, with its `ids`."""

ROUNDING_S = 0.01


class Living:
    """A coordinator ends an incarnation whose `ids` is gone, or removes `ids` in the same commit with a reason.

    The reasons are an eviction, a refusal, and a removal by an operator. An eviction comes `max_poll_interval_ms` after
    the election of its coordinator, and after the registration and the last applied command, or after a command that is
    not applied. It never writes another incarnation's data into a live channel, nor removes `ids` without ending its
    incarnation in the same commit. No seat is removed while its member lives, nor within its `session_timeout_ms` after
    a member in the target has left by itself. Manually edited channels and registrations are not judged.
    """

    def __init__(self, world: Replay, terms: Terms, report: Callable[..., None]) -> None:
        self._world = world
        self._terms = terms
        self._report = report
        self._signs: dict[tuple[str, str], tuple[str, Event]] = {}
        self._departures: dict[tuple[str, str], Event] = {}

    def on_commit(self, commit: Commit) -> None:
        """A life began or ended, a command was applied, or a seat was removed."""
        is_coordinator = not commit.by_hand and self._world.process(commit.who).is_node
        for change in commit.channels:
            if is_coordinator:
                self._judge_end(change, commit)
            self._note(change, commit)
        if not is_coordinator:
            return
        for group, was, now in commit.members:
            if was is not None and now is None:
                self._judge_removed(group, was, commit)
        for group, name in commit.seats:
            self._judge_seat(group, name, commit)

    def _judge_removed(self, group: GroupView, was: MemberView, commit: Commit) -> None:
        """A registration was removed: its incarnation has ended."""
        view = group.channels.get(was.consumer)
        if view is None or view.by_hand or view.data is None or not view.data.is_live or not _is_of(was, view.data):
            return
        self._report(
            f"the registration of {was.consumer} in group {group.name} (incarnation {view.data.incarnation}) was "
            f"removed at {moment(commit.at)}, and its channel is not ended",
            was.written,
            commit.event,
        )

    def _judge_seat(self, group: GroupView, name: str, commit: Commit) -> None:
        member, view = group.members.get(name), group.channels.get(name)
        if view is None or view.by_hand:
            return
        registration = member.registration if member is not None else None
        is_its_own = registration is not None and registration.instance_id == name
        if is_its_own and group.live(name) and member is not None and not member.by_hand:
            self._report(
                f"the seat of {name} in group {group.name} was removed at {moment(commit.at)}: its member lives",
                member.written,
                commit.event,
            )
        self._judge_kept(view, commit)

    def _judge_kept(self, view: ChannelView, commit: Commit) -> None:
        """A seat was removed: its member has been away for long enough, if it was in the target and left by itself."""
        group, name = view.group, view.consumer
        before = next((was for of, was, _ in commit.states if of is group), group.state)
        is_expected = before is not None and before.data is not None and name in before.data.target
        left = self._departures.get((group.name, name))
        seat = read_seat("", group.seat_texts.get(name, ""))
        if left is None or left is not view.since or not is_expected or seat is None or seat.removed is not None:
            return
        kept_s = seat.session_timeout_ms / 1000
        if commit.at < left["at"] + self._terms.measured(kept_s) - ROUNDING_S:
            self._report(
                f"the seat of {name} in group {group.name} was removed at {moment(commit.at)}, and is kept for "
                f"{kept_s:g} s from {moment(left['at'])}, when its member left",
                left,
                commit.event,
            )

    def _note(self, change: ChannelChange, commit: Commit) -> None:
        """A leader's answer is no sign: only a stop or start that is applied stops the clock of one."""
        before, after = change.before, change.after
        if after is None:
            return
        is_same = before is not None and before.incarnation == after.incarnation
        if before is not None and is_same and before.is_live and not after.is_live and commit.who == change.view.owner:
            self._departures[change.view.group.name, change.view.consumer] = commit.event
        applied = [c.data for view, c in commit.gone if view is change.view and c.name == after.command]
        is_move = all(data is None or data.is_start or data.is_stop for data in applied)
        if before is None or not is_same or (before.command != after.command and is_move):
            self._signs[change.view.group.name, change.view.consumer] = (after.incarnation, commit.event)

    def _judge_end(self, change: ChannelChange, commit: Commit) -> None:
        view, before, after = change.view, change.before, change.after
        if before is None or after is None or view.by_hand or not before.is_live:
            return
        name, group = view.consumer, view.group
        if after.incarnation != before.incarnation:
            _, since = self._signs.get((group.name, name), ("", None))
            self._report(
                f"the channel of {name} in group {group.name} (incarnation {before.incarnation}) was overwritten at "
                f"{moment(commit.at)} with that of incarnation {after.incarnation}",
                *([since] if since is not None else []),
                commit.event,
            )
            return
        if after.ended is None or commit.who == view.owner:
            return
        what = f"{name} of group {group.name} (incarnation {before.incarnation}) was ended at {moment(commit.at)}"
        member = group.members.get(name)
        if member is not None and _is_of(member, before):
            self._report(f"{what}, and its registration is there", member.written, commit.event)
            return
        gone = next((was for of, was, now in commit.members if of is group and _removed(was, now, before)), None)
        if gone is None:
            return
        if not after.ended.startswith(WITH_ITS_ID):
            self._report(f"{what} while it lived, and it was not evicted: {after.ended}", gone.written, commit.event)
        elif after.ended.startswith(WITH_ITS_ID[0]):
            self._judge_eviction(view, before, gone, what, commit)

    def _judge_eviction(
        self, view: ChannelView, before: ChannelData, gone: MemberView, what: str, commit: Commit
    ) -> None:
        elected = self._terms.elected(commit)
        life, sign = self._signs.get((view.group.name, view.consumer), ("", None))
        if elected is None or sign is None or life != before.incarnation or gone.registration is None:
            return
        limit = gone.registration.max_poll_interval_ms / 1000
        latest = commit.at - self._terms.measured(limit) + ROUNDING_S
        commands = [*view.commands.values(), *(command for of, command in commit.gone if of is view)]
        asked = min((command.made for command in commands), key=lambda event: event["at"], default=sign)
        since = max(elected, min(sign, asked, key=lambda event: event["at"]), key=lambda event: event["at"])
        if since["at"] > latest:
            self._report(
                f"{what} as evicted, before its max_poll_interval_ms of {limit:g} s was over: it counts from "
                f"{moment(since['at'])}",
                gone.written,
                since,
                commit.event,
            )


def _is_of(member: MemberView, life: ChannelData) -> bool:
    registration = member.registration
    return registration is not None and not member.by_hand and registration.incarnation == life.incarnation


def _removed(was: MemberView | None, now: MemberView | None, life: ChannelData) -> bool:
    return was is not None and now is None and _is_of(was, life)
