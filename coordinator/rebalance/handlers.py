"""The request handlers: threads that take groups off the request queue and run their turns.

Seed 000, D. A handler never waits for a consumer, and a group is in one handler at a time; an exception in a turn
affects its own group only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..assignors import Assignment, Assignor, Subscriber
from ..regions.turns import KEY as REGION_KEY
from ..regions.turns import Regions
from ..term.operator_requests import Asked, Requested
from ..term.request_queue import Pace, Request, RequestQueue, growing
from ..term.term import LeaseLapsed, Term
from ..zk.errors import AccessDenied, CoordinatorError, Fenced, RebalanceFailed, Retryable, SessionLost
from ..zk.runtime import Runtime, Task
from ..zk.znodes.json_fields import compact
from ..zk.znodes.partitions import TopicPartition, range_texts
from ..zk.znodes.paths import GROUPS
from ..zk.znodes.records import LONGEST_REASON, Topic
from .rebalancer import Rebalancer, Turn

log = logging.getLogger(__name__)

ACKNOWLEDGED = "acknowledged"
AGAIN = "again"
ACKNOWLEDGEMENTS_MAKE_ONE_WAVE_S = 0.010
DRAINS_MAKE_ONE_WAVE_S = 0.050
"""A group has no work until its region's checkpoint has ended, which triggers its turn."""
ASK_AGAIN_S = 0.2
LONGEST_BACKOFF_S = 30.0


LONGEST_PAUSE_S = 5.0
IDLE_TURNS = 20
"""So many turns without a change, less than `IDLE_GAP_S` apart, are taken without a pause."""
IDLE_GAP_S = 1.0
LONGEST_IDLE_PAUSE_S = 1.0
REQUESTED_TURNS = 10
"""So many turns for requests of leader or operator, less than `REQUEST_GAP_S` apart, are taken without a pause."""
REQUEST_GAP_S = LONGEST_PAUSE_S
GENERATIONS = 50
"""So many generations, less than `IDLE_GAP_S` apart, begin without a pause: a member may change its registration in a
loop."""


@dataclass(slots=True)
class GroupTurns:
    """A group between its turns. Fields used by watches and listeners too are guarded by the handlers' lock.

    :ivar rebalancer: takes the turns; None before the first.
    :ivar quiet_until: changes before this time share one turn.
    :ivar failures: consecutive failed turns.  :ivar failing_since: time of the first of them.
    :ivar outstanding: consumers with a command to acknowledge.
    :ivar heard: consumers that have acknowledged one since the last turn began.
    :ivar not_before: the next turn is not taken before this time, however often it is requested.
    :ivar refused: consecutive turns that ZooKeeper refused.  :ivar idle: consecutive turns without a change.
    :ivar requested: consecutive turns for requests.  :ivar generations: consecutive turns that began a generation.
    :ivar taken_at: when the last turn ended.
    :ivar changed_at: when the first change since the last turn began was seen; None without one.
    """

    rebalancer: Rebalancer | None = None
    quiet_until: float = 0.0
    failures: int = 0
    failing_since: float = 0.0
    outstanding: set[str] = field(default_factory=set)
    heard: set[str] = field(default_factory=set)
    not_before: float = 0.0
    refused: int = 0
    idle: int = 0
    requested: Pace = field(default_factory=lambda: Pace(REQUESTED_TURNS, REQUEST_GAP_S, LONGEST_PAUSE_S))
    generations: Pace = field(default_factory=lambda: Pace(GENERATIONS, IDLE_GAP_S, LONGEST_IDLE_PAUSE_S))
    taken_at: float = float("-inf")
    changed_at: float | None = None

    def pace(self, turn: Turn, now: float, is_requested: bool = False) -> bool:
        """Put off the next turn after one that was refused, after many that changed nothing, and after many in a row
        for which a leader or an operator (`is_requested`) has asked, or that began a generation: a growing pause.

        :returns: whether the log shall have it.
        """
        is_soon = now - max(self.taken_at, self.not_before) < IDLE_GAP_S
        self.refused = self.refused + 1 if turn.is_refused else 0
        self.idle = self.idle + 1 if turn.is_idle and is_soon else 0
        self.taken_at = now
        until = now + (growing(self.refused, LONGEST_PAUSE_S) if self.refused else 0.0)
        if self.idle > IDLE_TURNS:
            until = max(until, now + growing(self.idle - IDLE_TURNS, LONGEST_IDLE_PAUSE_S))
        is_news = False
        if turn.is_requested or is_requested:
            is_news = self.requested.taken(now)
            until = max(until, self.requested.until)
        if turn.is_new_generation:
            is_news |= self.generations.taken(now)
            until = max(until, self.generations.until)
        self.not_before = until
        return is_news


