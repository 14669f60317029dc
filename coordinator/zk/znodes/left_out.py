"""`left_out` of a group's state: keys and their bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from . import ranges
from .json_fields import compact
from .names import is_name
from .partitions import TopicPartition, range_texts

MANY = 10
"""Partitions of a topic up to this number have a key each; more share one with their ranges, `topic(5-14)`."""
MAX_BYTES = 16_000
REST = "*"
"""The key of all that has no key of its own: it is no name."""


def keys_of(partitions: Iterable[TopicPartition], why: str) -> dict[str, str]:
    """The entries of partitions that are left out for one reason."""
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    found: dict[str, str] = {}
    for topic, each in sorted(by_topic.items()):
        if len(each) <= MANY:
            found |= {str(partition): why for partition in sorted(each)}
        else:
            found[f"{topic}({range_texts(each)[topic]})"] = why
    return found


def bounded(left_out: Mapping[str, str], foremost: str = "") -> dict[str, str]:
    """The first entries, as far as `MAX_BYTES` of JSON go, and the number of the others.

    :param foremost: the reason whose entries come before all others, in their own order.
    """
    found: dict[str, str] = {}
    room = MAX_BYTES
    for key, why in sorted(left_out.items(), key=lambda entry: "" if entry[1] == foremost else entry[0]):
        room -= len(compact({key: why}))
        if room < 0:
            break
        found[key] = why
    if len(found) < len(left_out):
        found[REST] = f"{len(left_out) - len(found)} more are left out"
    return found


def partitions_of(left_out: Mapping[str, str]) -> dict[TopicPartition, str]:
    """The partitions that are named with ranges, each with its reason."""
    found: dict[TopicPartition, str] = {}
    for key, why in left_out.items():
        topic, is_many, numbers = key.removesuffix(")").partition("(")
        if is_many and key.endswith(")") and is_name(topic):
            if len(found) > ranges.MAX_PARTITION:
                break  # a few bytes can name more partitions than fit into memory
            with suppress(ValueError):
                found |= {TopicPartition(topic, number): why for number in ranges.decode(numbers)}
    return found


def first_of(left_out: Mapping[str, str], why: str) -> TopicPartition | None:
    """The first partition that is left out for this reason; None without one."""
    entries = {key: reason for key, reason in left_out.items() if reason == why}
    found = set(partitions_of(entries))
    for topic, _, number in (key.rpartition("-") for key in entries):
        if is_name(topic) and ranges.is_partition(number):
            found.add(TopicPartition(topic, int(number)))
    return min(found, default=None)
