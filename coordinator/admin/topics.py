"""Topics in ZooKeeper: znodes as Kafka writes them in ZooKeeper mode, but without replicas.

Topics of a real Kafka are left to Kafka: their partitions have replicas, or brokers are registered. Those of a Kafka
without ZooKeeper (4 and later) are synced: a sync changes and removes only znodes of a sync, which contain the id of
their cluster. With another cluster's id (wrong servers named) it changes no znode.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from ..zk.errors import BadData, Refused, TooLarge, UsageError
from ..zk.store import Create, Delete, Node, Operation, SetData, Store, existing_nodes
from ..zk.update import Failure, batches, commit_once, ensure, retried
from ..zk.values import shown
from ..zk.znodes.json_fields import Fields, changed, readable
from ..zk.znodes.paths import Brokers, checked_name, is_name, names_below
from ..zk.znodes.records import MAX_TOPIC_BYTES, Topic
from .groups import Reading, listed_topic, tree

MAX_PARTITIONS = 100_000
KAFKAS_TOOLS = "by kafka-topics.sh or, on the embedded ensemble, scripts/ensemble kafka topic NAME"

CREATED, GROWN, REPLACED, REMOVED, LEFT_ALONE = "created", "grown", "recreated", "removed", "left alone"
CLUSTER = "cluster"
"""The field of a topic's znode with the id of its source cluster, of a sync."""


def create_topic(store: Store, brokers: Brokers, name: str, partitions: int) -> Topic:
    """Create a topic with partitions 0 to `partitions` - 1 and a new topic id.

    :raises UsageError: when there is a topic of this name, the name or the number is not allowed, or brokers of a
        real Kafka are registered.
    :raises TooLarge: when the partitions do not fit into a znode.
    """
    path = brokers.topic(checked_name("topic", name))
    _check_count(partitions)
    listing = store.children(brokers.ids)
    if listing and listing.names:
        raise UsageError(
            f"brokers of a real Kafka are registered in {brokers.ids}: "
            f"create topics in Kafka, {KAFKAS_TOOLS} --partitions 4, or give another --brokers-path"
        )
    topic = Topic(name, new_topic_id(), tuple(range(partitions)))
    ensure_parents(store, brokers.topics)
    try:
        _write(store, topic, Create(path, topic.to_bytes()))
    except Refused as refused:
        if refused.reason == "node-exists":
            raise UsageError(f"topic {name} exists already") from refused
        raise
    return topic


def new_topic_id() -> str:
    """A topic id as Kafka's: a random UUID in url-safe base64, 22 characters, without a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):  # as in Kafka: such an id looks like an option on a command line
            return text


def list_topics(reading: Reading, brokers: Brokers) -> dict[str, Topic | None]:
    """All topics by name; None for an unreadable one, with the reason in `reading.problems`."""
    listing = reading.store.children(brokers.topics)
    nodes = existing_nodes(reading.store, sorted(listing.names) if listing else (), brokers.topic)
    return {name: listed_topic(reading, brokers, name, node) for name, _, node in nodes}


def usable_topics(reading: Reading, brokers: Brokers) -> dict[str, Topic]:
    """The readable topics of `list_topics`."""
    return {name: topic for name, topic in list_topics(reading, brokers).items() if topic is not None}


def alter_topic(store: Store, brokers: Brokers, name: str, partitions: int) -> Topic:
    """Give a topic more partitions: `partitions` in all.

    :raises UsageError: when there is no such topic, it has as many or more, or it is a real Kafka's.
    :raises BadData: when its data cannot be read.
    :raises TooLarge: when the partitions do not fit into a znode.
    """
    path = brokers.topic(checked_name("topic", name))
    _check_count(partitions)

    def attempt(before: Failure | None) -> Topic:
        node = _existing(store, brokers, name)
        old = Topic.parse(path, name, node.data, node.stat.czxid)
        if _has_replicas(path, node.data):
            remedy = f"alter it in Kafka, {KAFKAS_TOOLS} --partitions {partitions}"
            raise UsageError(f"topic {name} is a real Kafka's: {remedy}")
        if partitions <= (count := len(old.partitions)):
            fault = "already has that many" if partitions == count else f"has {count}, which cannot become fewer"
            raise UsageError(f"cannot give topic {name} {partitions} partitions: it {fault}")
        new = Topic(name, old.id, tuple(sorted({*old.partitions, *range(partitions)})))
        _write(store, new, SetData(path, new.over(path, node.data), node.stat.version))
        return new

    return retried(store, attempt, lambda: f"topic {name} keeps changing: try again")


def topic_znodes(store: Store, brokers: Brokers, name: str) -> list[str]:
    """Every znode that `delete_topic` removes, the deepest first.

    :raises UsageError: when there is no such topic, or it is a real Kafka's.
    """
    node = _existing(store, brokers, name)
    path = brokers.topic(name)
    if readable(_has_replicas, path, node):
        raise UsageError(f"topic {name} is a real Kafka's: delete it in Kafka, {KAFKAS_TOOLS} --delete")
    return [*tree(store, path)][::-1]


def delete_topic(store: Store, brokers: Brokers, name: str) -> list[str]:
    """Remove a topic's znode and all below it, the topic's own last; an unreadable topic too.

    :returns: the removed paths.
    :raises UsageError: when there is no such topic, or it is a real Kafka's.
    """
    removed: list[str] = []
    first = store.get(brokers.topic(name))

    def attempt(before: Failure | None) -> list[str]:
        node = store.get(brokers.topic(name)) if before is not None else first
        if before is not None and (node is None or (first is not None and node.stat.czxid != first.stat.czxid)):
            return removed  # a concurrent deletion, and maybe another topic of the name
        for batch in batches([[Delete(path)] for path in topic_znodes(store, brokers, name)]):
            paths = [operation.path for operation in batch]
            commit_once(store, batch, lambda paths=paths: not any(store.get_many(paths)))  # type: ignore[misc]
            removed.extend(paths)
        return removed

    return retried(store, attempt, lambda: f"topic {name} keeps changing: try again")


def _write(store: Store, topic: Topic, operation: Create | SetData) -> None:
    """Commit the operation that writes `topic` to its znode.

    :raises OutcomeUnknown: when the reply was lost, and the znode does not contain the topic (yet).
    """

    def is_written() -> bool:
        node = store.get(operation.path)
        return node is not None and node.data == operation.data

    try:
        commit_once(store, [operation], is_written)
    except TooLarge as error:
        raise TooLarge(
            f"topic {topic.name} with {len(topic.partitions)} partitions does not fit into a znode: {error}"
        ) from error


def ensure_parents(store: Store, path: str) -> None:
    """Create `path` and its ancestors where missing."""
    parts = path.strip("/").split("/")
    ensure(store, ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))])


def _check_count(partitions: int) -> None:
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise UsageError(f"a topic has 1 to {MAX_PARTITIONS} partitions, not {partitions}")


def _existing(store: Store, brokers: Brokers, name: str) -> Node:
    node = store.get(brokers.topic(checked_name("topic", name)))
    if node is None:
        raise UsageError(f"there is no topic {name} in {brokers.topics}")
    return node


def _has_replicas(path: str, data: bytes) -> bool:
    return any(Fields.parse(path, data, most=1_000_000).mapping("partitions").values())


# ---- topics of a Kafka without ZooKeeper


class Change(NamedTuple):
    """A sync's change of one topic, a row of its output; `reason` is why it stays unchanged."""

    topic: str
    what: str
    partitions: int | None = None
    id: str | None = None
    reason: str | None = None