# Large: one term's queue, threads and back-off, which change together.
class Handlers:
    """The request queue and its handlers, for one term.

    Errors are logged as text: a logged exception would keep the frames of the turn alive, with all of the group.

    :param on_over: called when the term cannot continue.
    :param asked: the paused groups, and the requested turns.
    """

    def __init__(
        self, term: Term, assignors: Mapping[str, Assignor], on_over: Callable[[str], None], asked: Asked
    ) -> None:
        self._term = term
        self._runtime = term.runtime
        self._assignors = assignors
        self._on_over = on_over
        self._asked = asked
        self.regions = Regions(term, lambda group: asked.pause_of(group) is not None)
        self._lock = term.runtime.lock()
        self._groups: dict[str, GroupTurns] = {}
        self._topics: Callable[[], Mapping[str, Topic]] = dict
        self._assigns: Callable[[str, Iterable[str]], None] = lambda group, topics: None
        self._has_no_member: Callable[[str], bool] = lambda group: False
        self.requests = RequestQueue(
            term.runtime, term.config.rebalance_handlers, lambda group: self._has_no_member(group)
        )
        self._region_pauses: dict[str, float] = {}
        """Regions whose last turn failed: the time before which no other request of them is taken."""
        self.turns = 0

    def start(
        self,
        topics: Callable[[], Mapping[str, Topic]],
        assigns: Callable[[str, Iterable[str]], None] | None = None,
        has_no_member: Callable[[str], bool] | None = None,
    ) -> list[Task]:
        """Start the handlers (seed 000, `coordinatorStartup` 6).

        :param topics: returns all topics as last read.
        :param assigns: called after a turn with the target's topics of a group that a leader assigns.
        :param has_no_member: whether a group has no member: such groups wait for each other.
        """
        self._topics = topics
        self._has_no_member = has_no_member or self._has_no_member
        self._assigns = assigns or self._assigns
        handlers = self._term.config.rebalance_handlers
        return [self._runtime.spawn(self._handle, f"handler-{n}") for n in range(handlers)]

    def ask(self, group: str, reason: str) -> None:
        """A change requests a turn: at once, or together with others soon after the last one."""
        with self._lock:
            kept, delay_s = self._groups.get(group), 0.0
            if kept is not None:
                now = self._runtime.monotonic()
                delay_s = kept.quiet_until - now
                kept.changed_at = now if kept.changed_at is None else kept.changed_at
        self.requests.request(group, reason, max(0.0, delay_s))

    def on_acknowledge(self, path: str) -> None:
        """The watch on a channel: `path` is `.../groups/[group]/channel/[consumer]`."""
        group, _, consumer = path[len(GROUPS) + 1 :].replace("/channel/", "/", 1).partition("/")
        with self._lock:
            kept = self._kept(group)
            kept.heard.add(consumer)
            was_last = kept.outstanding == {consumer}
            kept.outstanding.discard(consumer)
        if self.regions.acknowledged(group, consumer, self.requests):
            delay_s = DRAINS_MAKE_ONE_WAVE_S
        else:  # The last acknowledgement of a wave triggers the turn at once.
            delay_s = 0.0 if was_last else ACKNOWLEDGEMENTS_MAKE_ONE_WAVE_S
        self.requests.request(group, ACKNOWLEDGED, delay_s)

    def forget(self, group: str) -> None:
        """The group is gone: a last turn detects that, clears its problems, and drops its state."""
        self.requests.forget(group)
        self.requests.request(group, AGAIN)

    def stop(self) -> None:
        """Stop the handlers after their current turns."""
        self.requests.close()

    def _handle(self) -> None:
        while (request := self.requests.take()) is not None:
            try:
                if request.group.startswith(REGION_KEY):
                    self._take_region_turn(request)
                else:
                    self._take_turn(request)
            finally:
                self._took(request.group, self.requests.done(request.group))

    def _took(self, group: str, seconds: float) -> None:
        """A handler was busy with `group` for so long."""
        with self._lock:
            is_kept = group in self._groups
        if is_kept:
            self._term.turn_times.took(group, seconds)
            self._term.metrics.turns_took(group, seconds)

    def _take_region_turn(self, request: Request) -> None:
        region = request.group
        pause_s = self._region_pauses.get(region, 0.0) - self._runtime.monotonic()
        if pause_s > 0:
            self._ask_again(request, pause_s)
            return
        self._region_pauses.pop(region, None)
        try:
            self.regions.take_turn(request, self.requests)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except Exception as error:
            expected = isinstance(error, CoordinatorError | LeaseLapsed)
            log.warning("region turn deferred: region=%s reason=%s", region, str(error), exc_info=not expected)
            is_brief = expected and not isinstance(error, AccessDenied | RebalanceFailed)
            if not is_brief:
                self._region_pauses[region] = self._runtime.monotonic() + LONGEST_BACKOFF_S
            self._ask_again(request, ASK_AGAIN_S if is_brief else LONGEST_BACKOFF_S)

    def _take_turn(self, request: Request) -> None:
        group = request.group
        if self._asked.pause_of(group) is not None:
            self._asked.hold(group, request.reasons)
            return
        request = Request(group, self._asked.with_held(group, request.reasons))
        requested = self._asked.requested(group)
        with self._lock:
            kept = self._kept(group)
        until = kept.not_before if requested is None else kept.requested.until  # an operator waits for no other pause
        pause_s = until - self._runtime.monotonic()
        if pause_s > 0:
            self._ask_again(request, pause_s)
            return
        changes = _changes(request)
        began = self._runtime.monotonic()
        quiet_until = began + self._term.config.rebalance_debounce_ms / 1000
        before = kept.quiet_until  # only the group's turns change it
        if changes:  # the first is handled at once; those soon after it, also during its turn, share one turn
            with self._lock:
                kept.quiet_until = quiet_until
        with self._lock:
            kept.heard = set()
            changed_at, kept.changed_at = kept.changed_at, None
        changed_s = began - changed_at if changed_at is not None else 0.0
        try:
            turn = self._rebalancer(group).take_turn(_bounded("; ".join(changes)), max(0.0, changed_s))
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except (LeaseLapsed, Retryable) as error:
            log.debug("turn deferred: group=%s reason=%s", group, str(error))
            self._term.metrics.turn_put_off(group)
            self._still_changed(kept, changed_at)
            self._ask_again(request, ASK_AGAIN_S)
        except Exception as error:  # noqa: BLE001  a group's failure must not end the handler
            self._still_changed(kept, changed_at)
            self._failed(request, kept, error)
        else:
            self.turns += 1
            self._term.metrics.turn_taken(group, self._runtime.monotonic() - began, turn.state)
            self._follow(group, kept, turn, requested is not None)
            if changes or turn.is_new_generation:
                with self._lock:
                    kept.quiet_until = quiet_until if turn.is_new_generation else before
            if requested is not None and turn.state is not None:
                self._answer(group, requested)
            self._ask_for_next(request, turn)

    def _still_changed(self, kept: GroupTurns, changed_at: float | None) -> None:
        """The next turn is for these changes, too."""
        with self._lock:
            kept.changed_at = kept.changed_at if changed_at is None else changed_at

    def _follow(self, group: str, kept: GroupTurns, turn: Turn, is_requested: bool) -> None:
        """Record the results of a successful turn."""
        state = turn.state
        kept.failures = 0
        if kept.pace(turn, self._runtime.monotonic(), is_requested):
            log.warning(
                "turns paced: group=%s requests=%d generations=%d", group, kept.requested.count, kept.generations.count
            )
        if state is not None:
            self._assigns(group, state.topics if state.client is not None else ())
        with self._lock:
            heard = frozenset(kept.heard)
            kept.outstanding = set(turn.outstanding - heard)
        if turn.region is not None and state is not None:
            self.regions.after_turn(group, turn.region, state, turn.draining - heard, self.requests)

    def _ask_for_next(self, request: Request, turn: Turn) -> None:
        group, state = request.group, turn.state
        if turn.again_s is not None and state is not None and state.is_forming:
            self._ask_again(request, turn.again_s)  # the request is the trigger of its generation
        elif turn.again_s is not None:
            self.requests.request(group, AGAIN, turn.again_s)
        elif state is None:
            self._keep_nothing(group)

    def _kept(self, group: str) -> GroupTurns:
        """The kept state of a group. Called with the lock."""
        return self._groups.setdefault(group, GroupTurns())

    def _keep_nothing(self, group: str) -> None:
        """The group does not exist (yet). Called in its turn, so that no other thread uses the dropped state."""
        with self._lock:
            self._groups.pop(group, None)
        self.regions.forget(group)
        self._term.metrics.group_gone(group)

    def _answer(self, group: str, requested: Requested) -> None:
        """A turn that began after it was `requested` has succeeded."""
        try:
            if self._asked.answer(group, requested):
                # Removed by its version alone: with it went one that was made anew since it was read.
                self.requests.request(group, AGAIN)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except (LeaseLapsed, Retryable) as error:
            log.info("requested turn deferred: group=%s reason=%s", group, str(error))
            self.requests.request(group, requested.trigger, ASK_AGAIN_S)
        except Exception as error:  # noqa: BLE001  it is kept, and the next turn retries
            log.error("requested turn failed: group=%s reason=%s", group, str(error))

    def _rebalancer(self, group: str) -> Rebalancer:
        with self._lock:
            kept = self._kept(group)
            if kept.rebalancer is None:
                assignors = self._assignors
                if self._term.config.history_dir:
                    assignors = {n: RecordingAssignor(each, self._runtime, group) for n, each in assignors.items()}
                topics = lambda: self._topics()  # noqa: E731  handlers may be made before they are started
                kept.rebalancer = Rebalancer(
                    self._term, group, topics, assignors, self.on_acknowledge, self.regions.bound
                )
            return kept.rebalancer

    def _ask_again(self, request: Request, delay_s: float) -> None:
        for reason in request.reasons:
            self.requests.request(request.group, reason, delay_s)

    def _failed(self, request: Request, kept: GroupTurns, error: Exception) -> None:
        """Seed 000's ConsumerRebalanceFailedException, except that the handler continues and retries."""
        now, most = self._runtime.monotonic(), self._term.config.max_rebalance_retries
        kept.failing_since = now if kept.failures == 0 else kept.failing_since
        kept.failures += 1
        backoff_s = min(LONGEST_BACKOFF_S, 0.5 * 2 ** min(kept.failures, 10))
        is_an_assignors = isinstance(error, RebalanceFailed) and error.__cause__ is not None
        expected = isinstance(error, CoordinatorError) and not is_an_assignors
        log.error(
            "turn failed: group=%s failures=%d next_try_s=%.1f reason=%s",
            request.group, kept.failures, backoff_s, str(error), exc_info=not expected,
        )  # fmt: skip
        self._term.metrics.turn_failed(request.group)
        if kept.failures == most + 1:
            trigger = "; ".join(_changes(request))
            self._term.metrics.rebalance_failed(request.group, trigger, now - kept.failing_since)
        if kept.failures > most:
            reason = _bounded(str(error)) or type(error).__name__
            self._write_failure(request.group, reason)
            self.regions.failed(request.group, reason, self.requests)
        self._ask_again(request, backoff_s)

    def _write_failure(self, group: str, reason: str) -> None:
        try:
            self._rebalancer(group).fail(reason)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except Exception as error:  # noqa: BLE001  written at the next failure
            log.error("failure write failed, retrying: group=%s reason=%s", group, str(error))


