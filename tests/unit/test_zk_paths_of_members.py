"""The rules and figures that zk_paths.md gives a member are those of the product's own consumer."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.property.group_world import PATHS, GroupWorld
from tests.property.tree import MemoryTree
from tests.support.pages import ROOT
from tests.unit.manual import ManualRuntime
from tests.unit.test_member import T0, T1, Life
from tests.unit.test_zk_paths import DOCUMENT, section
from zk_group.consumer.membership.claims import PARTITIONS_A_STEP
from zk_group.consumer.membership.offsets import READ_AGAIN_S
from zk_group.consumer.membership.registration import RegistrationBackoff
from zk_group.coordinator.zk.errors import ConnectionLost
from zk_group.coordinator.zk.lease import Heard, Lease
from zk_group.coordinator.zk.store import Delete
from zk_group.coordinator.zk.znodes.partitions import TopicPartition
from zk_group.coordinator.zk.znodes.records import START_FETCHER, STOP_FETCHER, UNKNOWN_MEMBER_ID, Command


@pytest.fixture
def life() -> Life:
    """A group with a registered member and no command."""
    life = Life()
    life.poll()
    return life


def raw(life: Life) -> Any:
    """The channel's data."""
    return json.loads(life.world.tree.data(PATHS.channel("a")) or b"")


