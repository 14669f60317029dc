"""The request handlers: threads that take groups off the request queue and give each its turn.

Seed 000, D. A handler never waits for a consumer, and no group is in two of them; whatever a turn throws concerns its
own group only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from .asked import Asked, Requested
from .assignors import Assignor
from .config import CoordinatorConfig
from .membership import GroupRules
from .metrics import CoordinatorMetrics
from .problems import Problems
from .rebalance import LeaseLapsed, Rebalancer
from .recording import RecordingAssignor
from .regions.handler import KEY as REGION_KEY
from .regions.handler import Regions
from .requests import Request, RequestQueue
from .term import Term
from .zk.errors import CoordinatorError, Fenced, RebalanceFailed, Retryable, SessionLost
from .zk.lease import Lease
from .zk.paths import GROUPS, Brokers
from .zk.records import Topic
from .zk.runtime import Runtime, Task
from .zk.store import Store

log = logging.getLogger(__name__)

ACKNOWLEDGED = "acknowledged"
AGAIN = "again"
ACKNOWLEDGEMENTS_MAKE_ONE_WAVE_S = 0.010
DRAINS_MAKE_ONE_WAVE_S = 0.050
"""A group has nothing to do before its region's checkpoint has ended, which brings its turn."""
ASK_AGAIN_S = 0.2
LONGEST_REASON = 1000
"""Characters of a reason that goes into ZooKeeper, where a field has a limit: sixty topics may have come at once."""
LONGEST_BACKOFF_S = 30.0


