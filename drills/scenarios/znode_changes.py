"""Drills on topics, and on manual changes of znodes."""

from __future__ import annotations

from coordinator.admin.topics import alter_topic, create_topic, delete_topic
from coordinator.zk.store import Delete, Operation, SetData
from coordinator.zk.znodes.partitions import PartitionSet
from coordinator.zk.znodes.paths import COORDINATOR, Brokers, GroupPaths

from ..base.processes import NotReached, wait_for
from ..evidence.files import sessions_in
from ..testbed.testbed import Stage
from .coordinators import another_is_elected, elected_of
from .definition import Drill

GROWN_BY = 2
STATE_LOST_S = 70.0
AGAIN_S = 30.0
SCRIBBLE = b"\x00\xffscribbled by hand"


def _grown(stage: Stage) -> None:
    before, count = stage.partitions(), stage.settings.partitions + GROWN_BY
    stage.fault("topic", topic=stage.settings.topic, partitions=count)
    alter_topic(stage.store, Brokers(), stage.settings.topic, count)
    stage.partition_count = count
    stage.wait_settled(stage.slots())
    _is_sealed_from(stage, stage.partitions() - before)


def _recreated(stage: Stage) -> None:
    stage.stop_producing()
    stage.drained()
    stage.fault("topic", topic=stage.settings.topic)
    delete_topic(stage.store, Brokers(), stage.settings.topic)
    create_topic(stage.store, Brokers(), stage.settings.topic, stage.settings.partitions)
    stage.start_producer()
    stage.wait_settled(stage.slots())
    _is_sealed_from(stage, stage.partitions())


def _is_sealed_from(stage: Stage, partitions: PartitionSet) -> None:
    """Wait for a sealed record of each of these partitions."""
    wait_for(
        lambda: all(stage.sealed_offsets().get(part) for part in partitions), 20.0, "the new partitions are sealed"
    )


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
    """The eviction marks are lost with the state, so the group waits for the longest possible lease."""
    _by_hand(stage, SetData(GroupPaths(stage.settings.group).state, SCRIBBLE))
    stage.wait_settled(stage.slots(), STATE_LOST_S)


def _by_hand(stage: Stage, operation: Operation) -> None:
    stage.fault("hand", path=operation.path)
    stage.store.commit([operation])


CHANGES = (
    Drill(
        name="partitions-added",
        title="Add partitions to a topic",
        proves="New partitions are fetched from their first record, without a restart.",
        hypothesis="Two more partitions are fetched, and the others continue; every record comes once.",
        fault="the topic gets two more partitions",
        run=_grown,
    ),
    Drill(
        name="topic-recreated",
        title="Delete a topic, and create it again",
        proves="A topic that is created again is a new topic: it is read from its beginning.",
        hypothesis="All records of the old topic and of the new one are delivered once.",
        fault="the topic is deleted and created under the same name",
        run=_recreated,
    ),
    Drill(
        name="znodes-deleted-by-hand",
        title="Delete znodes manually",
        proves="Deleted znodes are created again by the next turns, and no other process takes them over.",
        hypothesis="The group is Stable again each time; every record comes once.",
        fault="an owner's znode and the coordinator's are deleted, one after the other",
        run=_deleted,
    ),
    Drill(
        name="state-scribbled-by-hand",
        title="Overwrite a group's state",
        proves="A group whose state is lost continues, after the leases of all evicted members have expired.",
        hypothesis="The group is Stable again after the longest possible lease (40 s); every record comes once.",
        fault="the data of the group's state znode is overwritten",
        run=_state_scribbled,
        is_short=False,
    ),
)