def _changes(request: Request) -> list[str]:
    return [reason for reason in request.reasons if reason not in (ACKNOWLEDGED, AGAIN)]


def _bounded(text: str) -> str:
    """A reason as long as a field in ZooKeeper may be: sixty topics may be created at once."""
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"


class RecordingAssignor(Assignor):
    """Records the input and output of one group's assignor in the history."""

    def __init__(self, assignor: Assignor, runtime: Runtime, group: str) -> None:
        self._assignor = assignor
        self._group = group
        self._runtime = runtime
        self.name = assignor.name
        self.is_eager = assignor.is_eager

    def assign(self, subscribers: Sequence[Subscriber], topics: Mapping[str, Sequence[int]]) -> Assignment:
        found = self._assignor.assign(subscribers, topics)
        members = {one.consumer: _input_of(one) for one in sorted(subscribers, key=lambda one: one.consumer)}
        partitions = {name: list(numbers) for name, numbers in sorted(topics.items())}
        self._runtime.record(
            "assignment",
            group=self._group,
            strategy=self.name,
            input=compact({"members": members, "topics": partitions}).decode(),
            target={
                consumer: {thread: range_texts(parts) for thread, parts in sorted(threads.items())}
                for consumer, threads in sorted(found.items())
            },
        )
        return found


def _input_of(one: Subscriber) -> list[Any]:
    """The complete input of an assignor."""
    before: dict[str, list[TopicPartition]] = {}
    for part, thread in one.on_thread.items():
        before.setdefault(thread, []).append(part)
    was = {thread: range_texts(parts) for thread, parts in sorted(before.items())}
    threads = sorted(one.threads.items())
    return [threads, range_texts(one.running), one.generation, one.user_data, one.instance_id, was]
