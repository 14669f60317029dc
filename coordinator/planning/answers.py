"""Checks a leader's proposed assignment for safety before it becomes the target. Pure.

SyncGroup (sources G3): the coordinator takes the leader's assignment as it is. It only rejects double ownership, claims
that no thread can make, and sizes over ZooKeeper's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..zk.znodes.group_state import CONSUMER, Answer, Ask, MemberAnswer
from ..zk.znodes.partitions import PartitionSet, TopicPartition, united
from ..zk.znodes.paths import shown
from ..zk.znodes.ranges import encode
from ..zk.znodes.records import Topic
from .snapshot import RequestView
from .target import OWNER_PATHS_A_SESSION, owner_path_bytes

MAX_THREADS = 10_000
LONGEST_LIST = 200


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on an answer: adopted, unless `failure` or `outdated` is set.

    :ivar failure: why the leader has failed; empty when it has not.
    :ivar outdated: a topic that has changed since; empty without one.
    :ivar left_out: topic -> why some of its partitions are unassigned.
    """

    failure: str = ""
    outdated: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


def verdict_on(group: str, view: RequestView, topics: Mapping[str, Topic]) -> Verdict:
    """Decide on the answer of an ask.

    :param topics: every existing topic, as the coordinator reads it.
    """
    ask, answer = view.ask, view.answer
    if ask is None or answer is None:
        return Verdict(view.problem or "the ask cannot be read")
    if answer.error is not None:
        return Verdict(f"its assignor {shown(ask.protocol)} failed: {answer.error}")
    if outdated := outdated_topic(answer, topics):
        return Verdict(outdated=outdated)  # its entries are not read
    if failure := _wrong_members(ask, answer, view.entries) or _wrong_threads(ask, view.entries):
        return Verdict(failure)
    if failure := _wrong_partitions(answer, view.entries) or _too_many_owners(group, view.entries):
        return Verdict(failure)
    return Verdict(left_out=_left_out(ask, answer, view.entries))


def _wrong_members(ask: Ask, answer: Answer, entries: Mapping[str, MemberAnswer]) -> str:
    if strangers := sorted(set(answer.members) - ask.members.keys()):
        return f"it names {shown(strangers[0])}, which is no member of the ask"
    if odd := sorted(entries.keys() ^ set(answer.members)):
        return f"its answer and the entries beside it differ by {shown(odd[0])}"
    return ""


def _wrong_threads(ask: Ask, entries: Mapping[str, MemberAnswer]) -> str:
    for consumer, entry in sorted(entries.items()):
        if ask.protocol_type != CONSUMER and entry.threads:
            return f"it gives {consumer} partitions in a group of protocol type {shown(ask.protocol_type)}"
        for thread in entry.threads:
            name, dash, number = thread.rpartition("-")
            is_number = len(number) <= 5 and number.isascii() and number.isdigit() and str(int(number)) == number
            if name != consumer or not dash or not is_number or int(number) >= MAX_THREADS:
                return f"it names {shown(thread)}, which is no thread of {consumer}"
    return ""


def outdated_topic(answer: Answer, topics: Mapping[str, Topic], but_grown: bool = False) -> str:
    """A topic that differs from the answer's view, and how; empty when none does.

    :param but_grown: ignore topics with only added partitions.
    """
    for name, topic_id in sorted(answer.topics.items()):
        topic = topics.get(name)
        if topic is None:
            return f"topic {name} does not exist"
        if topic.id != topic_id:
            return f"topic {name} has the id {shown(topic.id)}, not {shown(topic_id)}"
        before = answer.partitions.get(name, frozenset())
        if not (before <= frozenset(topic.partitions) if but_grown else before == frozenset(topic.partitions)):
            return f"topic {name} has the partitions {_ranges(topic.partitions)}"
    return ""


def _wrong_partitions(answer: Answer, entries: Mapping[str, MemberAnswer]) -> str:
    seen: set[TopicPartition] = set()
    for consumer, entry in sorted(entries.items()):
        for parts in entry.threads.values():
            if twice := seen & parts:
                return f"it gives {min(twice)} to {consumer} and to another thread"
            seen |= parts
    for part in sorted(seen):
        if part.topic not in answer.topics or part.partition not in answer.partitions.get(part.topic, ()):
            return f"it assigns {part}, which its partitions lack"
    return ""


def _too_many_owners(group: str, entries: Mapping[str, MemberAnswer]) -> str:
    for consumer, entry in sorted(entries.items()):
        parts: PartitionSet = united(entry.threads.values())
        size = owner_path_bytes(group, parts)
        if size > OWNER_PATHS_A_SESSION:
            return (
                f"it gives {consumer} {len(parts)} partitions, whose owner znodes take {size} bytes, and a session "
                f"may hold {OWNER_PATHS_A_SESSION}"
            )
    return ""


def _left_out(ask: Ask, answer: Answer, entries: Mapping[str, MemberAnswer]) -> dict[str, str]:
    given: set[TopicPartition] = set()
    for entry in entries.values():
        given.update(*entry.threads.values())
    found = {}
    for topic, numbers in sorted(answer.partitions.items()):
        left = [number for number in numbers if TopicPartition(topic, number) not in given]
        if left and topic in answer.topics:
            found[topic] = f"leader {ask.leader} assigns partitions {_ranges(left)} to no member ({ask.protocol})"
    return found


def _ranges(numbers: Iterable[int]) -> str:
    text = encode(numbers)
    return text if len(text) <= LONGEST_LIST else text[:LONGEST_LIST] + "…"
