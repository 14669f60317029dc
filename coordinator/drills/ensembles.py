"""Drills that hit ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from subprocess import SubprocessError

from ..zk.errors import CoordinatorError
from .drill import Drill
from .ground import NETWORK, PAUSE, SERVERS, Ground
from .promises import FETCHED_AGAIN, FETCHED_WHEN_BACK, NOBODY_MOVES, PAST_THE_SESSION
from .stage import Stage
from .waiting import wait_for

HEALTHY_S = 30.0
RETURNS = "server-returns"
ELECTED = (
    "No partition changes its owner, and none stands still while the servers elect within 2/3 of a session timeout; "
    "every record comes once."
)
STANDING = (
    "No partition changes its owner: each stands still while nobody can be asked, and then goes on where it was; "
    "every record comes once."
)


def healthy(ground: Ground) -> None:
    """Wait until all servers serve."""
    wait_for(lambda: ground.is_healthy(), HEALTHY_S, "all ZooKeeper servers serve")


def _leader_killed(stage: Stage) -> set[str]:
    return _killed(stage, stage.ground.leader())


def _follower_killed(stage: Stage) -> set[str]:
    leader = stage.ground.leader()
    return _killed(stage, next(number for number in range(len(stage.ground.addresses)) if number != leader))


def _killed(stage: Stage, server: int) -> set[str]:
    stage.fault("stop-server", server=server + 1)
    stage.ground.kill(server)
    wait_for(lambda: stage.ground.has_leader(), HEALTHY_S, "the others have a leader")
    stage.wait_settled(stage.slots())
    stage.ground.start(server)
    stage.fault(RETURNS, server=server + 1)
    healthy(stage.ground)
    return stage.slots()


def _quorum_lost(stage: Stage) -> set[str]:
    servers = range(len(stage.ground.addresses))
    seconds = 1.5 * stage.bounds["session_timeout"]
    begun = stage.fault("zookeeper-away", seconds)
    for server in servers:
        stage.ground.kill(server)
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    for server in servers:
        stage.ground.start(server)
    healthy(stage.ground)
    return stage.slots()


def _rolled(stage: Stage) -> set[str]:
    """One server after the other, as an upgrade does it; the leader last."""
    leader = stage.ground.leader()
    servers = [number for number in range(len(stage.ground.addresses)) if number != leader]
    for server in [*servers, leader]:
        stage.fault("stop-server", server=server + 1)
        stage.ground.stop(server)
        stage.ground.start(server)
        healthy(stage.ground)
        stage.fault(RETURNS, server=server + 1)
        stage.wait_settled(stage.slots())
    return stage.slots()


def _leader_paused(stage: Stage) -> set[str]:
    return _leader_away(stage, "pause-server", stage.ground.pause, stage.ground.resume)


def _leader_cut_off(stage: Stage) -> set[str]:
    return _leader_away(stage, "cut-server", stage.ground.cut_off, stage.ground.join)


def _leader_away(stage: Stage, kind: str, take: Callable[[int], None], give_back: Callable[[int], None]) -> set[str]:
    """The leader is there for nobody, until another one has led for so long that a session which it lost has ended."""
    leader = stage.ground.leader()
    stage.fault(kind, server=leader + 1)
    try:
        take(leader)
        wait_for(lambda: stage.ground.leader() != leader, HEALTHY_S, "another server leads")
        time.sleep(stage.bounds["session_timeout"])
    except BaseException:
        with suppress(CoordinatorError, OSError, SubprocessError):  # what was half taken may refuse to come back
            give_back(leader)
        raise
    give_back(leader)
    stage.fault(RETURNS, server=leader + 1)
    healthy(stage.ground)
    return stage.slots()


def _all_expired(stage: Stage) -> set[str]:
    """Every process stands still until ZooKeeper has ended its session, as when a hypervisor was paused."""
    names = [*stage.slots(), *(name for name in stage.processes if name.startswith("node-"))]
    seconds = PAST_THE_SESSION * stage.bounds["session_timeout"]
    lives, elected = stage.lives(), stage.elected()
    for name in names:
        stage.fault("pause", seconds, process=stage.processes[name].who)
        stage.processes[name].pause()
    time.sleep(seconds)
    for name in names:
        stage.processes[name].resume()
    wait_for(
        lambda: (now := stage.elected()) is not None and now != elected, HEALTHY_S, "a coordinator is elected anew"
    )
    stage.wait_back(lives)
    return stage.slots()


ENSEMBLES = (
    Drill(
        name="zookeeper-leader-sigkill",
        title="Kill the ZooKeeper leader",
        proves="An election among the servers costs no session, so nobody's partitions.",
        hypothesis=ELECTED,
        fault="SIGKILL to the server that leads; it is started again when the group is settled",
        run=_leader_killed,
        promises=(NOBODY_MOVES, FETCHED_AGAIN),
        servers=3,
        needs=frozenset({SERVERS}),
    ),
    Drill(
        name="zookeeper-follower-sigkill",
        title="Kill a ZooKeeper follower",
        proves="Who was connected to a server that dies finds another one within its session.",
        hypothesis=ELECTED,
        fault="SIGKILL to a server that follows; it is started again when the group is settled",
        run=_follower_killed,
        promises=(NOBODY_MOVES, FETCHED_AGAIN),
        servers=3,
        needs=frozenset({SERVERS}),
        is_short=False,
    ),
    Drill(
        name="zookeeper-leader-pause",
        title="Pause the ZooKeeper leader, and let it go on",
        proves="A leader that hangs is replaced, and who was connected to it finds another server within its session.",
        hypothesis=STANDING,
        fault="SIGSTOP to the server that leads, and SIGCONT when another one has led for a session timeout",
        run=_leader_paused,
        promises=(NOBODY_MOVES,),
        servers=3,
        needs=frozenset({PAUSE}),
        is_short=False,
    ),
    Drill(
        name="zookeeper-leader-cut-off",
        title="Cut the ZooKeeper leader off from its peers",
        proves="A leader without followers, whom its clients still reach, costs none of them the session.",
        hypothesis=STANDING,
        fault="no packet between the server that leads and its peers, until another one has led for a session timeout",
        run=_leader_cut_off,
        promises=(NOBODY_MOVES,),
        servers=3,
        needs=frozenset({NETWORK}),
    ),
    Drill(
        name="zookeeper-quorum-lost",
        title="Lose ZooKeeper, and get it back",
        proves="While nobody can be asked nobody fetches what another may fetch, and then all goes on.",
        hypothesis="Fetchers stop when their leases lapse, and go on when ZooKeeper is back; every record comes once.",
        fault="SIGKILL to every server; all are started again after 1.5 session timeouts",
        run=_quorum_lost,
        needs=frozenset({SERVERS}),
    ),
    Drill(
        name="zookeeper-rolling-restart",
        title="Restart the ZooKeeper servers one after the other",
        proves="An upgrade of the ensemble needs no pause of the group.",
        hypothesis=ELECTED,
        fault="SIGTERM to each server in turn, the leader last; each is started again before the next is stopped",
        run=_rolled,
        promises=(NOBODY_MOVES,),
        servers=3,
        needs=frozenset({SERVERS}),
        is_short=False,
    ),
    Drill(
        name="all-sessions-expire",
        title="All sessions expire at once",
        proves="When everybody was away, whoever comes back first finds the group, and each finds its place.",
        hypothesis="Every partition is fetched again in time; every record comes once.",
        fault="SIGSTOP to every coordinator and fetcher, and SIGCONT after 1.6 session timeouts",
        run=_all_expired,
        promises=(FETCHED_WHEN_BACK,),
    ),
)
