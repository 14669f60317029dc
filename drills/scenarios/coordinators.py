"""Drills on the coordinator, and on client-side assignment: a leader that dies, hangs or fails, and a coordinator that
dies during an assignment request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from zk_group.coordinator.admin.control import await_turn, request_turn
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.group_state import Ask
from zk_group.coordinator.zk.znodes.paths import GroupPaths
from zk_group.coordinator.zk.znodes.records import ASSIGN

from ..base.processes import NotReached, wait_for
from ..base.settings import Settings
from ..faults.proxy import MULTI, Loss, op_code
from ..testbed.commands import slot
from ..testbed.testbed import Stage
from . import definition as promised
from .definition import PAST_THE_SESSION, Drill, long_drill

LOST_S = 15.0
"""Time for a started fetcher to register, and for the commit."""

TURNS = 3
TURN_S = 10.0

NO_STANDSTILL = "no partition stands still, and every record comes once"


def elected_of(stage: Stage) -> str:
    """The node that is the coordinator."""
    return wait_for(lambda: stage.elected(), 10.0, "a coordinator is elected").node


def another_is_elected(stage: Stage, than: str) -> None:
    """Wait until another node is elected."""
    timeout_s = 3 * stage.bounds["session_timeout"] + 10
    wait_for(lambda: (now := stage.elected()) and now.node != than, timeout_s, f"another node than {than} is elected")


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


Step = tuple[str, Sequence[bytes], bool]
Steps = Sequence[Step]
"""The point of a kill: words of the commit, and whether the commit (else its reply) is lost."""

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
        (stage.kill if is_killed else stage.terminate)(victim)
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
        "coordinator-sigkill", "Kill the coordinator (SIGKILL)", _replaced(Stage.kill),
        proves="A failed coordinator is replaced in time, and fetching continues.",
        hypothesis=f"The next node acts within the session timeout + 2 ticks + 0.5 s; {NO_STANDSTILL}.",
        fault="SIGKILL to the coordinator",
        promises=(promised.NEXT_ACTS, promised.FETCHING_UNINTERRUPTED, promised.OWNERS_UNCHANGED),
    ),
    Drill(
        "coordinator-sigterm", "Stop the coordinator (SIGTERM)", _replaced(Stage.terminate),
        proves="A coordinator that is stopped resigns, so the next one need not wait for its session to expire.",
        hypothesis=f"The next node acts within 0.5 s; {NO_STANDSTILL}.",
        fault="SIGTERM to the coordinator",
        promises=(promised.NEXT_ACTS_AT_ONCE, promised.FETCHING_UNINTERRUPTED, promised.OWNERS_UNCHANGED),
    ),
    Drill(
        "coordinator-pause", "Pause the coordinator past its session, and resume it",
        _replaced(past_session(Stage.pause), TURNS),
        proves="A deposed coordinator that resumes writes nothing.",
        hypothesis=f"The next node acts in time, and the old one is fenced when it resumes, also during requested "
        f"turns; {NO_STANDSTILL}.",
        fault="SIGSTOP to the coordinator, and SIGCONT after 1.6 session timeouts",
        promises=(promised.NEXT_ACTS, promised.FETCHING_UNINTERRUPTED, promised.OWNERS_UNCHANGED),
    ),
    Drill(
        "coordinator-cut", "Cut the coordinator off from ZooKeeper", _replaced(past_session(Stage.cut), TURNS),
        proves="A coordinator that is cut off from ZooKeeper stops acting before another one starts.",
        hypothesis=f"The next node acts in time, two never act at once; {NO_STANDSTILL}.",
        fault="no packet between the coordinator and ZooKeeper for 1.6 session timeouts",
        promises=(promised.NEXT_ACTS, promised.FETCHING_UNINTERRUPTED, promised.OWNERS_UNCHANGED),
    ),
    Drill(
        "coordinator-reply-lost", "Lose one reply to the coordinator", _one_reply_dropped,
        proves="A commit whose reply is lost is verified, and neither repeated nor skipped.",
        hypothesis="The rebalance completes; every record comes once.",
        fault="the reply to a commit that sends commands is dropped, and its connection cut",
    ),
    long_drill(
        "coordinator-sigkill-each-step", "Kill the coordinator at each step of a rebalance", at_each_step,
        proves="The next coordinator completes an unfinished rebalance.",
        hypothesis="The group is Stable again each time; no partition has two fetchers; every record comes once.",
        fault="SIGKILL to the coordinator, just before and just after each commit of a rebalance",
    ),
    long_drill(
        "coordinator-sigterm-each-step", "Stop the coordinator at each step of a rebalance",
        partial(at_each_step, is_killed=False),
        proves="The next coordinator completes a rebalance that was unfinished at a resignation.",
        hypothesis="The group is Stable again each time; no partition has two fetchers; every record comes once.",
        fault="SIGTERM to the coordinator, just before and just after each commit of a rebalance",
    ),
    long_drill(
        "coordinators-rolling-restart", "Rolling restart of the coordinators", _rolled,
        proves="A rolling upgrade of the coordinators does not interrupt fetching.",
        hypothesis=f"No partition changes its owner; {NO_STANDSTILL}.",
        fault="SIGTERM to each node in turn, the coordinator last; each is restarted before the next is stopped",
        promises=(promised.FETCHING_UNINTERRUPTED, promised.OWNERS_UNCHANGED),
    ),
)  # fmt: skip


COOPERATIVE, EAGER = "cooperative-sticky", "range"
HANGS, RAISES = "hangs", "raises"
TIMEOUT_MS = 4000
SWEEP_MS = 10_000
"""The product's default: an earlier sweep would hide a missing timer."""

