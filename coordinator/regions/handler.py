"""The turns of all regions in one term, and the groups that are bound to each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ..planning.regional import RegionStep
from ..term.request_queue import Request, RequestQueue
from ..term.term import Term
from ..zk.errors import AccessDenied, BadData
from ..zk.store import Watch
from ..zk.znodes.group_state import STABLE, GroupState
from ..zk.znodes.paths import REGIONS, RegionPaths, is_name
from ..zk.znodes.regions import Region
from .plan import RegionRules
from .turns import RegionTurns

KEY = "region "
"""Prefix of a region's name in the request queue: a group's name has no blank."""
WANTED = "checkpoint before a generation of "
AGAIN = "again"
TURNS_MAKE_ONE_WAVE_S = 0.010


@dataclass(slots=True)
class _Group:
    """What a group's last turn has reported to its region.

    :ivar draining: members without a contribution to the open checkpoint.
    :ivar is_held: whether a generation waits for a checkpoint.
    :ivar needed: the inputs of the region's turn from the group.
    """

    draining: set[str] = field(default_factory=set)
    is_held: bool = False
    needed: object = None


class Regions:
    """Regions of one term. Handlers take their turns, listeners read the list."""

    def __init__(self, term: Term, is_paused: Callable[[str], bool]) -> None:
        config = term.config
        self._term = term
        self._store = term.store
        self._is_paused = is_paused
        self._rules = RegionRules(
            config.checkpoint_interval_ms / 1000,
            config.drain_timeout_ms / 1000,
            config.checkpoints_kept,
            config.max_consecutive_resets,
        )
        self._lock = term.runtime.lock()
        self._turns: dict[str, RegionTurns] = {}
        self._groups: dict[str, _Group] = {}
        self._bound: dict[str, str] = {}
        self._failing: dict[str, str] = {}

    # ---- turns

    def take_turn(self, request: Request, requests: RequestQueue) -> None:
        """One turn of a region, and the requests that follow from it. Raises as `RegionTurns.take_turn`."""
        name = request.group[len(KEY) :]
        wanted = next((reason for reason in request.reasons if reason.startswith(WANTED)), "")
        with self._lock:
            held = frozenset(name for name, group in self._groups.items() if group.is_held)
        again_s, groups = self._of(name).take_turn(wanted, held)
        for group in groups:
            requests.request(group, AGAIN)
        if again_s is not None:
            requests.request(request.group, AGAIN, again_s)

    def after_turn(
        self, group: str, step: RegionStep, state: GroupState, draining: Collection[str], requests: RequestQueue
    ) -> None:
        """A group has taken a turn: request the region's turn if it may have waited for that.

        A region's turn reads the states of all its groups. So it is requested only when its inputs from this group have
        changed, or an open checkpoint has all contributions. The turns of several groups share one; a sweep detects the
        rest.

        :param step: the turn's step of the region.  :param state: the group's, after it.
        :param draining: members without a contribution to the open checkpoint, which waits for them.
        """
        lives = {name: one.incarnation for name, one in state.target.items()}
        needed = step.name, state.region, state.state == STABLE, lives
        with self._lock:
            self._bound[group] = step.name
            before, self._groups[group] = self._groups.get(group), _Group(set(draining), bool(step.held_for), needed)
            is_known = before is not None and before.needed == needed
            is_news = not is_known or step.after != step.before or bool(step.after.open)
            is_news |= bool(self._failing.pop(group, ""))
            if step.after.open and self._is_draining(step.name):
                return
        if step.held_for and step.held_for >= step.after.next_sequence:
            requests.request(f"{KEY}{step.name}", f"{WANTED}{group}")
        elif is_news:
            requests.request(f"{KEY}{step.name}", AGAIN, TURNS_MAKE_ONE_WAVE_S if len(step.after.groups) > 1 else 0.0)

    def failed(self, group: str, why: str, requests: RequestQueue) -> None:
        """A group's turns fail: no checkpoint of its region begins before a successful one."""
        with self._lock:
            is_news, self._failing[group] = self._failing.get(group) != why, why
            name = self._bound.get(group, "")
        if name and is_news:
            requests.request(f"{KEY}{name}", AGAIN)

    def acknowledged(self, group: str, consumer: str, requests: RequestQueue) -> bool:
        """A member has acknowledged a command; whether that was a drain. The last one triggers the region's turn."""
        with self._lock:
            name, kept = self._bound.get(group, ""), self._groups.get(group)
            if kept is None or consumer not in kept.draining:
                return False
            kept.draining.discard(consumer)
            if self._is_draining(name):
                return True
        requests.request(f"{KEY}{name}", AGAIN)
        return True

    def _is_draining(self, region: str) -> bool:
        """Whether members of its groups have not contributed yet. Called with the lock."""
        return any(kept.draining and self._bound.get(group) == region for group, kept in self._groups.items())

    def forget(self, group: str) -> None:
        """The group is gone."""
        with self._lock:
            self._groups.pop(group, None)
            self._failing.pop(group, None)

    def _of(self, name: str) -> RegionTurns:
        with self._lock:
            if name not in self._turns:
                self._turns[name] = RegionTurns(
                    self._term, name, self._rules, self._is_paused, lambda group: self._failing.get(group, "")
                )
            return self._turns[name]

    # ---- read by listeners

    def bound(self, group: str) -> str:
        """The region that a group is bound to; empty without one."""
        with self._lock:
            return self._bound.get(group, "")

    def read(self, on_regions: Watch, on_request: Watch) -> list[str]:
        """Read the list of regions, and watch it and their requests.

        :returns: the regions.
        """
        listing = self._store.children(REGIONS, watch=on_regions)
        if listing is not None and listing.denied:
            self._term.problems.report(REGIONS, str(AccessDenied(REGIONS)))
            return sorted(self._turns)
        self._term.problems.clear(REGIONS)
        names = sorted(name for name in (listing.names if listing is not None else ()) if is_name(name))
        nodes = self._store.get_many([RegionPaths(name).root for name in names])
        bound: dict[str, str] = {}
        for name, node in zip(names, nodes, strict=True):
            try:
                if node is not None:
                    bound |= dict.fromkeys(Region.parse(RegionPaths(name).root, node.data).groups, name)
            except BadData as error:
                self._term.problems.report(RegionPaths(name).root, str(error))
        with self._lock:
            self._bound = bound
            gone = sorted(self._turns.keys() - set(names))
            for name in gone:
                del self._turns[name]
        for name in gone:
            self._term.metrics.region_gone(name)
        self.watch_requests(names, on_request)
        return names

    def watch_requests(self, regions: Sequence[str], on_request: Watch) -> list[str]:
        """Watch `request` of each region; those that have a request."""
        nodes = self._store.get_many([RegionPaths(name).request for name in regions], watch=on_request)
        return [name for name, node in zip(regions, nodes, strict=True) if node is not None]
