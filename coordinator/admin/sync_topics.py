"""Topics of a Kafka without ZooKeeper (4 and later), kept in znodes as a Kafka in ZooKeeper mode writes its own.

A sync changes and removes only znodes of a sync, which contain the id of their cluster. With another cluster's id
(wrong servers named) it changes no znode.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..zk.errors import BadData, CoordinatorError, Refused, UsageError
from ..zk.store import Create, Delete, Node, Operation, SetData, Store
from ..zk.znodes.json_fields import Fields, changed
from ..zk.znodes.paths import Brokers, is_name, names_below, shown
from ..zk.znodes.records import MAX_TOPIC_BYTES, Topic
from .groups import existing
from .topics import ensure_parents

CREATED, GROWN, REPLACED, REMOVED, LEFT_ALONE = "created", "grown", "recreated", "removed", "left alone"
CLUSTER = "cluster"
"""The field of a topic's znode with the id of the cluster that it was synced from."""


@dataclass(frozen=True, slots=True)
class Change:
    """A sync's change of one topic; `reason` is why it is left alone."""

    topic: str
    what: str
    id: str | None = None
    partitions: int | None = None
    reason: str | None = None


class KafkaTopic(Protocol):
    """A topic in the brokers' metadata; `error` is why it is missing, else empty."""

    @property
    def id(self) -> str: ...

    @property
    def partitions(self) -> Collection[int]: ...

    @property
    def error(self) -> str: ...


def readable_topics(
    answers: Mapping[str, KafkaTopic | CoordinatorError],
) -> tuple[dict[str, Topic], dict[str, str]]:
    """The brokers' topics, and those whose metadata they do not return, with the reasons. Pure.

    A topic that was deleted since it was listed is in neither.

    :raises CoordinatorError: the first error, when no topic is readable.
    """
    topics: dict[str, Topic] = {}
    errors: dict[str, CoordinatorError] = {}
    for name, answer in answers.items():
        if isinstance(answer, CoordinatorError):
            errors[name] = answer
        elif not answer.error:
            topics[name] = Topic(name, answer.id, tuple(sorted(answer.partitions)))
    if errors and not topics:
        raise next(iter(errors.values()))
    return topics, {name: str(error) for name, error in errors.items()}


def planned(nodes: Mapping[str, Node], there: Mapping[str, Topic], cluster: str, brokers: Brokers) -> list[Change]:
    """The changes of a sync. Pure.

    :param nodes: the topics' znodes.  :param there: the brokers' topics.
    :raises UsageError: when the znodes are another cluster's.
    """
    names = sorted({*nodes, *there})
    found = (_change(brokers.topic(name), name, nodes.get(name), there.get(name), cluster) for name in names)
    return [change for change in found if change is not None]


def sync_topics(
    store: Store, brokers: Brokers, there: Mapping[str, Topic], cluster: str, unreadable: Mapping[str, str]
) -> list[Change]:
    """Make the znodes match the brokers; returns the changes, those left out included.

    :param unreadable: topics whose metadata the brokers do not return, each with the reason: they stay unchanged.
    :raises UsageError: when brokers are registered here, which keep their topics themselves, or it is another cluster.
    :raises StoreError: when ZooKeeper does not answer.
    """
    listing = store.children(brokers.ids)
    if listing and listing.names:
        raise UsageError(
            f"brokers are registered in {brokers.ids}: they keep their topics in ZooKeeper themselves, "
            "so sync nothing, or give another --brokers-path"
        )
    found = existing(store, {name: brokers.topic(name) for name in names_below(store, brokers.topics)})
    nodes = {name: node for name, node in found.items() if name not in unreadable}
    changes = planned(nodes, {name: topic for name, topic in there.items() if is_name(name)}, cluster, brokers)
    if any(change.what == CREATED for change in changes):
        ensure_parents(store, brokers.topics)
    done = [
        _done(store, brokers, change, nodes.get(change.topic), there.get(change.topic), cluster) for change in changes
    ]
    strange = [Change(shown(name), LEFT_ALONE, reason="invalid name") for name in there if not is_name(name)]
    return [*done, *strange, *(Change(name, LEFT_ALONE, reason=why) for name, why in sorted(unreadable.items()))]


def _change(path: str, name: str, node: Node | None, topic: Topic | None, cluster: str) -> Change | None:
    if node is None:
        return None if topic is None else Change(name, CREATED, topic.id, len(topic.partitions))
    try:
        before = Topic.parse(path, name, node.data, node.stat.czxid)
        owner = Fields.parse(path, node.data, most=MAX_TOPIC_BYTES).text(CLUSTER, "")
    except BadData as error:
        return Change(name, LEFT_ALONE, reason=str(error)) if topic is not None else None
    if not owner:  # of the embedded log, or created by an operator
        return Change(name, LEFT_ALONE, reason="a topic that no sync has made has this name") if topic else None
    if owner != cluster:
        raise UsageError(
            f"{path} was synced from the Kafka cluster {owner}, and these servers are of {cluster}: name the right "
            "servers, or give another --brokers-path"
        )
    if topic is None:
        return Change(name, REMOVED, before.id, len(before.partitions))
    if topic.id != before.id:
        return Change(name, REPLACED, topic.id, len(topic.partitions))
    return Change(name, GROWN, topic.id, len(topic.partitions)) if topic.partitions != before.partitions else None


def _done(
    store: Store, brokers: Brokers, change: Change, node: Node | None, topic: Topic | None, cluster: str
) -> Change:
    path = brokers.topic(change.topic)
    operation: Operation
    if change.what == REMOVED and node is not None:
        operation = Delete(path, node.stat.version)
    elif change.what == LEFT_ALONE or topic is None:
        return change
    else:
        data = changed(path, topic.to_bytes(), {CLUSTER: cluster}, most=MAX_TOPIC_BYTES)
        operation = Create(path, data) if node is None else SetData(path, data, node.stat.version)
    try:
        store.commit([operation])
    except Refused as refused:
        return Change(change.topic, LEFT_ALONE, reason=f"concurrent change: {refused}")
    return change