ASKED_S = 15.0
"""Time for a started fetcher to register, and for the assignment request."""


def adopted_ask(stage: Stage) -> str:
    """The assignment request of the group's adopted target.

    :raises NotReached: when there is none.
    """
    client = stage.group().state.client
    if client is None or not client.ask:
        raise NotReached("the target of the group is not a leader's answer")
    return client.ask


def leader_of(stage: Stage) -> str:
    """The leader of that request; the next request goes to it, too, while it lives."""
    path = GroupPaths(stage.settings.group).ask(adopted_ask(stage))
    node = stage.store.get(path)
    if node is None:
        raise NotReached(f"{path} does not exist, although its answer is the target")
    return Ask.parse(path, node.data).leader


# ---- a leader that dies


LEADER_STEPS: Sequence[tuple[str, Sequence[bytes], bool, set[str]]] = (
    ("asked, nothing written", (b"/sync/ask-", b"/member-"), True, set()),
    ("half-way through its answer", (b"/sync/ask-", b"/answer"), True, {"member"}),
    ("answered, reply lost", (b"/sync/ask-", b"/answer"), False, {"member", "answer"}),
)
"""As `Steps`, and the znodes below the assignment request afterwards."""

STATE_BYTES = 64_000
"""State size of each member: a proposed assignment of three or four members takes two transactions."""


def _leader_killed(stage: Stage) -> None:
    """Each time a fetcher joins, for an assignment request: first a new one, then the previously killed leader."""
    joins = stage.settings.slots
    for where, words, is_before, leaves in LEADER_STEPS:
        leader = leader_of(stage)
        lose_commit(stage, leader, f"a leader is {where}", words, is_before, partial(stage.start_slot, joins))
        stage.kill(leader)
        if (left := _left(stage)) != leaves:
            below = ", ".join(sorted(left)) or "none"
            raise NotReached(f"expected a leader {where}; znodes below the ask: {below}")
        stage.wait_settled(stage.slots())
        joins = int(leader.rpartition("-")[2])
    stage.start_slot(joins)


def _left(stage: Stage) -> set[str]:
    """The znodes below the newest assignment request: `member`, `answer`."""
    paths = GroupPaths(stage.settings.group)
    asks = stage.store.children(paths.sync)
    below = stage.store.children(paths.ask(max(asks.names))) if asks and asks.names else None
    return {name.partition("-")[0] for name in below.names} if below else set()


# ---- a leader that does not answer


def _leader_misbehaves(stage: Stage, kind: str) -> None:
    """Until the next leader's assignment is adopted and applied by the others. A hanging leader is not evicted."""
    leader, before, bounds = leader_of(stage), adopted_ask(stage), stage.bounds
    others = stage.slots() - {leader}
    hangs_s = ASKED_S + bounds["assignment_timeout"] + bounds["poll_interval"] if kind == "hang" else 0.0
    process = stage.hang(leader, hangs_s, kind)
    stage.start_slot(stage.settings.slots)
    longest_s = ASKED_S + 2 * bounds["assignment_timeout"]
    wait_for(lambda: adopted_ask(stage) != before, longest_s, "the answer of another leader is adopted")
    if leader_of(stage) == leader:
        raise NotReached(f"{leader} answered, although its assignor misbehaves")
    wait_for(
        lambda: not any(member.commands for member in stage.group().members if member.consumer in others),
        ASKED_S,
        "the others have acknowledged their commands",
    )
    process.go_on()


# ---- a coordinator that dies during an assignment request


CLIENT_STEPS: Steps = (
    ("before the ask is written", (b"/state", b'"leader":'), True),
    ("after the ask is written, reply lost", (b"/state", b'"leader":'), False),
    ("after the answer is written, before it is adopted", (b"/state", b"PreparingRebalance"), True),
    ("after the answer is adopted, reply lost", (b"/state", b"PreparingRebalance"), False),
    *START_STEPS,
)