def planned(nodes: Mapping[str, Node], there: Mapping[str, Topic], cluster: str, brokers: Brokers) -> list[Change]:
    """The changes of a sync. Pure.

    :param nodes: the topics' znodes.  :param there: the brokers' topics.
    :raises UsageError: when the znodes are another cluster's.
    """
    names = sorted({*nodes, *there})
    changes = (_change(brokers.topic(name), name, nodes.get(name), there.get(name), cluster) for name in names)
    return [change for change in changes if change is not None]


def sync_topics(
    store: Store, brokers: Brokers, there: Mapping[str, Topic], cluster: str, unreadable: Mapping[str, str]
) -> list[Change]:
    """Make the znodes match the brokers; returns the changes, those left out included.

    :param unreadable: topics without metadata of the brokers, each with the reason: they stay unchanged.
    :raises UsageError: when brokers are registered here, which keep their topics themselves, or it is another cluster.
    :raises StoreError: when ZooKeeper does not answer.
    """
    listing = store.children(brokers.ids)
    if listing and listing.names:
        raise UsageError(
            f"brokers are registered in {brokers.ids}: they keep their topics in ZooKeeper themselves, "
            "so sync nothing, or give another --brokers-path"
        )
    existing = existing_nodes(store, names_below(store, brokers.topics), brokers.topic)
    nodes = {name: node for name, _, node in existing if name not in unreadable}
    changes = planned(nodes, {name: topic for name, topic in there.items() if is_name(name)}, cluster, brokers)
    if any(change.what == CREATED for change in changes):
        ensure_parents(store, brokers.topics)
    done = [_done(store, brokers, each, nodes.get(each.topic), there.get(each.topic), cluster) for each in changes]
    strange = [Change(shown(name), LEFT_ALONE, reason="invalid name") for name in there if not is_name(name)]
    return [*done, *strange, *(Change(name, LEFT_ALONE, reason=why) for name, why in sorted(unreadable.items()))]


def _change(path: str, name: str, node: Node | None, topic: Topic | None, cluster: str) -> Change | None:
    if node is None:
        return None if topic is None else Change(name, CREATED, len(topic.partitions), topic.id)
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
        return Change(name, REMOVED, len(before.partitions), before.id)
    if topic.id != before.id:
        return Change(name, REPLACED, len(topic.partitions), topic.id)
    return Change(name, GROWN, len(topic.partitions), topic.id) if topic.partitions != before.partitions else None


def _done(store: Store, brokers: Brokers, change: Change, node: Node | None, new: Topic | None, cluster: str) -> Change:
    path = brokers.topic(change.topic)
    operation: Operation
    if change.what == REMOVED and node is not None:
        operation = Delete(path, node.stat.version)
    elif change.what == LEFT_ALONE or new is None:
        return change
    else:
        data = changed(path, new.to_bytes(), {CLUSTER: cluster}, most=MAX_TOPIC_BYTES)
        operation = Create(path, data) if node is None else SetData(path, data, node.stat.version)
    try:
        store.commit([operation])
    except Refused as refused:
        return Change(change.topic, LEFT_ALONE, reason=f"concurrent change: {refused}")
    return change
