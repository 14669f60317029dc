"""Drills on the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from coordinator.admin.control import await_turn, request_turn
from coordinator.zk.runtime import ThreadRuntime

from ..base.processes import NotReached, wait_for
from ..faults.proxy import MULTI, Loss, op_code
from ..testbed.commands import slot
from ..testbed.testbed import Stage
from .definition import FETCHING_UNINTERRUPTED, NEXT_ACTS, NEXT_ACTS_AT_ONCE, OWNERS_UNCHANGED, PAST_THE_SESSION, Drill

LOST_S = 15.0
"""Time for a started fetcher to register, and for the commit."""

TURNS = 3
TURN_S = 10.0

NO_STANDSTILL = "no partition stands still, and every record comes once"


def elected_of(stage: Stage) -> str:
    """The node that is the coordinator."""
    return wait_for(lambda: stage.elected(), 10.0, "a coordinator is elected").node


def another_is_elected(stage: Stage, than: str) -> str:
    """Wait until another node is elected."""

    def look() -> str | None:
        record = stage.elected()
        return record.node if record is not None and record.node != than else None

    return wait_for(look, 3 * stage.bounds["session_timeout"] + 10, f"another node than {than} is elected")


def past_session(away: Callable[[Stage, str, float], None]) -> Callable[[Stage, str], None]:
    """A fault that lasts until the session of its process has expired."""
    return lambda stage, name: away(stage, name, PAST_THE_SESSION * stage.bounds["session_timeout"])


def _replaced(fault: Callable[[Stage, str], None], turns: int = 0) -> Callable[[Stage], None]:
    """The fault hits the coordinator, and another node is elected.

    :param turns: requested afterwards: a deposed node that still considers itself elected would write.
    """

    def run(stage: Stage) -> None:
        victim = elected_of(stage)
        fault(stage, victim)
        another_is_elected(stage, victim)
        for _ in range(turns):
            a_turn_is_taken(stage)

    return run


def a_turn_is_taken(stage: Stage) -> None:
    """One requested turn of the group.

    :raises NotReached: when the turn is not taken in time.
    """
    runtime, group = ThreadRuntime(), stage.settings.group
    request_turn(stage.store, group, "a drill", runtime.wall_ms(), "drill")
    if not await_turn(stage.store, runtime, group, TURN_S):
        raise NotReached(f"not within {TURN_S:.0f} s: a requested turn")


def lose_commit(
    stage: Stage,
    name: str,
    what: str,
    words: Sequence[bytes],
    is_before: bool,
    cause: Callable[[], object] = lambda: None,
    is_killed: bool = True,
) -> None:
    """Lose the next commit of a process that contains all the words, or (`is_before` false) the reply to it.

    :param what: the loss in words.
    :param cause: brings the commit about.
    :param is_killed: whether the process is killed before its connection is cut, so that it sends nothing more.
    :raises NotReached: when nothing is lost in time.
    """

    def is_it(request: bytes) -> bool:
        return op_code(request) == MULTI and all(word in request for word in words)

    then = stage.processes[name].strike if is_killed else lambda: None
    loss = stage.lose(name, Loss(is_it, is_request=is_before, then=then))
    cause()
    if not loss.lost.wait(LOST_S):
        raise NotReached(f"not within {LOST_S:.0f} s: {what}")


def _one_reply_dropped(stage: Stage) -> None:
    """The reply to the commit with the stops of a rebalance, caused by a slot that leaves."""
    victim, leaver = elected_of(stage), slot(stage.settings.slots - 1)
    words, leaves = (b"/command-", b"-fetcher"), partial(stage.terminate, leaver)
    lose_commit(stage, victim, "the reply to a commit with commands is lost", words, False, leaves, is_killed=False)
    stage.fault("lose-reply", process=stage.processes[victim].who)


Steps = Sequence[tuple[str, Sequence[bytes], bool]]
"""Where a process is killed: words of its commit, and whether the commit (else its reply) is lost."""

START_STEPS: Steps = (
    ("before the starts are sent", (b"/state", b"start-fetcher"), True),
    ("after the starts are sent, reply lost", (b"/state", b"start-fetcher"), False),
)
STEPS: Steps = (
    ("before the rebalance is written", (b"/state", b"PreparingRebalance"), True),
    ("after it is written, reply lost", (b"/state", b"PreparingRebalance"), False),
    *START_STEPS,
    ("before the group becomes Stable", (b"/state", b'"Stable"'), True),
    ("after it is Stable, reply lost", (b"/state", b'"Stable"'), False),
)


def at_each_step(stage: Stage, steps: Steps = STEPS, is_killed: bool = True) -> None:
    """The coordinator is killed, or stopped, at each of the steps: a slot leaves, the same slot joins, and so on."""
    last = stage.settings.slots - 1
    for number, (where, words, is_before) in enumerate(steps):
        cause = partial(stage.start_slot, last) if number % 2 else partial(stage.terminate, slot(last))
        victim = elected_of(stage)
        lose_commit(stage, victim, f"a commit {where}", words, is_before, cause, is_killed)
        if is_killed:
            stage.kill(victim)
        else:
            stage.terminate(victim)
        another_is_elected(stage, victim)
        stage.wait_settled(stage.slots())
        stage.start_node(victim)


def _rolled(stage: Stage) -> None:
    """A rolling restart of the nodes, the coordinator last."""
    elected = elected_of(stage)
    nodes = sorted(name for name in stage.processes if name.startswith("node-"))
    for name in [*(name for name in nodes if name != elected), elected]:
        stage.terminate(name)
        stage.start_node(name)
        elected_of(stage)
        stage.wait_settled(stage.slots())


COORDINATORS = (
    Drill(
        name="coordinator-sigkill",
        title="Kill the coordinator (SIGKILL)",
        proves="A failed coordinator is replaced in time, and fetching continues.",
        hypothesis=f"The next node acts within the session timeout + 2 ticks + 0.5 s; {NO_STANDSTILL}.",
        fault="SIGKILL to the coordinator",
        run=_replaced(Stage.kill),
        promises=(NEXT_ACTS, FETCHING_UNINTERRUPTED, OWNERS_UNCHANGED),
    ),
    Drill(
        name="coordinator-sigterm",
        title="Stop the coordinator (SIGTERM)",
        proves="A coordinator that is stopped resigns, so the next one need not wait for its session to expire.",
        hypothesis=f"The next node acts within 0.5 s; {NO_STANDSTILL}.",
        fault="SIGTERM to the coordinator",
        run=_replaced(Stage.terminate),
        promises=(NEXT_ACTS_AT_ONCE, FETCHING_UNINTERRUPTED, OWNERS_UNCHANGED),
    ),
    Drill(
        name="coordinator-pause",
        title="Pause the coordinator past its session, and resume it",
        proves="A deposed coordinator that resumes writes nothing.",
        hypothesis=f"The next node acts in time, and the old one is fenced when it resumes, also during requested "
        f"turns; {NO_STANDSTILL}.",
        fault="SIGSTOP to the coordinator, and SIGCONT after 1.6 session timeouts",
        run=_replaced(past_session(Stage.pause), TURNS),
        promises=(NEXT_ACTS, FETCHING_UNINTERRUPTED, OWNERS_UNCHANGED),
    ),
    Drill(
        name="coordinator-cut",
        title="Cut the coordinator off from ZooKeeper",
        proves="A coordinator that is cut off from ZooKeeper stops acting before another one starts.",
        hypothesis=f"The next node acts in time, two never act at once; {NO_STANDSTILL}.",
        fault="no packet between the coordinator and ZooKeeper for 1.6 session timeouts",
        run=_replaced(past_session(Stage.cut), TURNS),
        promises=(NEXT_ACTS, FETCHING_UNINTERRUPTED, OWNERS_UNCHANGED),
    ),
    Drill(
        name="coordinator-reply-lost",
        title="Lose one reply to the coordinator",
        proves="A commit whose reply is lost is verified, and neither repeated nor skipped.",
        hypothesis="The rebalance completes; every record comes once.",
        fault="the reply to a commit that sends commands is dropped, and its connection cut",
        run=_one_reply_dropped,
    ),
    Drill(
        name="coordinator-sigkill-each-step",
        title="Kill the coordinator at each step of a rebalance",
        proves="The next coordinator completes an unfinished rebalance.",
        hypothesis="The group is Stable again each time; no partition has two fetchers; every record comes once.",
        fault="SIGKILL to the coordinator, just before and just after each commit of a rebalance",
        run=at_each_step,
        is_short=False,
    ),
    Drill(
        name="coordinator-sigterm-each-step",
        title="Stop the coordinator at each step of a rebalance",
        proves="The next coordinator completes a rebalance that was unfinished at a resignation.",
        hypothesis="The group is Stable again each time; no partition has two fetchers; every record comes once.",
        fault="SIGTERM to the coordinator, just before and just after each commit of a rebalance",
        run=partial(at_each_step, is_killed=False),
        is_short=False,
    ),
    Drill(
        name="coordinators-rolling-restart",
        title="Rolling restart of the coordinators",
        proves="A rolling upgrade of the coordinators does not interrupt fetching.",
        hypothesis=f"No partition changes its owner; {NO_STANDSTILL}.",
        fault="SIGTERM to each node in turn, the coordinator last; each is restarted before the next is stopped",
        run=_rolled,
        promises=(FETCHING_UNINTERRUPTED, OWNERS_UNCHANGED),
        is_short=False,
    ),
)
