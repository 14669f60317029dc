"""Drills that hit ZooKeeper, and the one on the Kafka broker that holds the records."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from subprocess import SubprocessError

from coordinator.zk.errors import CoordinatorError

from ..base.processes import NotReached, wait_for
from ..environments.base import BROKER, NETWORK, PAUSE, SERVERS
from ..evidence.measurements import BROKER_RETURNS
from ..testbed.probes import READY_S
from ..testbed.testbed import Stage
from .definition import (
    FETCHED_AGAIN,
    FETCHED_WHEN_BACK,
    FETCHING_GOES_ON,
    KEEPS_ITS_GENERATION,
    OWNERS_UNCHANGED,
    PAST_THE_SESSION,
    Drill,
)

HEALTHY_S = 30.0
RETURNS = "server-returns"
ELECTED = (
    "No partition changes its owner, and none stands still if the servers elect within 2/3 of a session timeout; "
    "every record comes once."
)
STANDING = (
    "No partition changes its owner: each stands still while ZooKeeper is unavailable, then continues at its offset; "
    "every record comes once."
)


def _healthy(stage: Stage) -> None:
    """Wait until all servers serve."""
    wait_for(lambda: stage.environment.is_healthy(), HEALTHY_S, "all ZooKeeper servers serve")


def _leader_last(stage: Stage) -> list[int]:
    """The servers; the leader last."""
    leader = stage.environment.leader()
    return sorted(range(len(stage.environment.addresses)), key=lambda number: number == leader)


def _leader_killed(stage: Stage) -> None:
    _killed(stage, _leader_last(stage)[-1])


def _follower_killed(stage: Stage) -> None:
    _killed(stage, _leader_last(stage)[0])


def _killed(stage: Stage, server: int) -> None:
    stage.fault("stop-server", server=server + 1)
    stage.environment.kill(server)
    wait_for(lambda: stage.environment.has_leader(), HEALTHY_S, "the others have a leader")
    stage.wait_settled(stage.slots())
    stage.environment.start(server)
    stage.fault(RETURNS, server=server + 1)
    _healthy(stage)


def _quorum_lost(stage: Stage) -> None:
    servers = range(len(stage.environment.addresses))
    seconds = 1.5 * stage.bounds["session_timeout"]
    begun = stage.fault("zookeeper-away", seconds)
    for server in servers:
        stage.environment.kill(server)
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    for server in servers:
        stage.environment.start(server)
    _healthy(stage)


def _rolled(stage: Stage) -> None:
    """A rolling restart of the servers; the leader last."""
    for server in _leader_last(stage):
        stage.fault("stop-server", server=server + 1)
        stage.environment.stop(server)
        stage.environment.start(server)
        _healthy(stage)
        stage.fault(RETURNS, server=server + 1)
        stage.wait_settled(stage.slots())


def _leader_paused(stage: Stage) -> None:
    _leader_away(stage, "pause-server", stage.environment.pause, stage.environment.resume)


def _leader_cut_off(stage: Stage) -> None:
    _leader_away(stage, "cut-server", stage.environment.cut_off, stage.environment.join)


def _leader_away(stage: Stage, kind: str, take: Callable[[int], None], give_back: Callable[[int], None]) -> None:
    """The leader is unavailable until another one has led for so long that a lost session has expired."""
    leader = stage.environment.leader()
    stage.fault(kind, server=leader + 1)
    try:
        take(leader)
        wait_for(lambda: stage.environment.leader() != leader, HEALTHY_S, "another server leads")
        time.sleep(stage.bounds["session_timeout"])
    except BaseException:
        with suppress(CoordinatorError, OSError, SubprocessError):  # a partly injected fault may fail to revert
            give_back(leader)
        raise
    give_back(leader)
    stage.fault(RETURNS, server=leader + 1)
    _healthy(stage)


def _all_expired(stage: Stage) -> None:
    """Every process is suspended until ZooKeeper has expired its session, as when a hypervisor is paused."""
    names = [*stage.slots(), *(name for name in stage.processes if name.startswith("node-"))]
    seconds = PAST_THE_SESSION * stage.bounds["session_timeout"]
    lives, elected = stage.lives(), stage.elected()
    for name in names:
        stage.fault("pause", seconds, process=stage.processes[name].who)
        stage.processes[name].pause()
    time.sleep(seconds)
    for name in names:
        stage.processes[name].resume()
    wait_for(lambda: (now := stage.elected()) is not None and now != elected, HEALTHY_S, "a new coordinator is elected")
    stage.wait_back(lives)


_on_three = partial(Drill, servers=3, needs=frozenset({SERVERS}))

ENSEMBLES = (
    _on_three(
        name="zookeeper-leader-sigkill",
        title="Kill the ZooKeeper leader",
        proves="No session expires during a ZooKeeper leader election, so no partition is lost.",
        hypothesis=ELECTED,
        fault="SIGKILL to the ZooKeeper leader; it is restarted when the group is settled",
        run=_leader_killed,
        promises=(OWNERS_UNCHANGED, FETCHED_AGAIN),
    ),
    _on_three(
        name="zookeeper-follower-sigkill",
        title="Kill a ZooKeeper follower",
        proves="Clients of a failed server reconnect to another one before their sessions expire.",
        hypothesis=ELECTED,
        fault="SIGKILL to a ZooKeeper follower; it is restarted when the group is settled",
        run=_follower_killed,
        promises=(OWNERS_UNCHANGED, FETCHED_AGAIN),
        is_short=False,
    ),
    _on_three(
        name="zookeeper-leader-pause",
        title="Pause the ZooKeeper leader, and resume it",
        proves="A leader that hangs is replaced, and its clients reconnect before their sessions expire.",
        hypothesis=STANDING,
        fault="SIGSTOP to the ZooKeeper leader, and SIGCONT when another one has led for a session timeout",
        run=_leader_paused,
        promises=(OWNERS_UNCHANGED,),
        needs=frozenset({PAUSE}),
        is_short=False,
    ),
    _on_three(
        name="zookeeper-leader-cut-off",
        title="Cut the ZooKeeper leader off from its peers",
        proves="Clients of a ZooKeeper leader without followers keep their sessions.",
        hypothesis=STANDING,
        fault="no packet between the ZooKeeper leader and its peers, until another one has led for a session timeout",
        run=_leader_cut_off,
        promises=(OWNERS_UNCHANGED,),
        needs=frozenset({NETWORK}),
    ),
    Drill(
        name="zookeeper-quorum-lost",
        title="Lose the ZooKeeper quorum, and restore it",
        proves="Without a quorum no partition has two fetchers; afterwards fetching continues.",
        hypothesis="Fetchers stop when leases expire, and continue when ZooKeeper is back; every record comes once.",
        fault="SIGKILL to every server; all are restarted after 1.5 session timeouts",
        run=_quorum_lost,
        needs=frozenset({SERVERS}),
    ),
    _on_three(
        name="zookeeper-rolling-restart",
        title="Rolling restart of the ZooKeeper servers",
        proves="A rolling upgrade of the ensemble needs no pause of the group.",
        hypothesis=ELECTED,
        fault="SIGTERM to each server in turn, the leader last; each is restarted before the next is stopped",
        run=_rolled,
        promises=(OWNERS_UNCHANGED,),
        is_short=False,
    ),
    Drill(
        name="all-sessions-expire",
        title="All sessions expire at once",
        proves="After all sessions have expired, the group recovers from its znodes, in any order of returns.",
        hypothesis="Every partition is fetched again in time; every record comes once.",
        fault="SIGSTOP to every coordinator and fetcher, and SIGCONT after 1.6 session timeouts",
        run=_all_expired,
        promises=(FETCHED_WHEN_BACK,),
    ),
)


AWAY_S = 3.0
"""Longer than the broker's session (`BROKER_SESSION_MS`) and its ticks."""


def _broker_killed(stage: Stage) -> None:
    """The broker is back when the independent producer has written to every partition again."""
    if stage.broker is None:
        raise NotReached("the records of this drill are not in Kafka")
    stage.fault("kill-broker")
    stage.broker.kill()
    time.sleep(AWAY_S)
    before = stage.produced_by_partition()
    stage.start_broker()

    def is_back() -> bool:
        now = stage.produced_by_partition()
        return all(now[part] > count for part, count in before.items())

    wait_for(is_back, READY_S, "the broker accepts records for every partition again")
    stage.fault(BROKER_RETURNS)


KAFKA = (
    Drill(
        name="kafka-broker-sigkill",
        title="Kill the Kafka broker",
        proves="While the broker is down the group is not rebalanced; then it continues at its offsets.",
        hypothesis="No partition changes its owner; fetching resumes when the broker is up; every record comes once.",
        fault="SIGKILL to the only Kafka broker, which is restarted after 3 s",
        run=_broker_killed,
        promises=(FETCHING_GOES_ON, KEEPS_ITS_GENERATION, OWNERS_UNCHANGED),
        needs=frozenset({BROKER}),
        adjust=lambda settings: replace(settings, kafka=True),
        touches=("its own Kafka broker",),
    ),
)
