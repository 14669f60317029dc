"""Drills on ZooKeeper: its servers, and its znodes, of topics and by hand; and the drill on the Kafka broker of the
records."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from subprocess import SubprocessError

from zk_group.coordinator.admin.topics import alter_topic, create_topic, delete_topic
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.store import Delete, Operation, SetData
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, Brokers, GroupPaths

from ..base.processes import NotReached, wait_for
from ..environments.base import BROKER, NETWORK, PAUSE, SERVERS, Action
from ..evidence.files import sessions_in
from ..evidence.measurements import BROKER_RETURNS
from ..testbed.commands import READY_S
from ..testbed.testbed import Stage
from . import definition as promised
from .coordinators import another_is_elected, elected_of
from .definition import PAST_THE_SESSION, Drill, long_drill

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


def _killed(stage: Stage, place: int) -> None:
    """The server at this place, as in `_leader_last`."""
    server = _leader_last(stage)[place]
    stage.fault("stop-server", server=server + 1)
    stage.environment.act("kill", server)
    wait_for(lambda: stage.environment.has_leader(), HEALTHY_S, "the others have a leader")
    stage.wait_settled(stage.slots())
    stage.environment.act("start", server)
    stage.fault(RETURNS, server=server + 1)
    _healthy(stage)


def _quorum_lost(stage: Stage) -> None:
    servers = range(len(stage.environment.addresses))
    seconds = 1.5 * stage.bounds["session_timeout"]
    begun = stage.fault("zookeeper-away", seconds)
    for server in servers:
        stage.environment.act("kill", server)
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    for server in servers:
        stage.environment.act("start", server)
    _healthy(stage)


def _rolled(stage: Stage) -> None:
    """A rolling restart of the servers; the leader last."""
    for server in _leader_last(stage):
        stage.fault("stop-server", server=server + 1)
        stage.environment.act("stop", server)
        stage.environment.act("start", server)
        _healthy(stage)
        stage.fault(RETURNS, server=server + 1)
        stage.wait_settled(stage.slots())


def _leader_away(stage: Stage, kind: str, take: Action, give_back: Action) -> None:
    """The leader is unavailable until another one has led for so long that a lost session has expired."""
    leader = stage.environment.leader()
    stage.fault(kind, server=leader + 1)
    try:
        stage.environment.act(take, leader)
        wait_for(lambda: stage.environment.leader() != leader, HEALTHY_S, "another server leads")
        time.sleep(stage.bounds["session_timeout"])
    except BaseException:
        with suppress(CoordinatorError, OSError, SubprocessError):  # a partly injected fault may fail to revert
            stage.environment.act(give_back, leader)
        raise
    stage.environment.act(give_back, leader)
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


_on_three = partial(Drill, servers=3, needs=frozenset({SERVERS}), promises=(promised.OWNERS_UNCHANGED,))

ENSEMBLES = (
    _on_three(
        "zookeeper-leader-sigkill", "Kill the ZooKeeper leader", partial(_killed, place=-1),
        proves="No session expires during a ZooKeeper leader election, so no partition is lost.",
        hypothesis=ELECTED,
        fault="SIGKILL to the ZooKeeper leader; it is restarted when the group is settled",
        promises=(promised.OWNERS_UNCHANGED, promised.FETCHED_AGAIN),
    ),
    _on_three(
        "zookeeper-follower-sigkill", "Kill a ZooKeeper follower", partial(_killed, place=0),
        proves="Clients of a failed server reconnect to another one before their sessions expire.",
        hypothesis=ELECTED,
        fault="SIGKILL to a ZooKeeper follower; it is restarted when the group is settled",
        promises=(promised.OWNERS_UNCHANGED, promised.FETCHED_AGAIN), is_short=False,
    ),
    _on_three(
        "zookeeper-leader-pause", "Pause the ZooKeeper leader, and resume it",
        partial(_leader_away, kind="pause-server", take="pause", give_back="resume"),
        proves="A leader that hangs is replaced, and its clients reconnect before their sessions expire.",
        hypothesis=STANDING,
        fault="SIGSTOP to the ZooKeeper leader, and SIGCONT when another one has led for a session timeout",
        needs=frozenset({PAUSE}), is_short=False,
    ),
    _on_three(
        "zookeeper-leader-cut-off", "Cut the ZooKeeper leader off from its peers",
        partial(_leader_away, kind="cut-server", take="cut off", give_back="join"),
        proves="Clients of a ZooKeeper leader without followers keep their sessions.",
        hypothesis=STANDING,
        fault="no packet between the ZooKeeper leader and its peers, until another one has led for a session timeout",
        needs=frozenset({NETWORK}),
    ),
    Drill(
        "zookeeper-quorum-lost", "Lose the ZooKeeper quorum, and restore it", _quorum_lost,
        proves="Without a quorum no partition has two fetchers; afterwards fetching continues.",
        hypothesis="Fetchers stop when leases expire, and continue when ZooKeeper is back; every record comes once.",
        fault="SIGKILL to every server; all are restarted after 1.5 session timeouts",
        needs=frozenset({SERVERS}),
    ),
    _on_three(
        "zookeeper-rolling-restart", "Rolling restart of the ZooKeeper servers", _rolled,
        proves="A rolling upgrade of the ensemble needs no pause of the group.",
        hypothesis=ELECTED,
        fault="SIGTERM to each server in turn, the leader last; each is restarted before the next is stopped",
        is_short=False,
    ),
    Drill(
        "all-sessions-expire", "All sessions expire at once", _all_expired,
        proves="After all sessions have expired, the group recovers from its znodes, in any order of returns.",
        hypothesis="Every partition is fetched again in time; every record comes once.",
        fault="SIGSTOP to every coordinator and fetcher, and SIGCONT after 1.6 session timeouts",
        promises=(promised.FETCHED_WHEN_BACK,),
    ),
)  # fmt: skip


AWAY_S = 3.0
"""Longer than the broker's session (`BROKER_SESSION_MS`) and its ticks."""


