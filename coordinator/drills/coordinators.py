"""Drills that hit the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..operate import await_turn, request_turn
from ..zk.runtime import ThreadRuntime
from .drill import Drill
from .promises import NEXT_ACTS, NEXT_ACTS_AT_ONCE, NOBODY_MOVES, NOTHING_STANDS_STILL, PAST_THE_SESSION
from .proxy import Loss
from .sight import slot
from .stage import Stage
from .waiting import NotReached, wait_for
from .wire import MULTI, op_code

LOST_S = 10.0
TURNS = 3
TURN_S = 10.0

FETCHING_GOES_ON = "every partition is fetched all the time, and every record comes once"


def elected_of(stage: Stage) -> str:
    """The process that coordinates."""
    return wait_for(lambda: stage.elected(), 10.0, "a coordinator is elected").node


def another_is_elected(stage: Stage, than: str) -> str:
    """Wait for it."""

    def look() -> str | None:
        record = stage.elected()
        return record.node if record is not None and record.node != than else None

    return wait_for(look, 3 * stage.bounds["session_timeout"] + 10, f"another node than {than} is elected")


def _past_session_s(stage: Stage) -> float:
    return PAST_THE_SESSION * stage.bounds["session_timeout"]


def _killed(stage: Stage) -> set[str]:
    victim = elected_of(stage)
    stage.kill(victim)
    another_is_elected(stage, victim)
    return stage.slots()


def _terminated(stage: Stage) -> set[str]:
    victim = elected_of(stage)
    stage.terminate(victim)
    another_is_elected(stage, victim)
    return stage.slots()


def _paused(stage: Stage) -> set[str]:
    victim = elected_of(stage)
    stage.pause(victim, _past_session_s(stage))
    return _coordinated_by_another(stage, victim)


def _cut(stage: Stage) -> set[str]:
    victim = elected_of(stage)
    stage.cut(victim, _past_session_s(stage))
    return _coordinated_by_another(stage, victim)


def _coordinated_by_another(stage: Stage, deposed: str) -> set[str]:
    """Turns that an operator asks for, now that the deposed one is back: whoever takes itself for elected writes."""
    another_is_elected(stage, deposed)
    for _ in range(TURNS):
        a_turn_is_taken(stage)
    return stage.slots()


def a_turn_is_taken(stage: Stage) -> None:
    """A turn of the group that an operator asks for.

    :raises NotReached: when none is taken.
    """
    runtime, group = ThreadRuntime(), stage.settings.group
    request_turn(stage.store, group, "a drill", runtime.wall_ms(), "drill")
    if not await_turn(stage.store, runtime, group, TURN_S):
        raise NotReached(f"not within {TURN_S:.0f} s: a turn that was asked for")


def _one_reply_dropped(stage: Stage) -> set[str]:
    """The reply to the commit with the stops of a rebalance, which a slot that leaves brings about."""
    victim = elected_of(stage)
    loss = stage.lose(victim, Loss(_sends_a_command, is_request=False))
    leaver = slot(stage.settings.slots - 1)
    stage.terminate(leaver)
    happens(loss, "the reply to a commit with commands is lost")
    stage.fault("lose-reply", process=stage.processes[victim].who)
    return stage.slots()


def _sends_a_command(request: bytes) -> bool:
    return op_code(request) == MULTI and b"/command-" in request and b"-fetcher" in request


STEPS = (
    ("before the rebalance is written", b"PreparingRebalance", True),
    ("when it is written, and nobody has heard", b"PreparingRebalance", False),
    ("before the starts are sent", b"start-fetcher", True),
    ("when the starts are sent, and nobody has heard", b"start-fetcher", False),
    ("before the group is called Stable", b'"Stable"', True),
    ("when it is called Stable, and nobody has heard", b'"Stable"', False),
)
"""Where a coordinator is killed: what its commit writes, and whether the commit gets lost, or its reply."""

Steps = Sequence[tuple[str, bytes, bool]]


def writes_state(writes: bytes, request: bytes) -> bool:
    """Whether a request is a coordinator's commit of a group that writes this."""
    return op_code(request) == MULTI and b"/state" in request and writes in request


def happens(loss: Loss, what: str, timeout_s: float = LOST_S) -> None:
    """Wait until a packet is lost, without a moment's delay.

    :raises NotReached: when it is not.
    """
    if not loss.lost.wait(timeout_s):
        raise NotReached(f"not within {timeout_s:.0f} s: {what}")


def killed_at_each_step(stage: Stage, steps: Steps = STEPS) -> set[str]:
    """The victim dies before its connection is cut, so it does nothing more."""
    return _at_each_step(stage, steps, stage.kill, lambda victim: stage.processes[victim].strike())


def _terminated_at_each_step(stage: Stage) -> set[str]:
    return _at_each_step(stage, STEPS, stage.terminate, lambda victim: None)


