"""Findings of `groups verify` (missing owners, unexpected owners, partitions left out) and of `segments verify`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.admin.groups import ShownGroup, ShownMember, ShownPartition
from coordinator.admin.segments import (
    DAMAGED,
    LEFT_OVER,
    ListedSegment,
    SegmentFinding,
    file_findings,
    unnamed_findings,
)
from coordinator.admin.verify import problems
from coordinator.zk.errors import BadData
from coordinator.zk.znodes.group_state import CLIENT, PREPARING, STABLE, ClientSide, GroupState, Mark, Target
from coordinator.zk.znodes.partitions import TopicPartition
from coordinator.zk.znodes.records import WHITE_LIST, Channel, Registration, Topic
from coordinator.zk.znodes.segments import Segment

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


def test_group_with_an_owner_for_every_partition_is_correct() -> None:
    assert wrong(WHOLE) == []


def test_group_without_members_has_no_findings() -> None:
    assert wrong(ShownGroup("g", GroupState(), (), (ShownPartition(T0, "id", None, None, 5),))) == []


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (replace(owned(T1), thread=None, consumer=None, incarnation=None), "no owner"),
        (owned(T1, "d-0", "d"), "its owner d-0 is of no live member"),
        (owned(T1, "c-1", life="earlier"), "its owner c-1 is of an earlier incarnation of c"),
        (owned(T1, "c-2"), "its owner c-2 is not among the 2 threads that c registered"),
        (owned(T1, "other"), "its owner other is not among the 2 threads that c registered"),
    ],
)
def test_unexpected_owner_is_a_finding(partition: ShownPartition, words: str) -> None:
    assert wrong(replace(WHOLE, partitions=(owned(T0), partition))) == [f"t-1: {words}"]


def test_unsubscribed_owner_is_a_finding() -> None:
    other = member("d", T1, topic="u")
    group = ShownGroup("g", GroupState(STABLE), (member("c", T0), other), (owned(T0), owned(T1, "d-0", "d")))

    assert wrong(group, {**TOPICS, "u": Topic("u", "id", ())}) == [
        "t-1: its owner d-0 has not subscribed to the topic",
        "u: the topic has no partitions",
    ]


def test_owner_that_does_not_run_its_partition_is_a_finding() -> None:
    assert wrong(replace(WHOLE, members=(member("c", T0),))) == ["t-1: its owner c-1 does not run it"]


def test_partition_of_an_earlier_topic_of_the_name_is_a_finding() -> None:
    found = wrong(WHOLE, {"t": Topic("t", "new", (0, 1))})

    assert found == [f"t-{n}: its owner c-{n} runs it with another topic id" for n in (0, 1)]


def test_new_partition_without_an_owner_is_a_finding() -> None:
    assert wrong(WHOLE, {"t": Topic("t", "id", (0, 1, 2))}) == ["t-2: no owner"]


def test_wildcard_selects_existing_topics() -> None:
    registration = Registration("life", {"t.*": 2}, WHITE_LIST)
    group = replace(WHOLE, members=(replace(WHOLE.members[0], registration=registration),))

    assert wrong(group) == []
    assert wrong(group, {**TOPICS, "tt": Topic("tt", "id", (0,)), "u": Topic("u", "id", (0,))}) == ["tt-0: no owner"]


def test_partition_left_out_by_the_coordinator_is_reported_with_its_reason() -> None:
    state = GroupState(
        STABLE, left_out={"t-1": "its consumer's session holds all", "u": "no such topic (yet)", "d": "evicted: stuck"}
    )
    members = (replace(member("c", T0), registration=Registration("life", {"t": 2, "u": 1})),)

    found = wrong(ShownGroup("g", state, members, (owned(T0),)))

    assert found == ["t-1: its consumer's session holds all", "u: no such topic (yet)", "d: evicted: stuck"]


def test_partition_without_an_owner_is_reported_with_its_assigned_member() -> None:
    target = {"c": Target("life", {"c-0": frozenset([T0])}), "away": Target("life", {"away-0": frozenset([T1])})}
    group = ShownGroup("g", GroupState(STABLE, target=target), (member("c", T0),), (owned(T0),))

    assert wrong(group) == ["t-1: no owner: it is assigned to away"]


def test_partition_that_waits_for_a_lease_is_reported_with_its_holder() -> None:
    mark = Mark("d", "life", frozenset([T1]), 500, "evicted: stuck")
    group = ShownGroup("g", GroupState(STABLE, marks=(mark,)), (member("c", T0),), (owned(T0),))

    assert wrong(group) == ["t-1: no owner: it waits for the lease of d (evicted: stuck)"]


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        (None, "its channel is missing or cannot be read"),
        (Channel("life", ended="evicted"), "it is registered, but its incarnation is over: evicted"),
        (Channel("other"), "it is registered, but its channel is another incarnation's"),
    ],
)
def test_member_without_a_live_channel_is_a_finding(channel: Channel | None, words: str) -> None:
    group = replace(WHOLE, members=(*WHOLE.members, replace(member("d"), channel=channel)))

    assert wrong(group) == [f"d: {words}"]


def test_unreadable_pattern_is_a_finding() -> None:
    bad = replace(member("d"), registration=Registration("life", {"(": 1}, WHITE_LIST))

    (found,) = wrong(replace(WHOLE, members=(*WHOLE.members, bad)))

    assert found.startswith("d: the pattern '(' does not compile")


def test_owner_outside_all_subscriptions_is_a_finding() -> None:
    group = replace(WHOLE, partitions=(*WHOLE.partitions, owned(TopicPartition("t", 9)), owned(TopicPartition("u", 0))))

    assert wrong(group) == [
        "t-9: c-0 owns it, and its topic has no such partition",
        "u-0: c-0 owns it, and no member subscribes to its topic",
    ]


def led(left_out: dict[str, str] | None = None, target: frozenset[TopicPartition] = frozenset()) -> GroupState:
    """A group that a leader assigns, topic `t` in its answer."""
    return GroupState(
        STABLE, topics={"t": "id"}, client=ClientSide("consumer", "ask-0000000001"), left_out=left_out or {},
        target={"c": Target("life", {"c-0": target})},
    )  # fmt: skip


def test_topics_under_client_side_assignment_are_those_of_the_leader() -> None:
    wildcard = ShownMember("c", Registration("life", {}, CLIENT), WHOLE.members[0].channel, ())
    owners = (owned(T0), owned(T1))
    group = replace(WHOLE, state=led(target=frozenset([T0, T1])), members=(wildcard,), partitions=owners)

    assert wrong(group) == []
    assert wrong(replace(group, partitions=(owned(T0),))) == ["t-1: no owner: it is assigned to c"]
    assert wrong(replace(group, partitions=(owned(T0), owned(T1, "d-0", "d")))) == [
        "t-1: its owner d-0 is of no live member"
    ]


def test_partition_left_out_by_a_leader_is_a_finding_with_the_coordinators_reason() -> None:
    why = "leader c assigns partitions 1 to no member (lag)"
    group = replace(WHOLE, state=led({"t": why}, frozenset([T0])), partitions=(owned(T0),))

    assert wrong(group) == [f"t-1: {why}", f"t: {why}"]


# ---- owners that nobody runs, and owners that differ from the state


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (
            replace(owned(T1, "d-0", "d"), session=0x1A),
            "its owner d-0 is of no live member: session 0x1a holds the znode, which keeps others from the partition",
        ),
        (
            replace(owned(T1, "c-1", life="earlier"), session=0),
            "its owner c-1 is of an earlier incarnation of c: the znode is persistent, so no session's end removes it, "
            "and it keeps others from the partition",
        ),
        (
            ShownPartition(T1, None, None, None, None, session=0x2B),
            "an owner znode that cannot be read is in the way: session 0x2b holds the znode, which keeps others from "
            "the partition",
        ),
    ],
)
def test_owner_in_the_way_is_shown_with_the_session_that_holds_it(shown: ShownPartition, why: str) -> None:
    assert wrong(replace(WHOLE, partitions=(owned(T0), shown))) == [f"t-1: {why}"]


def test_owners_of_a_stable_group_are_compared_with_its_target() -> None:
    threads = {"c-0": frozenset([T0]), "c-1": frozenset([T1])}
    stable = replace(WHOLE, state=GroupState(STABLE, target={"c": Target("life", threads)}))
    assert wrong(stable) == []

    changed = replace(stable, partitions=(owned(T0), owned(T1, "c-0")))
    assert wrong(changed) == ["t-1: its owner is c-0, and the state assigns it to c-1"]
    assert wrong(replace(changed, state=replace(changed.state, state=PREPARING))) == []

    fewer = replace(stable.state, target={"c": Target("life", {"c-0": frozenset([T0])})})
    assert wrong(replace(stable, state=fewer)) == ["t-1: its owner is c-1, and the state does not assign it"]


# ---- registrations that do not fit their channels


@pytest.mark.parametrize(
    ("registration", "channel", "why"),
    [
        ("", "", "it is registered, but the incarnation in its channel is empty"),
        ("", "life", "it is registered, but the incarnation in its ids is empty"),
        ("life", "", "it is registered, but the incarnation in its channel is empty"),
    ],
)
def test_empty_incarnation_is_a_finding(registration: str, channel: str, why: str) -> None:
    odd = ShownMember("odd", Registration(registration, {"t": 1}), Channel(channel), ())

    assert wrong(replace(WHOLE, members=(*WHOLE.members, odd))) == [f"odd: {why}"]


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