def _coordinator_killed_at_each_step(stage: Stage) -> None:
    """At last while the request is unanswered: the next coordinator resends its command, and the first is ignored."""
    at_each_step(stage, CLIENT_STEPS)
    leader, victim = leader_of(stage), elected_of(stage)
    process = stage.hang(leader, ASKED_S + 3 * stage.bounds["session_timeout"], "hang")
    leaves = partial(stage.terminate, slot(stage.settings.slots - 1))
    lose_commit(stage, victim, "a commit with an ask", (b"/state", b'"leader":'), False, leaves)
    stage.kill(victim)
    another_is_elected(stage, victim)
    longest_s = 3 * stage.bounds["session_timeout"] + ASKED_S
    wait_for(lambda: _is_asked_again(stage, leader), longest_s, "the leader is asked again, for the same ask")
    process.go_on()
    stage.wait_settled(stage.slots())
    stage.start_node(victim)


def _is_asked_again(stage: Stage, leader: str) -> bool:
    elected = stage.elected()
    shown = [each.command for member in stage.group().members for each in member.commands if each.consumer == leader]
    epochs = [command.epoch for command in shown if command is not None and command.option == ASSIGN]
    return elected is not None and epochs == [elected.epoch]


# ---- the drills


def _client_side(settings: Settings, strategy: str, misbehaves: str, timeout_ms: int = 0) -> Settings:
    """`max_poll_interval` outlasts a coordinator failover and the next request, so a hanging leader is not evicted.

    :param timeout_ms: `assignment_timeout_ms`; by default so long that no request fails by it.
    """
    patient_ms = max(settings.max_poll_interval_ms, 4 * settings.session_timeout_ms)
    patient = replace(settings, sweep_interval_ms=SWEEP_MS, max_poll_interval_ms=patient_ms)
    answers_ms = timeout_ms or patient_ms
    return replace(patient, strategy=strategy, misbehaves=misbehaves, assignment_timeout_ms=answers_ms)


LEADERS = (
    long_drill(
        "leader-sigkill", "Kill the leader that is asked for an assignment (SIGKILL)", _leader_killed,
        proves="A leader that dies during an ask is replaced in time; its incomplete answer has no effect.",
        hypothesis="The group is Stable with the others within the session timeout + 2 ticks + 1.5 s each time; every "
        "record comes once.",
        fault="SIGKILL to the leader after the ask, half-way through its answer, and just after it",
        promises=(promised.SETTLED_WITHOUT_THE_LEADER, promised.FETCHED_AGAIN),
        adjust=lambda settings: replace(_client_side(settings, COOPERATIVE, HANGS), state_bytes=STATE_BYTES),
    ),
    long_drill(
        "leader-hangs-in-assign", "A leader whose assignor hangs", partial(_leader_misbehaves, kind="hang"),
        proves="A leader that does not answer blocks no other member; the next leader is asked.",
        hypothesis="The next leader's answer is adopted within assignment_timeout + 1.2 s; no partition is revoked "
        "before; every record comes once.",
        fault="the leader's assignor hangs for longer than assignment_timeout (4 s) when a consumer joins",
        promises=(promised.NEXT_LEADER_AFTER_A_HANG, *promised.OTHERS_UNDISTURBED),
        adjust=lambda settings: _client_side(settings, COOPERATIVE, HANGS, TIMEOUT_MS),
    ),
    long_drill(
        "leader-raises", "A leader whose assignor raises", partial(_leader_misbehaves, kind="raise"),
        proves="A leader that fails reports why, and the next leader is asked after a backoff.",
        hypothesis="The next leader's answer is adopted within 1.2 s; no partition is revoked before; every record "
        "comes once.",
        fault="the leader's assignor raises when a consumer joins",
        promises=(promised.NEXT_LEADER_AFTER_AN_ERROR, *promised.OTHERS_UNDISTURBED),
        adjust=lambda settings: _client_side(settings, COOPERATIVE, RAISES, TIMEOUT_MS),
    ),
    long_drill(
        "coordinator-sigkill-each-step-client", "Kill the coordinator at each step of a client-side assignment",
        _coordinator_killed_at_each_step,
        proves="The next coordinator continues the same ask and answer, at whichever step the last one died.",
        hypothesis="The group is Stable again each time, with one ask and one generation for each change of its "
        "members; every record comes once.",
        fault="SIGKILL to the coordinator, just before and just after each commit from an ask to its starts, "
        "and while the assignor runs",
        promises=(promised.SETTLED_BY_THE_NEXT, promised.ASKED_ONCE, promised.ONE_GENERATION_EACH),
        adjust=lambda settings: _client_side(settings, EAGER, HANGS),
    ),
)  # fmt: skip
