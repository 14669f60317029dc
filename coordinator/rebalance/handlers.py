"""The request handlers: threads that take groups off the request queue and run their turns.

Sources D21. A handler never waits for a consumer, and a group is in one handler at a time; an exception in a turn
affects its own group only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..assignors import Assignor
from ..regions.turns import Regions
from ..term.directory import Directory
from ..term.operator_requests import OperatorRequests, Requested
from ..term.request_queue import ACKNOWLEDGED, AGAIN, GroupTurn, RegionTurn, Request, RequestQueue, Trigger, TurnKey
from ..term.term import LeaseLapsed, Term
from ..zk.backoff import Backoff
from ..zk.errors import AccessDenied, CoordinatorError, Fenced, RebalanceFailed, Retryable, SessionLost
from ..zk.runtime import Runtime, Task
from ..zk.znodes.paths import GROUPS
from ..zk.znodes.records import LONGEST_REASON
from .pacing import Changes, Failures, TurnPaces
from .rebalancer import Rebalancer, Turn

log = logging.getLogger(__name__)

ACKNOWLEDGEMENTS_MAKE_ONE_WAVE_S = 0.010
DRAINS_MAKE_ONE_WAVE_S = 0.050
"""A group has no work until its region's checkpoint has ended, which triggers its turn."""
RETRY_S = 0.2
FIRST_BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0


@dataclass(slots=True)
class HandledGroup:
    """A group between its turns. Fields used by watches and listeners too are guarded by the handlers' lock.

    :ivar rebalancer: takes the turns; None before the first.
    :ivar outstanding: consumers with a command to acknowledge.
    :ivar heard: consumers that have acknowledged one since the last turn began.
    """

    rebalancer: Rebalancer | None = None
    changes: Changes = field(default_factory=Changes)
    paces: TurnPaces = field(default_factory=TurnPaces)
    failures: Failures = field(default_factory=Failures)
    outstanding: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)


class _Begun(NamedTuple):
    """A turn that has begun.

    :ivar requested: the operator's request that it completes.
    :ivar quiet_until: of the group's changes before it.  :ivar changed_at: when the first of its changes was seen.
    """

    request: Request
    group: HandledGroup
    requested: Requested | None
    at: float
    quiet_until: float
    changed_at: float | None


class _RegionHandler:
    """Takes the turns of regions.

    :param on_over: called when the term cannot continue.
    """

    def __init__(
        self, runtime: Runtime, regions: Regions, requests: RequestQueue, on_over: Callable[[str], None]
    ) -> None:
        self._runtime = runtime
        self._regions = regions
        self._requests = requests
        self._on_over = on_over
        self._not_before: dict[TurnKey, float] = {}
        """Regions whose last turn failed: the time before which no other request of them is taken."""

    def take_turn(self, request: Request) -> None:
        """One turn; a failed one is put off."""
        pause_s = self._not_before.get(request.key, 0.0) - self._runtime.monotonic()
        if pause_s > 0:
            self._requests.put_back(request, pause_s)
            return
        self._not_before.pop(request.key, None)
        try:
            self._regions.take_turn(request)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except Exception as error:
            expected = isinstance(error, CoordinatorError | LeaseLapsed)
            log.warning(
                "region turn deferred: region=%s reason=%s", request.key.name, str(error), exc_info=not expected
            )
            is_brief = expected and not isinstance(error, AccessDenied | RebalanceFailed)
            if not is_brief:
                self._not_before[request.key] = self._runtime.monotonic() + LONGEST_BACKOFF_S
            self._requests.put_back(request, RETRY_S if is_brief else LONGEST_BACKOFF_S)


