"""When the members of a group last fetched, at the earliest, for its history: for this term's coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..planning.membership import End
from ..planning.snapshot import ChannelView, Member
from ..planning.target import is_live
from ..zk.lease import LEASE_SHARE
from ..zk.znodes.group_state import STABLE, GroupState

LONGEST_TICK_MS = 3_000
"""Of a ZooKeeper server; its default is 2,000. A session ends up to one and a half ticks after its timeout."""


@dataclass(slots=True)
class _Life:
    """An incarnation of the target. Times are milliseconds of ZooKeeper's clock.

    :ivar fetched_ms: when it last fetched, at the earliest: the last write of its channel by its own process, or, of an
        expired session, its timeout ago. None before this coordinator has read its channel.
    :ivar session_ms: its session timeout; 0 before this coordinator has seen it live.
    :ivar has_run: whether it ran something when it was last seen live.
    :ivar is_over: whether `fetched_ms` is final.
    :ivar is_ended: whether this coordinator has decided to end it: the last write of its channel is not its own.
    """

    incarnation: str
    fetched_ms: int | None = None
    session_ms: int = 0
    has_run: bool = False
    is_over: bool = False
    is_ended: bool = False


class LastSigns:
    """When each incarnation in the target of one group last fetched, until the target is another."""

    def __init__(self) -> None:
        self._of: dict[str, _Life] = {}
        self._returned: dict[str, _Life] = {}

    def observed(
        self,
        state: GroupState,
        channels: Mapping[str, ChannelView],
        members: Mapping[str, Member],
        now_ms: int,
        changed_ms: int,
    ) -> tuple[dict[str, int], dict[str, int]]:
        """How many milliseconds ago each member of the target that has run something last fetched, at most.

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
                if life is not None and life.is_over and state.state != STABLE:
                    self._returned[name] = life
                life = _Life(target.incarnation)
            if not life.is_over and (view := channels.get(name)) is not None:
                _observe(life, view, members.get(name), changed_ms)
            lives[name] = life
        self._of = lives
        self._returned = {name: life for name, life in self._returned.items() if name in lives}
        return _silences(lives, now_ms), _silences(self._returned, now_ms)

    def deciding(self, ends: tuple[End, ...]) -> None:
        """A plan with these ends is about to be written."""
        for end in ends:
            if (life := self._of.get(end.view.consumer)) is not None:
                life.is_ended = True


def _silences(lives: Mapping[str, _Life], now_ms: int) -> dict[str, int]:
    return {
        name: max(0, now_ms - life.fetched_ms)
        for name, life in lives.items()
        if life.has_run and life.fetched_ms is not None
    }


def _observe(life: _Life, view: ChannelView, member: Member | None, changed_ms: int) -> None:
    channel = view.channel
    if channel is None:
        return
    if channel.incarnation != life.incarnation:
        life.is_over = True
        registration = member.registration if member is not None else None
        if member is not None and registration is not None and registration.took_over_ms:
            known_ms = life.fetched_ms or 0
            life.has_run = life.has_run or not known_ms
            # A live channel is written once in that interval; the registration may lie.
            least_ms = max(known_ms, member.created_ms - registration.max_poll_interval_ms)
            life.fetched_ms = min(max(least_ms, registration.took_over_ms), member.created_ms)
    elif not channel.is_live and life.is_ended:
        life.is_over = True  # an eviction: nothing has been heard since
    elif not channel.is_live:
        life.has_run = life.has_run or life.fetched_ms is None
        life.fetched_ms, life.is_over = view.written_ms, True
    else:
        _seen_live(life, view, member, changed_ms)


def _seen_live(life: _Life, view: ChannelView, member: Member | None, changed_ms: int) -> None:
    """Its channel is live; `member` is None, or another incarnation's, when its session has ended."""
    life.is_ended = False
    life.has_run = bool(view.running or (view.channel is not None and view.channel.ask))
    life.fetched_ms = view.written_ms
    if member is not None and member.registration is not None and is_live(member, view):
        life.session_ms = round((member.lease_ms or member.registration.lease_ms) / LEASE_SHARE)
    elif member is None:
        life.is_over = True
        if life.session_ms:
            ticks_ms = round(1.5 * min(LONGEST_TICK_MS, life.session_ms / 2))
            life.fetched_ms = max(life.fetched_ms, changed_ms - life.session_ms - ticks_ms)
