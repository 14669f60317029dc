"""Findings of `groups verify` (missing owners, unexpected owners, partitions left out) and of `segments verify`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zk_group.coordinator.admin.groups import ShownGroup, ShownMember, ShownPartition
from zk_group.coordinator.admin.segments import (
    DAMAGED,
    LEFT_OVER,
    ListedSegment,
    SegmentFinding,
    file_findings,
    unnamed_findings,
)
from zk_group.coordinator.admin.verify import problems
from zk_group.coordinator.zk.errors import BadData
from zk_group.coordinator.zk.znodes.group_state import CLIENT, PREPARING, STABLE, ClientSide, GroupState, Mark, Target
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import WHITE_LIST, Channel, Registration, Topic
from zk_group.coordinator.zk.znodes.segments import Segment

TOPICS = {"t": Topic("t", "id", (0, 1))}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def member(name: str = "c", *running: TopicPartition, threads: int = 2, topic: str = "t") -> ShownMember:
    registration = Registration("life", {topic: threads})
    channel = Channel("life", running=dict.fromkeys(running, 0), topics={part.topic: "id" for part in running})
    return ShownMember(name, registration, channel, ())


def owned(partition: TopicPartition, thread: str = "c-0", consumer: str = "c", life: str = "life") -> ShownPartition:
    return ShownPartition(partition, "id", thread, consumer, 0, life, consumer)


WHOLE = ShownGroup("g", GroupState(STABLE), (member("c", T0, T1),), (owned(T0), owned(T1, "c-1")))


def wrong(group: ShownGroup, topics: dict[str, Topic] = TOPICS) -> list[str]:
    return [str(problem) for problem in problems(group, topics)]


def of(*members: ShownMember, owners: tuple[ShownPartition, ...] = WHOLE.partitions, **state: Any) -> ShownGroup:
    """A Stable group of these members; of that of `WHOLE`, if none are given."""
    return ShownGroup("g", GroupState(STABLE, **state), members or WHOLE.members, owners)


def with_owner(second: ShownPartition) -> ShownGroup:
    return of(owners=(owned(T0), second))


def joined_by(other: ShownMember) -> ShownGroup:
    return of(*WHOLE.members, other)


def odd(registration: str, channel: str) -> ShownGroup:
    return joined_by(ShownMember("odd", Registration(registration, {"t": 1}), Channel(channel), ()))


def led(left_out: dict[str, str] | None = None, target: frozenset[TopicPartition] = frozenset()) -> dict[str, Any]:
    """The state of a group that a leader assigns, topic `t` in its answer."""
    return {
        "topics": {"t": "id"}, "client": ClientSide("consumer", "ask-0000000001"), "left_out": left_out or {},
        "target": {"c": Target("life", {"c-0": target})},
    }  # fmt: skip


T2 = Topic("t", "id", (0, 1, 2))
HALF = (owned(T0),)
WILD = replace(WHOLE.members[0], registration=Registration("life", {"t.*": 2}, WHITE_LIST))
OF_BOTH = replace(member("c", T0), registration=Registration("life", {"t": 2, "u": 1}))
LEFT_OUT = {"t-1": "its consumer's session holds all", "u": "no such topic (yet)", "d": "evicted: stuck"}
AWAY = {"c": Target("life", {"c-0": frozenset([T0])}), "away": Target("life", {"away-0": frozenset([T1])})}
MARK = Mark("d", "life", frozenset([T1]), 500, "evicted: stuck")
ASSIGNED = {"c": Target("life", {"c-0": frozenset([T0]), "c-1": frozenset([T1])})}
LED_ALL = led(target=frozenset([T0, T1]))
LED = ShownMember("c", Registration("life", {}, CLIENT), WHOLE.members[0].channel, ())
WHY = "leader c assigns partitions 1 to no member (lag)"
FINDINGS: dict[str, tuple[ShownGroup, dict[str, Topic], list[str]]] = {
    "group with an owner for every partition is correct": (WHOLE, {}, []),
    "group without members has no findings": (
        ShownGroup("g", GroupState(), (), (ShownPartition(T0, "id", None, None, 5),)), {}, [],
    ),
    "no owner": (with_owner(replace(owned(T1), thread=None, consumer=None, incarnation=None)), {}, ["t-1: no owner"]),
    "owner of no live member": (with_owner(owned(T1, "d-0", "d")), {}, ["t-1: its owner d-0 is of no live member"]),
    "owner of an earlier incarnation": (
        with_owner(owned(T1, "c-1", life="earlier")), {}, ["t-1: its owner c-1 is of an earlier incarnation of c"],
    ),
    "owner is a thread too many": (
        with_owner(owned(T1, "c-2")), {}, ["t-1: its owner c-2 is not among the 2 threads that c registered"],
    ),
    "owner has another's name": (
        with_owner(owned(T1, "other")), {}, ["t-1: its owner other is not among the 2 threads that c registered"],
    ),
    "owner that has not subscribed": (
        of(member("c", T0), member("d", T1, topic="u"), owners=(owned(T0), owned(T1, "d-0", "d"))),
        {"u": Topic("u", "id", ())},
        ["t-1: its owner d-0 has not subscribed to the topic", "u: the topic has no partitions"],
    ),
    "owner that does not run its partition": (of(member("c", T0)), {}, ["t-1: its owner c-1 does not run it"]),
    "partitions of an earlier topic of the name": (
        WHOLE, {"t": Topic("t", "new", (0, 1))},
        [f"t-{n}: its owner c-{n} runs it with another topic id" for n in (0, 1)],
    ),
    "new partition without an owner": (WHOLE, {"t": T2}, ["t-2: no owner"]),
    "wildcard selects an existing topic": (of(WILD), {}, []),
    "wildcard selects a new topic and no other": (
        of(WILD), {"tt": Topic("tt", "id", (0,)), "u": Topic("u", "id", (0,))}, ["tt-0: no owner"],
    ),
    "left out by the coordinator, with its reason": (
        of(OF_BOTH, owners=HALF, left_out=LEFT_OUT), {}, [f"{what}: {why}" for what, why in LEFT_OUT.items()],
    ),
    "no owner, and its assigned member": (
        of(member("c", T0), owners=HALF, target=AWAY), {}, ["t-1: no owner: it is assigned to away"],
    ),
    "waits for a lease, and its holder": (
        of(member("c", T0), owners=HALF, marks=(MARK,)), {},
        ["t-1: no owner: it waits for the lease of d (evicted: stuck)"],
    ),
    "member without a channel": (
        joined_by(replace(member("d"), channel=None)), {}, ["d: its channel is missing or cannot be read"],
    ),
    "member whose incarnation is over": (
        joined_by(replace(member("d"), channel=Channel("life", ended="evicted"))), {},
        ["d: it is registered, but its incarnation is over: evicted"],
    ),
    "member with another's channel": (
        joined_by(replace(member("d"), channel=Channel("other"))), {},
        ["d: it is registered, but its channel is another incarnation's"],
    ),
    "owners outside all subscriptions": (
        of(owners=(*WHOLE.partitions, owned(TopicPartition("t", 9)), owned(TopicPartition("u", 0)))), {},
        ["t-9: c-0 owns it, and its topic has no such partition",
         "u-0: c-0 owns it, and no member subscribes to its topic"],
    ),
    "topics under client-side assignment are those of the leader": (
        of(LED, owners=(owned(T0), owned(T1)), **LED_ALL), {}, [],
    ),
    "no owner under client-side assignment": (
        of(LED, owners=HALF, **LED_ALL), {}, ["t-1: no owner: it is assigned to c"],
    ),
    "unexpected owner under client-side assignment": (
        of(LED, owners=(owned(T0), owned(T1, "d-0", "d")), **LED_ALL), {}, ["t-1: its owner d-0 is of no live member"],
    ),
    "left out by a leader, with the coordinator's reason": (
        of(owners=HALF, **led({"t": WHY}, frozenset([T0]))), {}, [f"t-1: {WHY}", f"t: {WHY}"],
    ),
    "owner in the way of no live member, and its session": (
        with_owner(replace(owned(T1, "d-0", "d"), session=0x1A)), {},
        ["t-1: its owner d-0 is of no live member: session 0x1a holds the znode, which keeps others from the "
         "partition"],
    ),
    "persistent owner in the way": (
        with_owner(replace(owned(T1, "c-1", life="earlier"), session=0)), {},
        ["t-1: its owner c-1 is of an earlier incarnation of c: the znode is persistent, so no session's end removes "
         "it, and it keeps others from the partition"],
    ),
    "unreadable owner in the way, and its session": (
        with_owner(ShownPartition(T1, None, None, None, None, session=0x2B)), {},
        ["t-1: an owner znode that cannot be read is in the way: session 0x2b holds the znode, which keeps others from "
         "the partition"],
    ),
    "owners are those of the state": (of(target=ASSIGNED), {}, []),
    "owner differs from that in the state": (
        of(owners=(owned(T0), owned(T1, "c-0")), target=ASSIGNED), {},
        ["t-1: its owner is c-0, and the state assigns it to c-1"],
    ),
    "owner differs from that in the state of a rebalance": (
        replace(WHOLE, state=GroupState(PREPARING, target=ASSIGNED), partitions=(owned(T0), owned(T1, "c-0"))), {}, [],
    ),
    "owner of what the state does not assign": (
        of(target={"c": Target("life", {"c-0": frozenset([T0])})}), {},
        ["t-1: its owner is c-1, and the state does not assign it"],
    ),
    "two empty incarnations": (odd("", ""), {}, ["odd: it is registered, but the incarnation in its channel is empty"]),
    "empty incarnation in ids": (
        odd("", "life"), {}, ["odd: it is registered, but the incarnation in its ids is empty"],
    ),
    "empty incarnation in a channel": (
        odd("life", ""), {}, ["odd: it is registered, but the incarnation in its channel is empty"],
    ),
}  # fmt: skip
"""A group, topics beside `TOPICS` (or in their place), and what is found."""


@pytest.mark.parametrize(("group", "topics", "found"), FINDINGS.values(), ids=FINDINGS)
def test_findings_of_a_group(group: ShownGroup, topics: dict[str, Topic], found: list[str]) -> None:
    assert wrong(group, TOPICS | topics) == found


def test_unreadable_pattern_is_a_finding() -> None:
    (found,) = wrong(joined_by(replace(member("d"), registration=Registration("life", {"(": 1}, WHITE_LIST))))

    assert found.startswith("d: the pattern '(' does not compile")


# ---- `segments verify`: damaged files, and files without a segment


def listed(number: int) -> ListedSegment:
    return ListedSegment(number, f"s{number}", 0, Segment(f"f{number}", "/s", 1, 1, (), "c", "i", 1))


@pytest.mark.parametrize("segments_dir", ["/s\0", "\0", "s3://b\0/x", "/\ud800"])
def test_a_folder_that_no_file_system_knows_is_bad_data_of_its_znode(segments_dir: str) -> None:
    data = Segment("f1", segments_dir, 1, 1, (), "c", "i", 1).to_bytes()

    with pytest.raises(BadData, match="/segment: field 'segments_dir' must be a folder or a URL"):
        Segment.parse("/segment", data)


UNREADABLE = ListedSegment(9, "s9", 0, None, "no JSON")


def test_damaged_files_are_found_but_for_collected_segments() -> None:
    problems = {"s1": ("missing file", "gone"), "s2": ("wrong size", "1 byte")}

    found = file_findings([listed(1), listed(2), listed(3), UNREADABLE], problems, {"s2", "s3", "s9"})

    assert found == [SegmentFinding(DAMAGED, "wrong size", "s2", "f2", "1 byte")]


def test_files_without_a_segment_are_orphans_unless_a_living_fetcher_may_seal_them() -> None:
    may = {"f1": False, "f2": True, "f3": True, "f4": False}

    found = unnamed_findings(list(may), [listed(1)], [listed(2)], may)

    assert found is not None
    assert [(each.severity, each.kind, each.file) for each in found] == [
        (LEFT_OVER, "not sealed yet", "f3"),
        (LEFT_OVER, "orphan", "f4"),
    ]


def test_no_file_is_left_over_while_a_segment_znode_is_unreadable() -> None:
    assert unnamed_findings(["f1"], [listed(1)], [UNREADABLE], {"f1": False}) is None