class Handlers:
    """The request queue and its handlers, for one term.

    Errors are logged as text: a logged exception would keep the frames of the turn alive, with all of the group.

    :param directory: the topics, and the groups without members, which wait for each other.
    :param operator_requests: the paused groups, and the requested turns.
    :param on_over: called when the term cannot continue.
    """

    def __init__(
        self,
        term: Term,
        directory: Directory,
        assignors: Mapping[str, Assignor],
        operator_requests: OperatorRequests,
        on_over: Callable[[str], None],
    ) -> None:
        self._term = term
        self._runtime = term.runtime
        self._directory = directory
        self._assignors = assignors
        self._on_over = on_over
        self._operator_requests = operator_requests
        self._debounce_s = term.config.rebalance_debounce_ms / 1000
        self._lock = term.runtime.lock()
        self._groups: dict[TurnKey, HandledGroup] = {}
        self.requests = RequestQueue(term.runtime, term.config.rebalance_handlers, directory.is_idle)
        self.regions = Regions(term, self.requests, operator_requests.is_paused)
        self._region_handler = _RegionHandler(self._runtime, self.regions, self.requests, on_over)
        self.turns = 0

    def start(self) -> list[Task]:
        """Start the handlers (sources D14)."""
        handlers = self._term.config.rebalance_handlers
        return [self._runtime.spawn(self._handle, f"handler-{n}") for n in range(handlers)]

    def request_turn(self, key: TurnKey, text: str) -> None:
        """A change requests a turn: at once, or together with others soon after the last one."""
        with self._lock:
            group = self._groups.get(key)
            delay_s = group.changes.seen(self._runtime.monotonic()) if group is not None else 0.0
        self.requests.request(key, Trigger(text), delay_s)

    def on_acknowledge(self, path: str) -> None:
        """The watch on a channel: `path` is `.../groups/[group]/channel/[consumer]`."""
        group, _, consumer = path[len(GROUPS) + 1 :].replace("/channel/", "/", 1).partition("/")
        with self._lock:
            kept = self._kept(GroupTurn(group))
            kept.heard.add(consumer)
            was_last = kept.outstanding == {consumer}
            kept.outstanding.discard(consumer)
        if self.regions.acknowledged(group, consumer):
            delay_s = DRAINS_MAKE_ONE_WAVE_S
        else:  # The last acknowledgement of a wave triggers the turn at once.
            delay_s = 0.0 if was_last else ACKNOWLEDGEMENTS_MAKE_ONE_WAVE_S
        self.requests.request(GroupTurn(group), ACKNOWLEDGED, delay_s)

    def forget(self, group: str) -> None:
        """The group is gone: its last turn clears its problems and drops its state."""
        self.requests.forget(GroupTurn(group))
        self.requests.request(GroupTurn(group), AGAIN)

    def stop(self) -> None:
        """Stop the handlers after their current turns."""
        self.requests.close()

    def _handle(self) -> None:
        while (request := self.requests.take()) is not None:
            try:
                if isinstance(request.key, RegionTurn):
                    self._region_handler.take_turn(request)
                else:
                    self._take_turn(request)
            finally:
                self._took(request.key, self.requests.done(request.key))

    def _took(self, key: TurnKey, seconds: float) -> None:
        """A handler was busy with `key` for these seconds."""
        with self._lock:
            is_kept = key in self._groups
        if is_kept:
            self._term.turn_times.took(key.name, seconds)
            self._term.metrics.turns_took(key.name, seconds)

    def _take_turn(self, request: Request) -> None:
        name = request.key.name
        if self._operator_requests.is_paused(name):
            self._operator_requests.hold(name, request.triggers)
            return
        request = Request(request.key, self._operator_requests.with_held(name, request.triggers))
        requested = self._operator_requests.requested(name)
        with self._lock:
            group = self._kept(request.key)
        early_s = group.paces.early_s(self._runtime.monotonic(), requested is not None)
        if early_s > 0:
            self.requests.put_back(request, early_s)
            return
        self._run(self._begin(request, group, requested))

    def _begin(self, request: Request, group: HandledGroup, requested: Requested | None) -> _Begun:
        """The first change is handled at once; those soon after it, also during its turn, share one turn."""
        began = self._runtime.monotonic()
        quiet_until = group.changes.quiet_until  # only the group's turns change it
        if request.changes:
            with self._lock:
                group.changes.quiet_until = began + self._debounce_s
        with self._lock:
            group.heard = set()
            changed_at = group.changes.taken()
        return _Begun(request, group, requested, began, quiet_until, changed_at)

    def _run(self, begun: _Begun) -> None:
        request, group = begun.request, begun.group
        name, changes = request.key.name, request.changes
        changed_s = begun.at - begun.changed_at if begun.changed_at is not None else 0.0
        try:
            turn = self._rebalancer(name).take_turn(_bounded("; ".join(changes)), max(0.0, changed_s))
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except (LeaseLapsed, Retryable) as error:
            log.debug("turn deferred: group=%s reason=%s", name, str(error))
            self._term.metrics.turn_put_off(name)
            self._still_changed(begun)
            self.requests.put_back(request, RETRY_S)
        except Exception as error:  # noqa: BLE001  a group's failure must not end the handler
            self._still_changed(begun)
            self._failed(request, group, error)
        else:
            self.turns += 1
            self._term.metrics.turn_taken(name, self._runtime.monotonic() - begun.at, turn.state)
            self._follow(begun, turn)
            if begun.requested is not None and turn.state is not None:
                self._answer(name, begun.requested)
            self._request_next(request, turn)

    def _still_changed(self, begun: _Begun) -> None:
        """The next turn takes the changes of this one, too."""
        with self._lock:
            begun.group.changes.untaken(begun.changed_at)

    def _follow(self, begun: _Begun, turn: Turn) -> None:
        """Record the results of a successful turn."""
        name, group, state = begun.request.key.name, begun.group, turn.state
        paces = group.paces
        group.failures = Failures()
        if paces.taken(turn, self._runtime.monotonic(), begun.requested is not None):
            log.warning(
                "turns paced: group=%s requests=%d generations=%d", name, paces.requested.count, paces.generations.count
            )
        if state is not None:
            self._directory.assigned(name, state.topics if state.client is not None else ())
        with self._lock:
            heard = frozenset(group.heard)
            group.outstanding = set(turn.outstanding - heard)
        if turn.region is not None and state is not None:
            self.regions.after_turn(name, turn.region, state, turn.draining - heard)
        if turn.is_new_generation or begun.request.changes:  # changes soon after a generation share a turn
            with self._lock:
                group.changes.quiet_until = begun.at + self._debounce_s if turn.is_new_generation else begun.quiet_until

    def _request_next(self, request: Request, turn: Turn) -> None:
        state = turn.state
        if turn.again_s is not None and state is not None and state.is_forming:
            self.requests.put_back(request, turn.again_s)  # the request is the trigger of its generation
        elif turn.again_s is not None:
            self.requests.request(request.key, AGAIN, turn.again_s)
        elif state is None:
            self._keep_nothing(request.key)

    def _kept(self, key: TurnKey) -> HandledGroup:
        """The kept state of a group. Called with the lock."""
        return self._groups.setdefault(key, HandledGroup())

    def _keep_nothing(self, key: TurnKey) -> None:
        """The group does not exist (yet). Called in its turn, so that no other thread uses the dropped state."""
        with self._lock:
            self._groups.pop(key, None)
        self.regions.forget(key.name)
        self._term.metrics.group_gone(key.name)

    def _answer(self, group: str, requested: Requested) -> None:
        """A turn that began after it was `requested` has succeeded."""
        try:
            if self._operator_requests.answer(group, requested):
                # Deleted by its version alone: a request created since the read may have been deleted, too.
                self.requests.request(GroupTurn(group), AGAIN)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except (LeaseLapsed, Retryable) as error:
            log.info("requested turn deferred: group=%s reason=%s", group, str(error))
            self.requests.request(GroupTurn(group), Trigger(requested.trigger), RETRY_S)
        except Exception as error:  # noqa: BLE001  it is kept, and the next turn retries
            log.error("requested turn failed: group=%s reason=%s", group, str(error))

    def _rebalancer(self, group: str) -> Rebalancer:
        with self._lock:
            kept = self._kept(GroupTurn(group))
            if kept.rebalancer is None:
                topics = lambda: self._directory.topics  # noqa: E731  they are replaced
                kept.rebalancer = Rebalancer(
                    self._term, group, topics, self._assignors, self.on_acknowledge, self.regions.bound
                )
            return kept.rebalancer

    def _failed(self, request: Request, group: HandledGroup, error: Exception) -> None:
        """The draft's ConsumerRebalanceFailedException (sources D21), except that the handler continues and retries."""
        now, most = self._runtime.monotonic(), self._term.config.max_rebalance_retries
        failures = group.failures
        failures.failed(now)
        backoff_s = Backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S).after(failures.count)
        is_an_assignors = isinstance(error, RebalanceFailed) and error.__cause__ is not None
        expected = isinstance(error, CoordinatorError) and not is_an_assignors
        log.error(
            "turn failed: group=%s failures=%d next_try_s=%.1f reason=%s",
            request.key.name, failures.count, backoff_s, str(error), exc_info=not expected,
        )  # fmt: skip
        self._term.metrics.turn_failed(request.key.name)
        if failures.count == most + 1:
            trigger = "; ".join(request.changes)
            self._term.metrics.rebalance_failed(request.key.name, trigger, now - failures.since)
        if failures.count > most:
            reason = _bounded(str(error)) or type(error).__name__
            self._write_failure(request.key.name, reason)
            self.regions.failed(request.key.name, reason)
        self.requests.put_back(request, backoff_s)

    def _write_failure(self, group: str, reason: str) -> None:
        try:
            self._rebalancer(group).fail(reason)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except Exception as error:  # noqa: BLE001  written at the next failure
            log.error("failure write failed, retrying: group=%s reason=%s", group, str(error))


def _bounded(text: str) -> str:
    """A reason as long as a field in ZooKeeper may be: sixty topics may be created at once."""
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
