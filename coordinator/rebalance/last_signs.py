"""The last signs of life of a group's members, for its history: for this term's coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..planning.membership import End
from ..planning.snapshot import ChannelView, Member, Silence
from ..planning.standstill import LastSign
from ..planning.target import is_live
from ..zk.lease import LEASE_SHARE
from ..zk.znodes.group_state import STABLE, GroupState


@dataclass(slots=True)
class _Life:
    """An incarnation of the target.

    :ivar sign: its last sign of life; None before this coordinator has read its channel.
    :ivar has_run: whether it ran something when it was last seen live.
    :ivar is_over: whether `sign` is final.
    :ivar is_ended: whether this coordinator has decided to end it: the last write of its channel is not its own.
    """

    incarnation: str
    sign: LastSign | None = None
    has_run: bool = False
    is_over: bool = False
    is_ended: bool = False


class LastSigns:
    """The last sign of life of each incarnation in the target of one group, until the target is another."""

    def __init__(self) -> None:
        self._of: dict[str, _Life] = {}
        self._returned: dict[str, LastSign] = {}

    def observed(
        self,
        state: GroupState,
        channels: Mapping[str, ChannelView],
        members: Mapping[str, Member],
        now_ms: int,
        changed_ms: int,
    ) -> tuple[dict[str, Silence], dict[str, Silence]]:
        """How long ago each member of the target that has run something last fetched, if it is over now.

        The same of the incarnations before of those that have come back since the group was Stable.

        :param now_ms: by ZooKeeper's clock; 0 when that is unknown.
        :param changed_ms: by that clock, when the first change was seen that this turn is for.
        """
        if not now_ms:
            return {}, {}
        if state.state == STABLE:
            self._returned = {}
        lives = {}
        for name, target in state.target.items():
            life = self._of.get(name)
            if life is None or life.incarnation != target.incarnation:
                if life is not None and life.is_over and life.has_run and life.sign and state.state != STABLE:
                    self._returned[name] = life.sign
                life = _Life(target.incarnation)
            if not life.is_over and (view := channels.get(name)) is not None:
                _observe(life, view, members.get(name), now_ms, changed_ms)
            lives[name] = life
        self._of = lives
        self._returned = {name: sign for name, sign in self._returned.items() if name in lives}
        signs = {name: life.sign for name, life in lives.items() if life.has_run}
        silences = {name: sign.silence(now_ms) for name, sign in signs.items() if sign is not None}
        return silences, {name: sign.silence(now_ms) for name, sign in self._returned.items()}

    def deciding(self, ends: tuple[End, ...]) -> None:
        """A plan with these ends is about to be written."""
        for end in ends:
            if (life := self._of.get(end.view.consumer)) is not None:
                life.is_ended = True


def _observe(life: _Life, view: ChannelView, member: Member | None, now_ms: int, changed_ms: int) -> None:
    channel = view.channel
    if channel is None:
        return
    registration = member.registration if member is not None else None
    if channel.incarnation != life.incarnation:
        at_ms, took_over_ms = member.created_ms if member is not None else view.written_ms, 0
        if registration is not None and registration.took_over_ms:  # a live channel is written so often; it may lie
            took_over_ms = max(registration.took_over_ms, at_ms - registration.max_poll_interval_ms)
        _taken_over(life, took_over_ms, at_ms)
    elif not channel.is_live and life.is_ended:
        life.is_over = True  # an eviction: nothing has been heard since
    elif not channel.is_live:
        life.has_run = life.has_run or life.sign is None
        life.sign, life.is_over = LastSign(view.written_ms, has_left=True), True
    else:
        _seen_live(life, view, member, now_ms, changed_ms)


def _taken_over(life: _Life, took_over_ms: int, at_ms: int) -> None:
    """Another incarnation has its name since `at_ms`."""
    known = life.sign
    if known is None and not took_over_ms:
        return
    written_ms = max(known.written_ms if known is not None else 0, took_over_ms)
    life.has_run = life.has_run or known is None
    life.sign = replace(known or LastSign(0), written_ms=min(written_ms, at_ms), over_ms=at_ms)
    life.is_over = True


def _seen_live(life: _Life, view: ChannelView, member: Member | None, now_ms: int, changed_ms: int) -> None:
    """Its channel is live; `member` is None, or another incarnation's, when its session has ended."""
    life.is_ended = False
    life.has_run = bool(view.running or (view.channel is not None and view.channel.ask))
    known = life.sign or LastSign(0)
    if member is not None and member.registration is not None and is_live(member, view):
        registration = member.registration
        life.sign = LastSign(
            view.written_ms,
            round((member.lease_ms or registration.lease_ms) / LEASE_SHARE),
            registration.max_poll_interval_ms,
            over_ms=now_ms,
        )
    elif member is None:
        life.sign = replace(known, written_ms=view.written_ms, over_ms=changed_ms, is_expired=True)
        life.is_over = True