def _broker_killed(stage: Stage) -> None:
    """The broker is back when the independent producer has written to every partition again."""
    if stage.broker is None:
        raise NotReached("the records of this drill are not in Kafka")
    stage.fault("kill-broker")
    stage.broker.kill()
    time.sleep(AWAY_S)
    more = Counter({part: count + 1 for part, count in stage.produced_by_partition().items()})
    stage.start_broker()
    what = "the broker accepts records for every partition again"
    wait_for(lambda: more <= stage.produced_by_partition(), READY_S, what)
    stage.fault(BROKER_RETURNS)


KAFKA = (
    Drill(
        "kafka-broker-sigkill", "Kill the Kafka broker", _broker_killed,
        proves="While the broker is down the group is not rebalanced; then it continues at its offsets.",
        hypothesis="No partition changes its owner; fetching resumes when the broker is up; every record comes once.",
        fault="SIGKILL to the only Kafka broker, which is restarted after 3 s",
        promises=(promised.FETCHING_GOES_ON, promised.KEEPS_ITS_GENERATION, promised.OWNERS_UNCHANGED),
        needs=frozenset({BROKER}), adjust=lambda settings: replace(settings, kafka=True),
        touches=("its own Kafka broker",),
    ),
)  # fmt: skip


GROWN_BY = 2
SEALED_S = 20.0
STATE_LOST_S = 70.0
AGAIN_S = 30.0
SCRIBBLE = b"\x00\xffscribbled by hand"


def _grown(stage: Stage) -> None:
    before, count = stage.partitions(), stage.settings.partitions + GROWN_BY
    stage.fault("topic", topic=stage.settings.topic, partitions=count)
    alter_topic(stage.store, Brokers(), stage.settings.topic, count)
    stage.partition_count = count
    stage.wait_settled(stage.slots())
    stage.wait_sealed(stage.partitions() - before, SEALED_S)


def _recreated(stage: Stage) -> None:
    stage.stop_producing()
    stage.drained()
    stage.fault("topic", topic=stage.settings.topic)
    delete_topic(stage.store, Brokers(), stage.settings.topic)
    create_topic(stage.store, Brokers(), stage.settings.topic, stage.settings.partitions)
    stage.start_producer()
    stage.wait_settled(stage.slots())
    stage.wait_sealed(stage.partitions(), SEALED_S)


def _deleted(stage: Stage) -> None:
    """An owner's and the coordinator's znode, deleted as with zkCli."""
    victim = elected_of(stage)
    number = stage.random.randrange(stage.settings.partitions)
    owner = GroupPaths(stage.settings.group).owner(stage.settings.topic, number)
    _by_hand(stage, Delete(owner))
    wait_for(lambda: stage.store.get(owner), AGAIN_S, f"{owner} is created again")
    stage.wait_settled(stage.slots())
    delete_coordinator(stage, victim)
    another_is_elected(stage, victim)


def delete_coordinator(stage: Stage, victim: str) -> None:
    """Delete the coordinator's znode.

    :raises NotReached: when it is not of a session of the drill's processes.
    """
    node = stage.store.get(COORDINATOR)
    if node is None or node.stat.ephemeral_owner not in sessions_in(stage.histories):
        raise NotReached(f"the coordinator is not {victim} of this drill; the znode is not deleted")
    _by_hand(stage, Delete(COORDINATOR, node.stat.version))


def _state_scribbled(stage: Stage) -> None:
    """The eviction holds are lost with the state, so the group waits for the longest possible lease."""
    _by_hand(stage, SetData(GroupPaths(stage.settings.group).state, SCRIBBLE))
    stage.wait_settled(stage.slots(), STATE_LOST_S)


def _by_hand(stage: Stage, operation: Operation) -> None:
    stage.fault("hand", path=operation.path)
    stage.store.commit([operation])


CHANGES = (
    Drill(
        "partitions-added", "Add partitions to a topic", _grown,
        proves="New partitions are fetched from their first record, without a restart.",
        hypothesis="Two more partitions are fetched, and the others continue; every record comes once.",
        fault="the topic gets two more partitions",
    ),
    Drill(
        "topic-recreated", "Delete a topic, and create it again", _recreated,
        proves="A topic that is created again is a new topic: it is read from its beginning.",
        hypothesis="All records of the old topic and of the new one are delivered once.",
        fault="the topic is deleted and created under the same name",
    ),
    Drill(
        "znodes-deleted-by-hand", "Delete znodes manually", _deleted,
        proves="Deleted znodes are created again by the next turns, and no other process takes them over.",
        hypothesis="The group is Stable again each time; every record comes once.",
        fault="an owner's znode and the coordinator's are deleted, one after the other",
    ),
    long_drill(
        "state-scribbled-by-hand", "Overwrite a group's state", _state_scribbled,
        proves="A group whose state is lost continues, after the leases of all evicted members have expired.",
        hypothesis="The group is Stable again after the longest possible lease (40 s); every record comes once.",
        fault="the data of the group's state znode is overwritten",
    ),
)  # fmt: skip
