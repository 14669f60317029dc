"""Topics in ZooKeeper: znodes as Kafka writes them in ZooKeeper mode, but without replicas.

Topics of a real Kafka are left to Kafka: their partitions have replicas, or brokers are registered.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass

from ..zk.errors import BadData, Refused, TooLarge, UsageError
from ..zk.store import Create, Delete, Node, SetData, Store
from ..zk.update import Failure, batches, commit_once, ensure, retried
from ..zk.znodes.json_fields import Fields, readable
from ..zk.znodes.paths import Brokers, checked_name, is_name, shown
from ..zk.znodes.records import Topic
from .groups import existing

MAX_PARTITIONS = 100_000
KAFKAS_TOOLS = "by kafka-topics.sh or, on the embedded ensemble, scripts/ensemble kafka topic NAME"


@dataclass(frozen=True, slots=True)
class ListedTopic:
    """A topic's znode; either `topic` or `error` is None."""

    name: str
    topic: Topic | None
    error: str | None


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


def list_topics(store: Store, brokers: Brokers) -> list[ListedTopic]:
    """All topics by name. An unreadable one is listed with the reason, and does not affect the others."""
    listing = store.children(brokers.topics)
    nodes = existing(store, {name: brokers.topic(name) for name in (sorted(listing.names) if listing else [])})
    found = []
    for name, node in nodes.items():
        topic, error = None, None if is_name(name) else f"{shown(name)} is no name of a topic"
        try:
            topic = _parsed(brokers, name, node) if error is None else None
        except BadData as bad:
            error = str(bad)
        found.append(ListedTopic(name, topic, error))
    return found


def get_topic(store: Store, brokers: Brokers, name: str) -> Topic:
    """One topic.

    :raises UsageError: when it does not exist.
    :raises BadData: when its data cannot be read.
    """
    return _parsed(brokers, name, _existing(store, brokers, name))


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
        old = _parsed(brokers, name, node)
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
    found = [path]
    for parent in found:  # breadth first: the list grows during iteration
        listing = store.children(parent)
        found.extend(f"{parent}/{child}" for child in (sorted(listing.names) if listing else ()))
    return found[::-1]


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


def _parsed(brokers: Brokers, name: str, node: Node) -> Topic:
    return Topic.parse(brokers.topic(name), name, node.data, node.stat.czxid)


def _has_replicas(path: str, data: bytes) -> bool:
    return any(Fields.parse(path, data, most=1_000_000).mapping("partitions").values())