class Handlers:
    """The request queue and its handlers, for one term.

    :param on_over: called when the term cannot go on.
    :param asked: which groups are paused, and which turns operators have requested.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        store: Store,
        runtime: Runtime,
        term: Term,
        lease: Lease,
        assignors: Mapping[str, Assignor],
        problems: Problems,
        on_over: Callable[[str], None],
        asked: Asked,
        metrics: CoordinatorMetrics | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._runtime = runtime
        self._term = term
        self._lease = lease
        self._assignors = assignors
        self._rules = GroupRules(
            config.group_initial_rebalance_delay_ms / 1000, config.group_max_size, config.assignment_timeout_ms / 1000
        )
        self._problems = problems
        self._on_over = on_over
        self._asked = asked
        self._metrics = metrics or CoordinatorMetrics()
        self.regions = Regions(
            config,
            store,
            runtime,
            term,
            lease,
            problems,
            lambda group: asked.pause_of(group) is not None,
            self._metrics,
        )
        self._lock = runtime.lock()
        self._rebalancers: dict[str, Rebalancer] = {}
        self._quiet_until: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._outstanding: dict[str, set[str]] = {}
        self._heard: dict[str, set[str]] = {}
        self._failing_since: dict[str, float] = {}
        self._topics: Callable[[], Mapping[str, Topic]] = dict
        self._assigns: Callable[[str, Iterable[str]], None] = lambda group, topics: None
        self.requests = RequestQueue(runtime)
        self.turns = 0

    def start(
        self, topics: Callable[[], Mapping[str, Topic]], assigns: Callable[[str, Iterable[str]], None] | None = None
    ) -> list[Task]:
        """Start the handlers (seed 000, `coordinatorStartup` 6).

        :param topics: gives every topic as last read.
        :param assigns: is told after a turn which topics are in the target of a group that a leader assigns.
        """
        self._topics = topics
        self._assigns = assigns or self._assigns
        return [self._runtime.spawn(self._handle, f"handler-{n}") for n in range(self._config.rebalance_handlers)]

    def ask(self, group: str, reason: str) -> None:
        """A change asks for a turn: at once, or with others that follow soon after the last one."""
        with self._lock:
            delay_s = self._quiet_until.get(group, 0.0) - self._runtime.monotonic()
        self.requests.request(group, reason, max(0.0, delay_s))

    def on_acknowledge(self, path: str) -> None:
        """The watch on a channel: `path` is `.../groups/[group]/channel/[consumer]`."""
        group, _, consumer = path[len(GROUPS) + 1 :].replace("/channel/", "/", 1).partition("/")
        with self._lock:
            self._heard.setdefault(group, set()).add(consumer)
            outstanding = self._outstanding.get(group, set())
            was_last = outstanding == {consumer}
            outstanding.discard(consumer)
        if self.regions.acknowledged(group, consumer, self.requests):
            delay_s = DRAINS_MAKE_ONE_WAVE_S
        else:  # The last one of a wave waits for nobody.
            delay_s = 0.0 if was_last else ACKNOWLEDGEMENTS_MAKE_ONE_WAVE_S
        self.requests.request(group, ACKNOWLEDGED, delay_s)

    def forget(self, group: str) -> None:
        """The group is gone: a last turn sees that, clears what was reported of it, and keeps nothing."""
        self.requests.forget(group)
        self.requests.request(group, AGAIN)

    def stop(self) -> None:
        """Let the handlers end after the turns that they are in."""
        self.requests.close()

    def _handle(self) -> None:
        while (request := self.requests.take()) is not None:
            try:
                if request.group.startswith(REGION_KEY):
                    self._take_region_turn(request)
                else:
                    self._take_turn(request)
            finally:
                self.requests.done(request.group)

    def _take_region_turn(self, request: Request) -> None:
        try:
            self.regions.take_turn(request, self.requests)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except Exception as error:
            expected = isinstance(error, CoordinatorError | LeaseLapsed)
            log.warning(
                "region turn deferred: region=%s reason=%s", request.group, _words(error), exc_info=not expected
            )
            self._ask_again(request, ASK_AGAIN_S if expected else LONGEST_BACKOFF_S)

    def _take_turn(self, request: Request) -> None:
        group = request.group
        if self._asked.pause_of(group) is not None:
            self._asked.hold(group, request.reasons)
            return
        request = Request(group, self._asked.with_held(group, request.reasons))
        requested = self._asked.requested(group)
        changes = _changes(request)
        began = self._runtime.monotonic()
        quiet_until = began + self._config.rebalance_debounce_ms / 1000
        before = self._be_quiet(group, quiet_until) if changes else None
        with self._lock:
            self._heard[group] = set()
        try:
            turn = self._rebalancer(group).take_turn(_bounded("; ".join(changes)))
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except (LeaseLapsed, Retryable) as error:
            log.info("turn put off: group=%s reason=%s", group, _words(error))
            self._metrics.turn_put_off(group)
            self._ask_again(request, ASK_AGAIN_S)
        except Exception as error:  # noqa: BLE001  one group's trouble must not end the handler, whatever it is
            self._failed(request, error)
        else:
            self.turns += 1
            self._metrics.turn_taken(group, self._runtime.monotonic() - began, turn.state)
            self._failures.pop(group, None)
            if turn.state is not None:
                self._assigns(group, turn.state.topics if turn.state.client is not None else ())
            with self._lock:
                heard = frozenset(self._heard[group])
                self._outstanding[group] = set(turn.outstanding - heard)
            self.regions.after_turn(group, turn, turn.draining - heard, self.requests)
            self._failing_since.pop(group, None)
            if turn.is_new_generation:
                self._be_quiet(group, quiet_until)
            elif before is not None:
                self._be_quiet(group, before)
            if requested is not None and turn.state is not None:
                self._answer(group, requested)
            if turn.again_s is not None and turn.state is not None and turn.state.is_forming:
                self._ask_again(request, turn.again_s)  # what asked is the trigger of the generation that it will make
            elif turn.again_s is not None:
                self.requests.request(group, AGAIN, turn.again_s)
            elif turn.state is None:
                self._keep_nothing(group)

    def _be_quiet(self, group: str, until: float) -> float:
        """A first change is acted upon at once; those that follow soon, already during its turn, make one together.

        Where its turn changed nothing, what held before it holds again.

        :returns: until when the group was quiet before.
        """
        with self._lock:
            before = self._quiet_until.get(group, 0.0)
            self._quiet_until[group] = until
            return before

    def _keep_nothing(self, group: str) -> None:
        """There is no group, or not yet. Called in its turn, so that nobody is using what is dropped."""
        with self._lock:
            for kept in (
                self._rebalancers,
                self._quiet_until,
                self._failures,
                self._failing_since,
                self._outstanding,
                self._heard,
            ):
                kept.pop(group, None)
        self.regions.forget(group)
        self._metrics.group_gone(group)

    def _answer(self, group: str, requested: Requested) -> None:
        """A turn that began after it was `requested` has succeeded."""
        try:
            if not self._lease.is_held:
                raise LeaseLapsed(f"group {group}: the lease has lapsed")
            self._asked.answer(group, requested)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except (LeaseLapsed, Retryable) as error:
            log.info("request not answered yet: group=%s reason=%s", group, _words(error))
            self.requests.request(group, requested.trigger, ASK_AGAIN_S)
        except Exception as error:  # noqa: BLE001  it stands, and the next turn tries again
            log.error("request not answered: group=%s reason=%s", group, _words(error))

    def _rebalancer(self, group: str) -> Rebalancer:
        with self._lock:
            if group not in self._rebalancers:
                self._rebalancers[group] = Rebalancer(
                    self._store,
                    self._runtime,
                    self._term,
                    self._lease,
                    group,
                    lambda: self._topics(),
                    self._assignors_of(group),
                    self._rules,
                    self.on_acknowledge,
                    self._problems,
                    self._metrics,
                    Brokers(self._config.brokers_path),
                    self.regions.bound,
                )
            return self._rebalancers[group]

    def _assignors_of(self, group: str) -> Mapping[str, Assignor]:
        if not self._config.history_dir:
            return self._assignors
        return {name: RecordingAssignor(each, self._runtime, group) for name, each in self._assignors.items()}

    def _ask_again(self, request: Request, delay_s: float) -> None:
        for reason in request.reasons:
            self.requests.request(request.group, reason, delay_s)

    def _failed(self, request: Request, error: Exception) -> None:
        """Seed 000's ConsumerRebalanceFailedException, except that the handler lives on and tries again."""
        failures = self._failures[request.group] = self._failures.get(request.group, 0) + 1
        backoff_s = min(LONGEST_BACKOFF_S, 0.5 * 2 ** min(failures, 10))
        is_an_assignors = isinstance(error, RebalanceFailed) and error.__cause__ is not None
        expected = isinstance(error, CoordinatorError) and not is_an_assignors
        log.error(
            "turn failed: group=%s failures=%d next_try_s=%.1f reason=%s",
            request.group, failures, backoff_s, _words(error), exc_info=not expected,
        )  # fmt: skip
        self._metrics.turn_failed(request.group)
        since = self._failing_since.setdefault(request.group, self._runtime.monotonic())
        if failures == self._config.max_rebalance_retries + 1:
            seconds = self._runtime.monotonic() - since
            self._metrics.rebalance_failed(request.group, "; ".join(_changes(request)), seconds)
        if failures > self._config.max_rebalance_retries:
            self._write_failure(request.group, _bounded(str(error)) or type(error).__name__)
        self._ask_again(request, backoff_s)

    def _write_failure(self, group: str, reason: str) -> None:
        try:
            self._rebalancer(group).fail(reason)
        except (Fenced, SessionLost) as error:
            self._on_over(str(error))
        except Exception as error:  # noqa: BLE001  what could not be said now is said at the next failure
            log.error("failure not written: group=%s reason=%s", group, _words(error))


def _changes(request: Request) -> list[str]:
    return [reason for reason in request.reasons if reason not in (ACKNOWLEDGED, AGAIN)]


def _words(error: Exception) -> str:
    """For the log: whoever keeps its records would keep with the error the frames of the turn, and all of the group."""
    return str(error)


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"
