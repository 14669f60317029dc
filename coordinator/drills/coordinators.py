"""Drills that hit the coordinator."""

from __future__ import annotations

from collections.abc import Callable

from .drill import Drill
from .promises import NEXT_ACTS, NEXT_ACTS_AT_ONCE, NOBODY_MOVES, NOTHING_STANDS_STILL
from .proxy import MULTI, op_code
from .stage import Stage, slot
from .waiting import wait_for

PAST_THE_SESSION = 1.6
"""So many session timeouts are certainly more than one, with its ticks."""

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
    another_is_elected(stage, victim)
    return stage.slots()


def _cut(stage: Stage) -> set[str]:
    victim = elected_of(stage)
    stage.cut(victim, _past_session_s(stage))
    another_is_elected(stage, victim)
    return stage.slots()


def _one_reply_dropped(stage: Stage) -> set[str]:
    """The reply to the commit with the stops of a rebalance, which a slot that leaves brings about."""
    victim = elected_of(stage)
    losses = [proxy.drop_reply(_sends_a_command) for proxy in stage.proxies(victim)]
    leaver = slot(stage.settings.slots - 1)
    stage.terminate(leaver)
    wait_for(lambda: any(loss.lost.is_set() for loss in losses), 10.0, "the reply to a commit with commands is lost")
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


def _killed_at_each_step(stage: Stage) -> set[str]:
    return _at_each_step(stage, stage.kill)


def _terminated_at_each_step(stage: Stage) -> set[str]:
    return _at_each_step(stage, stage.terminate)


def _at_each_step(stage: Stage, end: Callable[[str], None]) -> set[str]:
    last = stage.settings.slots - 1
    for number, (where, writes, is_before) in enumerate(STEPS):
        victim = elected_of(stage)

        def is_it(request: bytes, writes: bytes = writes) -> bool:
            return op_code(request) == MULTI and b"/state" in request and writes in request

        losses = [(proxy.drop_request if is_before else proxy.drop_reply)(is_it) for proxy in stage.proxies(victim)]
        if number % 2 == 0:
            stage.terminate(slot(last))
        else:
            stage.start_slot(last)
        wait_for(lambda losses=losses: any(loss.lost.is_set() for loss in losses), 10.0, f"a commit: {where}")  # type: ignore[misc]
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
        hypothesis=f"The next node acts in time, the old one does no harm when it wakes; {FETCHING_GOES_ON}.",
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
        run=_killed_at_each_step,
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
