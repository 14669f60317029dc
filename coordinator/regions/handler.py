"""The turns of all regions for one term, and what listeners know of them: which group is bound to which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ..config import CoordinatorConfig
from ..metrics import CoordinatorMetrics
from ..problems import Problems
from ..rebalance import Turn
from ..requests import Request, RequestQueue
from ..term import Term
from ..zk.errors import BadData
from ..zk.lease import Lease
from ..zk.names import is_name
from ..zk.paths import REGIONS, RegionPaths
from ..zk.regions import Region
from ..zk.runtime import Runtime
from ..zk.state import STABLE
from ..zk.store import Store, Watch
from .plan import RegionRules
from .turns import RegionTurns

KEY = "region "
"""Before a region's name in the request queue: no group has a blank in its name."""
WANTED = "checkpoint before a generation of "
AGAIN = "again"
TURNS_MAKE_ONE_WAVE_S = 0.010


class Regions:
    """Regions of one term. Handlers take their turns, listeners read which there are."""

    def __init__(
        self,
        config: CoordinatorConfig,
        store: Store,
        runtime: Runtime,
        term: Term,
        lease: Lease,
        problems: Problems,
        is_paused: Callable[[str], bool],
        metrics: CoordinatorMetrics,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._term = term
        self._lease = lease
        self._problems = problems
        self._is_paused = is_paused
        self._metrics = metrics
        self._rules = RegionRules(
            config.checkpoint_interval_ms / 1000,
            config.drain_timeout_ms / 1000,
            config.checkpoints_kept,
            config.max_consecutive_resets,
        )
        self._lock = runtime.lock()
        self._turns: dict[str, RegionTurns] = {}
        self._bound: dict[str, str] = {}
        self._draining: dict[str, set[str]] = {}
        self._held: set[str] = set()
        self._needed: dict[str, object] = {}

    # ---- turns

    def take_turn(self, request: Request, requests: RequestQueue) -> None:
        """One turn of a region, and what follows from it. Raises as `RegionTurns.take_turn`."""
        name = request.group[len(KEY) :]
        wanted = next((reason for reason in request.reasons if reason.startswith(WANTED)), "")
        with self._lock:
            held = frozenset(self._held)
        again_s, groups = self._of(name).take_turn(wanted, held)
        for group in groups:
            requests.request(group, AGAIN)
        if again_s is not None:
            requests.request(request.group, AGAIN, again_s)

    def after_turn(self, group: str, turn: Turn, draining: Collection[str], requests: RequestQueue) -> None:
        """A group has taken a turn: its region sees whether that was what it waited for, where it may have been.

        A region's turn reads the states of all its groups. So it is asked for only when what it needs of this one has
        changed, or a checkpoint is open to which all have contributed. The turns of several groups make one; a sweep
        sees everything else.

        :param draining: members that have not contributed to the checkpoint that is open, which waits for them.
        """
        step, state = turn.region, turn.state
        if step is None or state is None:
            return
        lives = {name: one.incarnation for name, one in state.target.items()}
        needed = step.name, state.region, state.state == STABLE, lives
        with self._lock:
            self._bound[group] = step.name
            self._draining[group] = set(draining)
            (self._held.add if step.held_for else self._held.discard)(group)
            is_news = self._needed.get(group) != needed or step.after != step.before or bool(step.after.open)
            self._needed[group] = needed
            if step.after.open and self._is_draining(step.name):
                return
        if step.held_for and step.held_for >= step.after.next_sequence:
            requests.request(f"{KEY}{step.name}", f"{WANTED}{group}")
        elif is_news:
            requests.request(f"{KEY}{step.name}", AGAIN, TURNS_MAKE_ONE_WAVE_S if len(step.after.groups) > 1 else 0.0)

    def acknowledged(self, group: str, consumer: str, requests: RequestQueue) -> bool:
        """A member has acknowledged a command; whether that was a drain. After the last one the region takes a turn."""
        with self._lock:
            draining, name = self._draining.get(group, set()), self._bound.get(group, "")
            if consumer not in draining:
                return False
            draining.discard(consumer)
            if self._is_draining(name):
                return True
        requests.request(f"{KEY}{name}", AGAIN)
        return True

    def _is_draining(self, region: str) -> bool:
        """Whether members of any of its groups have not contributed yet. Called with the lock."""
        return any(some and self._bound.get(group) == region for group, some in self._draining.items())

    def forget(self, group: str) -> None:
        """The group is gone."""
        with self._lock:
            self._draining.pop(group, None)
            self._needed.pop(group, None)
            self._held.discard(group)

    def _of(self, name: str) -> RegionTurns:
        with self._lock:
            if name not in self._turns:
                self._turns[name] = RegionTurns(
                    self._store,
                    self._runtime,
                    self._term,
                    self._lease,
                    name,
                    self._rules,
                    self._problems,
                    self._is_paused,
                    self._metrics,
                )
            return self._turns[name]

    # ---- what listeners read

    def bound(self, group: str) -> str:
        """The region that a group is bound to; empty without one."""
        with self._lock:
            return self._bound.get(group, "")

    def read(self, on_regions: Watch, on_request: Watch) -> list[str]:
        """Read which regions there are and watch what asks for their turns.

        :returns: the regions.
        """
        listing = self._store.children(REGIONS, watch=on_regions)
        names = sorted(name for name in (listing.names if listing is not None else ()) if is_name(name))
        nodes = self._store.get_many([RegionPaths(name).root for name in names])
        bound: dict[str, str] = {}
        for name, node in zip(names, nodes, strict=True):
            try:
                if node is not None:
                    bound |= dict.fromkeys(Region.parse(RegionPaths(name).root, node.data).groups, name)
            except BadData as error:
                self._problems.report(RegionPaths(name).root, str(error))
        with self._lock:
            self._bound = bound
            gone = sorted(self._turns.keys() - set(names))
            for name in gone:
                del self._turns[name]
        for name in gone:
            self._metrics.region_gone(name)
        self.watch_requests(names, on_request)
        return names

    def watch_requests(self, regions: Sequence[str], on_request: Watch) -> list[str]:
        """Watch `request` of each region; those for which one stands."""
        nodes = self._store.get_many([RegionPaths(name).request for name in regions], watch=on_request)
        return [name for name, node in zip(regions, nodes, strict=True) if node is not None]