def _at_each_step(stage: Stage, steps: Steps, end: Callable[[str], None], at_once: Callable[[str], None]) -> set[str]:
    last = stage.settings.slots - 1
    for number, (where, writes, is_before) in enumerate(steps):
        victim = elected_of(stage)

        is_it = partial(writes_state, writes)
        loss = stage.lose(victim, Loss(is_it, is_request=is_before, then=partial(at_once, victim)))
        if number % 2 == 0:
            stage.terminate(slot(last))
        else:
            stage.start_slot(last)
        happens(loss, f"a commit {where}")
        end(victim)
        another_is_elected(stage, victim)
        stage.wait_settled(stage.slots())
        stage.start_node(victim)
    return stage.slots()


def _rolled(stage: Stage) -> set[str]:
    """One node after the other, the elected one last, as an upgrade does it."""
    elected = elected_of(stage)
    nodes = sorted(name for name in stage.processes if name.startswith("node-"))
    for name in [*(name for name in nodes if name != elected), elected]:
        stage.terminate(name)
        stage.start_node(name)
        elected_of(stage)
        stage.wait_settled(stage.slots())
    return stage.slots()


COORDINATORS = (
    Drill(
        name="coordinator-sigkill",
        title="Kill the coordinator (SIGKILL)",
        proves="A coordinator that dies without a word is replaced in time, and nobody stops fetching.",
        hypothesis=f"The next node acts within the session timeout + 2 ticks + 0.5 s; {FETCHING_GOES_ON}.",
        fault="SIGKILL to the node that coordinates",
        run=_killed,
        promises=(NEXT_ACTS, NOTHING_STANDS_STILL, NOBODY_MOVES),
    ),
    Drill(
        name="coordinator-sigterm",
        title="Stop the coordinator (SIGTERM)",
        proves="A coordinator that is stopped resigns, and the next one need not wait for its session to end.",
        hypothesis=f"The next node acts within 0.5 s; {FETCHING_GOES_ON}.",
        fault="SIGTERM to the node that coordinates",
        run=_terminated,
        promises=(NEXT_ACTS_AT_ONCE, NOTHING_STANDS_STILL, NOBODY_MOVES),
    ),
    Drill(
        name="coordinator-pause",
        title="Pause the coordinator past its session, and let it go on",
        proves="A coordinator that wakes up deposed writes nothing more.",
        hypothesis=f"The next node acts in time, the old one does no harm when it wakes, whatever turns "
        f"are asked for; {FETCHING_GOES_ON}.",
        fault="SIGSTOP to the node that coordinates, and SIGCONT after 1.6 session timeouts",
        run=_paused,
        promises=(NEXT_ACTS, NOTHING_STANDS_STILL, NOBODY_MOVES),
    ),
    Drill(
        name="coordinator-cut",
        title="Cut the coordinator off from ZooKeeper",
        proves="A coordinator that ZooKeeper does not hear stops acting before another one starts.",
        hypothesis=f"The next node acts in time, two never act at once; {FETCHING_GOES_ON}.",
        fault="no packet between the node that coordinates and ZooKeeper for 1.6 session timeouts",
        run=_cut,
        promises=(NEXT_ACTS, NOTHING_STANDS_STILL, NOBODY_MOVES),
    ),
    Drill(
        name="coordinator-reply-lost",
        title="Lose one reply to the coordinator",
        proves="A commit whose reply is lost is looked up, and neither done twice nor left out.",
        hypothesis="The rebalance in which it happens ends like any other; every record comes once.",
        fault="the reply to a commit that sends commands is swallowed, and its connection cut",
        run=_one_reply_dropped,
    ),
    Drill(
        name="coordinator-sigkill-each-step",
        title="Kill the coordinator at each step of a rebalance",
        proves="Whatever a coordinator leaves half-done, the next one ends.",
        hypothesis="The group is Stable again each time; nobody fetches what another does; every record comes once.",
        fault="SIGKILL to the node that coordinates, just before and just after each commit of a rebalance",
        run=killed_at_each_step,
        is_short=False,
    ),
    Drill(
        name="coordinator-sigterm-each-step",
        title="Stop the coordinator at each step of a rebalance",
        proves="A coordinator that resigns half-way leaves what the next one can end.",
        hypothesis="The group is Stable again each time; nobody fetches what another does; every record comes once.",
        fault="SIGTERM to the node that coordinates, just before and just after each commit of a rebalance",
        run=_terminated_at_each_step,
        is_short=False,
    ),
    Drill(
        name="coordinators-rolling-restart",
        title="Restart the coordinators one after the other",
        proves="An upgrade of the coordinators is not noticed by anybody who fetches.",
        hypothesis=f"No partition changes its owner; {FETCHING_GOES_ON}.",
        fault="SIGTERM to each node in turn, the elected one last; each is started again before the next is stopped",
        run=_rolled,
        promises=(NOTHING_STANDS_STILL, NOBODY_MOVES),
        is_short=False,
    ),
)