def step(title: str) -> str:
    """A numbered rule of the document, on one line."""
    found = re.search(rf"^\d+\. \*\*{re.escape(title)}\*\*(.*?)(?=^\d+\. |^#|^\n)", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert found, f"no rule {title}"
    return " ".join(found[1].split())


# ---- registration


def test_a_registration_creates_the_parents_that_the_rule_lists_in_its_order(life: Life) -> None:
    listed = re.search(r"in this order and without data: (.*?)\. Too", step("Register"))
    assert listed
    outer, below, channel = (re.findall(r"`([^`]+)`", part) for part in listed[1].split(";"))
    group = outer[-1]
    paths = [*outer, *(f"{group}/{name}" for name in below), *(f"{group}/{name}" for name in channel)]
    created = [path.replace("[group]", "g").replace("[consumer]", "a") for path in paths]

    tree = life.world.tree
    assert created == [*PATHS.skeleton, PATHS.channel("a")]
    assert [tree.data(path) for path in created[:-1]] == [b""] * len(PATHS.skeleton)
    zxids = [node.stat.czxid for node in map(tree.node, created) if node is not None]
    assert zxids == sorted(zxids)


def test_a_registration_writes_the_channel_that_the_rule_describes(life: Life) -> None:
    rule = step("Register")
    assert (
        '(`epoch` and `generation` 0, `command` "", `running` and `topics` empty, `ended` null, no other field)' in rule
    )

    data = raw(life)

    assert data.pop("incarnation")
    assert data == {
        "version": 1, "epoch": 0, "generation": 0, "command": "", "running": {}, "topics": {}, "ended": None
    }  # fmt: skip


def test_the_coordinator_creates_a_topics_parents_with_its_first_start(life: Life) -> None:
    tree = life.world.tree
    assert tree.data(PATHS.owners_of("t")) is None

    life.world.turn()

    assert life.commands
    assert (tree.data(PATHS.owners_of("t")), json.loads(tree.data(PATHS.offsets_of("t")) or b"")["topic_id"]) == (
        b"", "t-1"
    )  # fmt: skip


# ---- refused multis, large ends


@pytest.fixture
def stable() -> Life:
    return settled(2)


def settled(partitions: int) -> Life:
    """A member that runs so many partitions."""
    life = Life()
    life.world.topic("t", partitions)
    life.settle()
    assert len(life.channel.running) == partitions
    return life


def test_a_stop_removes_existing_owners_and_creates_a_missing_offset(stable: Life) -> None:
    assert "a missing owner znode is not removed" in DOCUMENT
    assert "an existing offset is set and a missing one created" in DOCUMENT
    stable.member.advance({T0: 5, T1: 7})
    stable.world.tree.commit([Delete(PATHS.owner("t", 0)), Delete(PATHS.offset("t", 1))], 0)

    stable.send(STOP_FETCHER)
    stable.poll()

    assert (stable.commands, raw(stable)["running"], stable.world.owners()) == ([], {}, frozenset())
    assert (stable.offset(T0), stable.offset(T1)) == (5, 7)


def test_the_end_reads_owners_and_offsets_before_its_only_try(stable: Life) -> None:
    assert "It reads owner and offset znodes before it sends" in step("Leave")
    stable.member.advance({T0: 5, T1: 7})
    stable.world.tree.commit([Delete(PATHS.owner("t", 0)), Delete(PATHS.offset("t", 1))], 0)

    stable.member.leave()

    channel = stable.channel
    assert (channel.ended, channel.error, dict(channel.running)) == ("left", "", {})
    assert (stable.offset(T0), stable.offset(T1)) == (5, 7)
    assert stable.world.tree.data(PATHS.id("a")) is None
    assert (stable.world.owners(), stable.held.notified[-1]) == (frozenset(), "revoked")


def test_partitions_of_one_multi_are_as_many_as_the_document_says() -> None:
    assert re.findall(r"more than (\d+)", DOCUMENT.split("### Life of a consumer")[1].split("\n### ")[0]) == [
        str(PARTITIONS_A_STEP),
        str(PARTITIONS_A_STEP),
    ]


def test_a_large_end_keeps_what_ran_for_the_coordinator_to_write() -> None:
    assert "the multi sets `ended`, keeps `running` and `topics`, and removes `ids`" in step("Leave")
    life = settled(PARTITIONS_A_STEP + 1)
    life.member.advance({T0: 5})

    life.member.close()

    channel = life.channel
    assert (channel.ended, len(channel.running), channel.topics) == ("left", PARTITIONS_A_STEP + 1, {"t": "t-1"})
    assert life.world.tree.data(PATHS.id("a")) is None
    life.world.turn()
    channel = life.channel
    assert (channel.ended, dict(channel.running), life.offset(T0)) == ("left", {}, 5)
    assert life.world.owners() == frozenset()


def test_a_registration_interrupted_between_multis_does_not_fence_its_own_process() -> None:
    assert "Only `incarnation` decides that." in step("Session lost")
    life = settled(2 * PARTITIONS_A_STEP)
    life.member.advance({T0: 5})
    between: list[str] = []

    def interrupt(world: GroupWorld) -> None:
        channel = world.channels()["a"]
        if channel.ended and channel.running and not between and life.member.store is not None:
            between.append(channel.error)
            life.member.store.close()

    life.world.meddle = interrupt
    assert life.member.store is not None
    life.member.store.close()
    for _ in range(6):
        life.world.runtime.now += 1
        life.poll()

    assert between == [UNKNOWN_MEMBER_ID]
    assert "Its `error` is `UnknownMemberId`" in step("Register")
    life.settle()
    channel = life.channel
    assert (channel.is_live, len(channel.running)) == (True, 2 * PARTITIONS_A_STEP)
    assert life.held.starts[T0].offset == 5


def test_no_process_writes_the_error_of_a_fenced_instance() -> None:
    assert "`FencedInstanceId` (a newer process has the name: this one must not rejoin; read, but written by no" in (
        section("channel/[consumer]")
    )
    writers = [
        path
        for top in ("consumer", "coordinator")
        for path in (ROOT / top).rglob("*.py")
        if "FENCED_INSTANCE_ID" in path.read_text() and path.name not in ("records.py", "errors.py")
    ]

    assert writers == []


# ---- the channel


def test_a_position_that_was_read_is_in_the_channel_with_its_next_write(stable: Life) -> None:
    assert "A consumer does not set the channel for a position read there" in section("channel/[consumer]")
    assert stable.held.starts.keys() == {T0, T1}
    assert raw(stable)["running"] == {"t": {"0": None, "1": None}}

    stable.member.advance({T0: 5})

    assert raw(stable)["running"] == {"t": {"0": 5, "1": 0}}


def test_refused_is_replaced_by_a_start_and_cleared_by_a_stop_and_by_the_end(life: Life) -> None:
    assert "Each applied start replaces it; each stop, and a termination in one multi, clears it" in (
        section("channel/[consumer]")
    )
    life.world.tree.put("/consumers/groups/g/owners/t", b"")
    owner = PATHS.owner("t", 1)
    refused: list[Any] = []

    def apply(option: str, *started: TopicPartition, **fields: Any) -> None:
        life.send(option, *started, epoch=1, generation=1, **fields)
        life.poll()
        refused.append(raw(life).get("refused"))

    life.world.tree.put(owner, b"another")
    apply(START_FETCHER, T0, T1)
    apply(START_FETCHER, T0)
    apply(START_FETCHER, T0, T1)
    apply(STOP_FETCHER, partitions=frozenset([T0]))
    apply(START_FETCHER, T0, T1)
    life.member.leave()

    assert refused == [{"t": "1"}, None, {"t": "1"}, None, {"t": "1"}]
    assert (raw(life)["ended"], raw(life).get("refused")) == ("left", None)


def test_the_generation_of_an_offset_is_that_of_the_channel_before_the_multi(stable: Life) -> None:
    assert "`generation` of the writer's channel before the multi" in section("offsets/[topic]/[partition]")
    began = json.loads(stable.world.tree.data(PATHS.offset("t", 0)) or b"")
    stable.member.advance({T0: 5})
    stable.send(STOP_FETCHER, generation=9)

    stable.poll()

    assert (began["generation"], raw(stable)["generation"]) == (1, 9)
    assert json.loads(stable.world.tree.data(PATHS.offset("t", 0)) or b"")["generation"] == 1


# ---- stops and starts that differ from what runs


def test_stop_ignores_topic_ids(stable: Life) -> None:
    assert "the ids in its `topics` are ignored" in step("stop-fetcher")

    stable.send(STOP_FETCHER, partitions=frozenset([T0, TopicPartition("t", 9)]), topics={"t": "other"})
    stable.poll()

    assert (stable.commands, raw(stable)["running"], raw(stable)["topics"]) == ([], {"t": {"1": 0}}, {"t": "t-1"})


def test_start_keeps_running_partitions_for_any_thread(stable: Life) -> None:
    assert "Running partitions keep their owner znode and position, for any thread in the command" in (
        step("start-fetcher")
    )
    owners = [stable.world.tree.node(PATHS.owner("t", number)) for number in (0, 1)]
    stable.member.advance({T0: 5})

    stable.send(START_FETCHER, T0, T1, thread="a-7")
    stable.poll()

    assert (stable.commands, raw(stable)["running"]) == ([], {"t": {"0": 5, "1": 0}})
    assert [stable.world.tree.node(PATHS.owner("t", number)) for number in (0, 1)] == owners


def sent(life: Life) -> list[Command]:
    """The commands of the next turn, while the member does not read its channel."""
    life.world.turn()
    return [Command.parse("a command", life.world.tree.data(PATHS.command("a", name)) or b"") for name in life.commands]


def test_the_coordinator_stops_all_of_a_topic_before_it_starts_another_id(stable: Life) -> None:
    stable.world.topic("t", 4, "t-2")

    (order,) = sent(stable)

    assert (order.option, order.partitions or frozenset([T0, T1])) == (STOP_FETCHER, frozenset([T0, T1]))
    stable.poll()
    (order,) = sent(stable)
    assert (order.option, order.topics, len(order.started)) == (START_FETCHER, {"t": "t-2"}, 4)


# ---- lease and back-off


def until(renewals: list[tuple[float, float]], opened: float | None, timeout_s: float) -> float:
    """When a lease ends by the document's rule.

    :param renewals: when the sync of each was sent and answered; those without an answer are left out.
    :param opened: when the session was; None where the owner does not know, whose first renewal counts instead.
    """
    counted = 2 * [renewals[0][0] if opened is None else opened]
    answered = float("-inf")
    for sent_at, answered_at in renewals:
        if sent_at - answered >= 0.16 * timeout_s:
            counted.append(sent_at)
            answered = answered_at
    return min(counted[-2] + timeout_s * 2 / 3, counted[-3] + timeout_s * 11 / 12)


@pytest.mark.parametrize("seed", range(50))
def test_a_lease_ends_when_the_rule_says(seed: int) -> None:
    rule = step("Lease")
    assert "the earlier of s(n-1) + 2/3 T and s(n-2) + 11/12 T" in rule
    assert "0.16 T or more after the sync of the last counting renewal was *answered*" in rule
    draws, runtime, timeout_s = Random(seed), ManualRuntime(), 6.0
    opened = draws.choice([None, runtime.now, runtime.now - 0.5, runtime.now - 5])
    heard = Heard(opened) if opened is not None else None
    takes_s, fails = 0.0, False

    def answer() -> None:
        runtime.now += takes_s
        if fails:
            raise ConnectionLost("no answer")

    lease = Lease(MemoryTree().open(answer, timeout_s), runtime, lambda: None, "consumer", heard)
    assert (lease.is_held, lease.due_s) == (False, timeout_s / 6)
    renewals: list[tuple[float, float]] = []
    for _ in range(12):
        takes_s, fails = draws.choice([0.0, 0.1, 0.9]), draws.random() < 0.2
        sent_at = runtime.now
        with suppress(ConnectionLost):
            lease.renew()
            renewals.append((sent_at, runtime.now))
        expected = until(renewals, opened, timeout_s) - runtime.now if renewals else 0.0
        assert lease.left_s == pytest.approx(max(0.0, expected))
        assert lease.is_held == (lease.left_s > 0)
        runtime.now += draws.choice([0.0, 0.5, 0.9, 1.0, 1.5, 5.0])


def test_the_lease_is_renewed_at_once_after_registering(life: Life) -> None:
    assert "renew it at once after registering (before that nothing may be fetched), and every T/6" in step("Lease")

    assert life.member.may_fetch


def test_the_back_off_between_registrations_is_the_documents() -> None:
    rule = step("Back-off")
    first, longest, refused = (
        float(found[1])
        for text in (r"begins ([\d.]+) s after", r"each, (\d) s at most", r"group: ([\d.]+) s")
        if (found := re.search(text, rule))
    )
    runtime = ManualRuntime()
    backoff = RegistrationBackoff(runtime)

    def wait_s() -> float:
        began = runtime.now
        while backoff.is_running:
            runtime.now += 0.01
        return round(runtime.now - began, 1)

    def attempts(number: int) -> list[float]:
        found = []
        for _ in range(number):
            backoff.attempt()
            found.append(wait_s())
        return found

    assert attempts(8) == [min(longest, first * 2**number) for number in range(8)]
    backoff.succeeded(is_member=False)
    assert attempts(1) == [first]
    for number in range(7):
        backoff.succeeded(is_member=False)
        backoff.refused()
        assert wait_s() == min(longest, refused * 2**number)
    backoff.succeeded(is_member=True)
    backoff.refused()
    assert wait_s() == refused
    assert f"after {READ_AGAIN_S:.0f} s" in rule
