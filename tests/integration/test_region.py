"""Consistent regions of consumers: checkpoints, resets, and states that are exact (seed 002)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consumer.config import ConsumerConfig, Subscription
from consumer.consumer import Consumer
from consumer.logs.embedded.producer import Producer
from consumer.membership import contributor
from coordinator.term.metrics import CoordinatorMetrics
from coordinator.zk.errors import OutcomeUnknown, Refused, UsageError
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.security.access import AUTH_VARIABLE, digest_identity
from coordinator.zk.security.policy import AclPolicy
from coordinator.zk.store import Create, Operation, SetData, Store
from coordinator.zk.wire import OPEN_ACL
from coordinator.zk.znodes.paths import ACL_POLICY, REGIONS, GroupPaths
from coordinator.zk.znodes.regions import Region, RegionRequest
from tests.support.cli import run, run_json, run_ok
from tests.support.memlog import MemoryLog
from tests.support.region import PATHS, Counting, checkpoint, contributions, exact, region, requested, running
from tests.support.stores import FrontStore
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(end=40)


def test_a_group_whose_members_name_a_region_is_bound_to_it_and_runs(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)

    one = counting("c1")

    found = running(world)
    assert (found.kind, found.groups, found.sequence) == ("consumers", ("g",), 0)
    exact(log, 4, one)
    state = world.stable("g", 1)
    assert state.region is not None and state.region.name == "r"


@pytest.mark.parametrize("has_own", [True, False], ids=["policy", "no policy of its own"])
def test_secured_group_is_bound_only_to_a_region_that_an_operator_permits(
    world: World, log: MemoryLog, counting: Callable[..., Counting], monkeypatch: pytest.MonkeyPatch, has_own: bool
) -> None:
    monkeypatch.setenv(AUTH_VARIABLE, "digest:all:secret")
    one_party = (digest_identity("all:secret"),)
    world.coordinator(sweep_interval_ms=200)
    world.topic("t", 4)
    closed = AclPolicy(is_secure=True, coordinators=one_party, operators=one_party, members=one_party)
    world.put(GroupPaths("g").root)
    world.store.commit([Create(ACL_POLICY, replace(closed, members=()).to_bytes(), acl=OPEN_ACL)])
    if has_own:
        world.store.commit([Create(GroupPaths("g").acl, closed.to_bytes(), acl=OPEN_ACL)])

    one = counting("c1")

    eventually(
        lambda: "may not be bound to consistent region r" in (world.state("g").reason or ""), 10, "it is refused"
    )
    assert world.store.get(PATHS.root) is None
    world.put(GroupPaths("g").acl, replace(closed, regions=("r",)).to_bytes())
    assert running(world).groups == ("g",)
    exact(log, 4, one)


def test_checkpoint_holds_offsets_and_the_state_of_exactly_the_records_below_them(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1")
    running(world)
    exact(log, 4, one)

    sequence = checkpoint(world)

    given = contributions(world, sequence)
    assert set(given) == {"g~c1"}
    assert set(given["g~c1"].offsets.values()) == {log.end}
    log.end = 80
    exact(log, 4, one)


def test_member_resumes_after_its_checkpoint_without_a_polling_timer(
    world: World, log: MemoryLog, counting: Callable[..., Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contributor, "LOOK_AGAIN_S", 3600.0)
    world.coordinator()
    world.topic("t", 4)
    one, two = counting("c1"), counting("c2")
    two.drain_s = 0.2
    running(world)
    world.stable("g", 2)
    exact(log, 4, one, two)

    checkpoint(world)

    log.end += 10
    exact(log, 4, one, two)


def test_records_counted_by_a_killed_member_since_the_checkpoint_count_once(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one, two = counting("c1"), counting("c2")
    running(world)
    world.stable("g", 2)
    exact(log, 4, one, two)
    sequence = checkpoint(world)
    log.end = 70
    exact(log, 4, one, two)
    before = region(world)

    two.vanish()

    after = running(world, above=before.reset)
    assert after.sequence == sequence and after.reset > before.reset
    exact(log, 4, one)
    assert one.resets[-1] == sequence
    log.end = 90
    exact(log, 4, one)


def test_joining_member_triggers_a_checkpoint_before_the_generation(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1")
    before = running(world)
    exact(log, 4, one)

    two = counting("c2")

    after = running(world, above=before.reset)
    assert after.sequence > before.sequence, "a checkpoint was first"
    world.stable("g", 2)
    assert after.sequence in one.resets
    log.end = 60
    exact(log, 4, one, two)


def test_operator_resets_a_region_to_an_earlier_checkpoint_or_the_initial_state(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1")
    running(world)
    exact(log, 4, one)
    first = checkpoint(world)
    log.end = 50
    exact(log, 4, one)
    second = checkpoint(world)

    for to in (first, 0):
        before = region(world).reset
        requested(world, "reset", sequence=to)
        found = running(world, above=before)
        assert found.sequence == to
        exact(log, 4, one)
        assert one.resets[-1] == to
    assert "abandoned" in world.names(PATHS.checkpoint(second))


def test_a_newcomer_that_names_no_region_or_another_is_refused(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    counting("c1")
    running(world)

    for name, other in (("c2", ""), ("c3", "another")):
        newcomer = counting(name, region=other)
        error = eventually(lambda newcomer=newcomer: newcomer.errors, 10, "it is refused")[0]
        assert type(error).__name__ == "InconsistentRegion"
        assert "the group is in consistent region r" in str(error)
        newcomer.vanish()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "client"])
def test_states_are_exact_through_joins_kills_and_leaves_with_every_strategy(
    world: World, log: MemoryLog, counting: Callable[..., Counting], strategy: str
) -> None:
    world.coordinator()
    world.topic("t", 6)
    how: dict[str, Any] = {"assignment": "client"} if strategy == "client" else {"protocols": (strategy,)}
    one = counting("c1", **how)
    running(world)
    exact(log, 6, one)
    two = counting("c2", **how)
    world.stable("g", 2)
    log.end = 60
    exact(log, 6, one, two)
    three = counting("c3", **how)
    world.stable("g", 3)
    log.end = 80
    exact(log, 6, one, two, three)
    generation = world.state("g").generation

    two.vanish()
    world.stable("g", 2, above=generation)
    log.end = 100
    exact(log, 6, one, three)
    before = region(world)
    three.close()

    world.stable("g", 1, above=generation + 1)
    log.end = 120
    exact(log, 6, one)
    assert region(world).sequence > before.sequence, "a leaving member takes a checkpoint first"


def test_a_member_that_leaves_asks_again_when_its_checkpoint_is_aborted(
    world: World, log: MemoryLog, counting: Callable[..., Counting], caplog: pytest.LogCaptureFixture
) -> None:
    world.coordinator(drain_timeout_ms=300)
    world.topic("t", 4)
    one, two = counting("c1"), counting("c2")
    world.stable("g", 2)
    running(world)
    exact(log, 4, one, two)
    two.has_finished = False
    before = region(world)
    leaving = ThreadRuntime().spawn(one.close, "closing")
    aborted = PATHS.checkpoint(before.next_sequence)
    eventually(lambda: "aborted" in world.names(aborted), 10, "its checkpoint is aborted")
    eventually(lambda: two.consumer.region.state != "DRAINING", 10, "the other member resumes")

    two.has_finished = True

    leaving.join(20)
    assert region(world).sequence > before.next_sequence, "and another one is complete"
    assert "leaving without checkpoint" not in caplog.text
    world.stable("g", 1)
    log.end = 60
    exact(log, 4, two)


def test_member_leaving_without_a_checkpoint_logs_since_when_state_is_dropped(
    world: World,
    log: MemoryLog,
    counting: Callable[..., Counting],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("consumer.operator.region.SAVE_S", 0.5)
    world.coordinator()
    world.topic("t", 4)
    one, two = counting("c1"), counting("c2")
    world.stable("g", 2)
    running(world)
    sequence = checkpoint(world)
    exact(log, 4, one, two)
    two.has_finished = False

    one.close()

    (said,) = [each.getMessage() for each in caplog.records if "leaving without checkpoint" in each.getMessage()]
    assert f"since={sequence}" in said and "none was complete within" in said
    two.has_finished = True
    world.stable("g", 1)
    exact(log, 4, two)


def test_static_member_restart_restores_its_state_and_that_of_every_member(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1")
    two = counting("s", group_instance_id="s")
    world.stable("g", 2)
    running(world)
    exact(log, 4, one, two)
    checkpoint(world)
    before, generation = region(world).reset, world.state("g").generation

    two._stop.set()
    two.thread.join(10)
    log.end = 60
    again = counting("s", group_instance_id="s")

    running(world, above=before)
    exact(log, 4, one, again)
    assert world.state("g").generation == generation, "its seat kept its partitions"


@pytest.mark.parametrize("assignment", ["coordinator", "client"])
def test_static_restart_and_leave_between_two_coordinators_resets_the_region(
    world: World, log: MemoryLog, counting: Callable[..., Counting], assignment: str
) -> None:
    service = world.coordinator()
    world.topic("t", 4)
    one, two = counting("c1", assignment=assignment), counting("s", group_instance_id="s", assignment=assignment)
    world.stable("g", 2)
    running(world)
    exact(log, 4, one, two)
    checkpoint(world)
    before = region(world).reset
    world.stop_coordinator(service)
    two._stop.set()
    two.thread.join(10)
    again = counting("s", group_instance_id="s", assignment=assignment)
    eventually(lambda: again.consumer.member.registrations, 10, "it has registered")
    again.close()

    world.coordinator()

    eventually(lambda: region(world).reset > before, 10, "the region is reset")


def test_an_application_takes_the_region_back_itself_but_not_for_ever(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator(max_consecutive_resets=2)
    world.topic("t", 4)
    one = counting("c1")
    running(world)
    for _ in range(2):
        before = region(world).reset
        one.consumer.request_reset("its disk is full")
        running(world, above=before)
    exact(log, 4, one)

    one.consumer.request_reset("its disk is full")

    failed = eventually(lambda: (found := region(world)).state == "Failed" and found, 10, "the region has failed")
    assert "max_consecutive_resets" in (failed.reason or "")
    eventually(lambda: not one.consumer.assignment(), 10, "no member has a partition")
    requested(world, "reset")
    running(world, above=failed.reset)
    exact(log, 4, one)


def test_checkpoint_with_a_state_from_after_a_reset_request_is_never_completed(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    """The request and the contribution come within one turn, after it has read the region."""
    between: list[Callable[[], None]] = []

    class Slow(FrontStore):
        def get_many(self, paths: Sequence[str], watch: Any = None) -> list[Any]:
            found = super().get_many(paths, watch)
            if PATHS.root in paths and between:
                between.pop()()
            return found

    world.coordinator(wrap=Slow)
    world.topic("t", 4)
    one = counting("c1")
    before = running(world)
    exact(log, 4, one)
    one.has_finished = False
    requested(world, "checkpoint")
    eventually(lambda: one.consumer.region.state == "DRAINING", 10, "it drains")

    def asks_and_contributes() -> None:
        asked = RegionRequest("reset", "c1", "its state is wrong", by_application=True, reset=before.reset)
        world.store.commit([SetData(PATHS.request, asked.to_bytes(), 0)])
        one.has_finished = True
        eventually(lambda: "g~c1" in world.names(PATHS.checkpoint(1)), 10, "it contributes")

    between.append(asks_and_contributes)
    requested(world, "checkpoint")  # the turn of any request

    after = running(world, above=before.reset)
    assert after.sequence == 0 and "aborted" in world.names(PATHS.checkpoint(1))
    exact(log, 4, one)


def test_member_that_fails_to_drain_leaves_and_the_region_resumes_its_checkpoint(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one, two = counting("c1"), counting("c2")
    world.stable("g", 2)
    running(world)
    sequence = checkpoint(world)
    before = region(world).reset
    two.fails_to_drain = True

    requested(world, "checkpoint")

    errors = eventually(lambda: two.errors, 10, "it is notified")
    assert type(errors[0]).__name__ == "DrainFailed" and "the disk is full" in str(errors[0])
    two.fails_to_drain = False
    assert running(world, above=before).sequence >= sequence
    log.end = 70
    exact(log, 4, one, two)


def test_large_states_are_in_files_and_a_damaged_file_fails_the_region(
    world: World, log: MemoryLog, counting: Callable[..., Counting], tmp_path: Path
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1", checkpoint_dir=str(tmp_path))
    one.padding = b"x" * 10_000
    running(world)
    exact(log, 4, one)
    sequence = checkpoint(world)
    given = contributions(world, sequence)["g~c1"]
    assert given.file is not None and not given.states
    before = region(world).reset

    requested(world, "reset")

    running(world, above=before)
    exact(log, 4, one)
    (tmp_path / given.file.name).write_bytes(b"y" * given.file.size)
    requested(world, "reset")
    failed = eventually(lambda: (found := region(world)).state == "Failed" and found, 30, "the region has failed")
    assert "is damaged" in (failed.reason or "") and "`zk-coordinator regions reset r --to`" in (failed.reason or "")


def test_a_damaged_state_fails_the_region_before_its_reader_is_evicted(
    world: World, log: MemoryLog, counting: Callable[..., Counting], tmp_path: Path
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1", checkpoint_dir=str(tmp_path), max_poll_interval_ms=3000)
    one.padding = b"x" * 10_000
    running(world)
    exact(log, 4, one)
    file = contributions(world, checkpoint(world))["g~c1"].file
    assert file is not None

    (tmp_path / file.name).write_bytes(b"y" * file.size)
    requested(world, "reset")

    failed = eventually(lambda: (found := region(world)).state == "Failed" and found, 10, "the region has failed")
    assert "is damaged" in (failed.reason or "")
    assert one.consumer.member.registrations == 1


def test_group_that_joins_a_region_costs_the_others_no_work(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1")
    before = running(world)
    exact(log, 4, one)

    other = counting("o1", group="h")

    after = running(world, above=before.reset)
    assert after.sequence > before.sequence and after.groups == ("g", "h"), "a checkpoint was first"
    assert one.resets[-1] == after.sequence
    exact(log, 4, one)
    exact(log, 4, other)
    assert other.resets == [after.sequence] and after.reset == before.reset + 1


def test_member_that_joins_a_region_without_members_waits_for_no_checkpoint(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one, other = counting("c1"), counting("o1", group="h")
    eventually(lambda: region(world).groups == ("g", "h"), 10, "both groups are bound")
    running(world)
    for each, group in ((one, "g"), (other, "h")):
        each.vanish()
        eventually(lambda: world.state(group).state == "Empty", 20, "the group is Empty")  # noqa: B023
    before = region(world).reset

    again = counting("c1")

    running(world, above=before)
    exact(log, 2, again)


def test_groups_of_a_region_are_checkpointed_and_reset_together_even_when_empty(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one, other = counting("c1"), counting("o1", group="h")
    eventually(lambda: region(world).groups == ("g", "h"), 10, "both groups are bound")
    running(world)
    exact(log, 4, one)
    exact(log, 4, other)
    sequence = checkpoint(world)
    assert set(contributions(world, sequence)) == {"g~c1", "h~o1"}
    before = region(world).reset

    other.vanish()

    running(world, above=before)
    exact(log, 4, one)
    later = checkpoint(world)
    assert set(contributions(world, later)) == {"g~c1", "h~o1"}, "contributions of absent members are copied"
    log.end = 60
    back = counting("o2", group="h")
    exact(log, 4, back)
    exact(log, 4, one)


def test_a_coordinator_that_dies_at_any_time_leaves_the_states_exact(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    services = [world.coordinator(checkpoint_interval_ms=300)]
    world.topic("t", 4)
    one, two = counting("c1"), counting("c2")
    running(world)
    for number in range(4):
        services.append(world.coordinator(checkpoint_interval_ms=300))
        log.end += 20
        world.session_of(world.elected(*services)).close()
        world.stop_coordinator(services.pop(0))
        if number % 2:
            two.vanish()
            two = counting(f"c{number + 3}")

    world.stable("g", 2)
    running(world)
    exact(log, 4, one, two)
    before = region(world).sequence
    eventually(lambda: region(world).sequence > before, 10, "checkpoints continue")


def test_partitions_that_are_added_begin_at_their_beginning_and_cost_no_work(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = counting("c1")
    before = running(world)
    exact(log, 2, one)

    world.more_partitions("t", 4)

    after = running(world, above=before.reset)
    assert after.sequence > before.sequence
    exact(log, 4, one)


def test_offset_lost_by_the_log_fails_the_region_with_a_remedy_and_is_not_skipped(
    world: World, log: MemoryLog, counting: Callable[..., Counting], tmp_path: Path
) -> None:
    world.coordinator(sweep_interval_ms=300)
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    exact(log, 2, one)
    checkpoint(world)
    log.lost_below = log.end + 100
    log.end = log.lost_below + 10

    requested(world, "reset")

    failed = eventually(lambda: (found := region(world)).state == "Failed" and found, 15, "the region has failed")
    reason, raised = failed.reason or "", [str(e) for e in one.errors if type(e).__name__ == "OffsetOutOfRange"]
    assert "t-" in reason and raised
    for text in (reason, *raised):
        assert "`zk-coordinator regions reset r --to NUMBER`, or `--to-initial`" in text
        assert "`regions remove-group r GROUP`" in text and "auto_offset_reset" not in text

    one.close()
    eventually(lambda: world.state("g").state == "Empty", 10, "the group is Empty")
    with Producer.for_store(world.store, tmp_path / "log", world.brokers) as producer:
        for number in range(2):
            producer.send_batch("t", number, [b"x"] * log.end)
    to = ["--topic", "t", "--to-offset", str(log.lost_below), "--log-dir", str(tmp_path / "log"), "--execute"]
    refused = run(world.zk, "groups", "reset-offsets", "g", *to)
    assert refused.exit_code == 2 and "in consistent region r: reset it with `regions reset r`" in refused.stderr
    run_ok(world.zk, "regions", "remove-group", "r", "g")
    eventually(lambda: world.data(PATHS.root) is None, 15, "the region without a group is removed")
    run_ok(world.zk, "groups", "reset-offsets", "g", *to)
    again = counting("c1")
    eventually(lambda: again.by_key == {"t-0": 10, "t-1": 10}, 20, "it starts again from the log's beginning")


def test_a_commit_and_a_seek_are_refused_in_a_sentence(world: World, counting: Callable[..., Counting]) -> None:
    world.coordinator()
    world.topic("t", 1)
    one = counting("c1")
    running(world)

    for act in (one.consumer.commit, one.consumer.seek_to_beginning):
        with pytest.raises(UsageError, match="is not for a consistent region"):
            act()
    with pytest.raises(UsageError, match="enable_auto_commit is not for a consistent region"):
        ConsumerConfig(zk=world.zk, group="g", region="r", enable_auto_commit=True)


def test_regions_are_shown_checkpointed_and_reset_from_the_command_line(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one = counting("c1")
    one.drain_s = 0.1
    running(world)
    exact(log, 4, one)

    run_ok(world.zk, "regions", "checkpoint", "r")
    eventually(lambda: region(world).sequence == 1, 10, "it is complete")
    (shown,) = run_json(world.zk, "regions", "list")
    assert (shown["region"], shown["state"], shown["checkpoint"], shown["members"]) == ("r", "Running", 1, 1)
    assert shown["completed"] is not None and shown["open"] is None
    (given,) = run_json(world.zk, "regions", "describe", "r")
    assert (given["contribution"], given["partitions"]) == ("g~c1", 4)
    (ended,) = run_json(world.zk, "regions", "history", "r")
    assert (ended["state"], ended["contributions"], ended["participants"]) == ("completed", 1, 1)
    assert ended["ms"] >= given["drain_ms"] >= 100
    (state,) = run_json(world.zk, "groups", "describe", "g", "--state")
    assert (state["region"], state["ready_reset"]) == ("r", state["region_reset"])
    for name in ("list", "describe r", "history r"):
        watched = run_ok(world.zk, "regions", *name.split(), "--watch=0.1", "--times", "2", "-o", "json")
        assert [len(json.loads(line)["rows"]) for line in watched.stdout.splitlines()] == [1, 1], name
    (also,) = run_json(world.zk, "status")["regions"]
    assert also == shown and "Consistent regions:" in run_ok(world.zk, "status").stdout
    assert run(world.zk, "status", "--check").exit_code == 0
    before = region(world)
    dry = run_json(world.zk, "regions", "reset", "r", "--to-initial")
    assert dry[0]["executed"] is False and region(world) == before
    run_ok(world.zk, "regions", "reset", "r", "--to-initial", "--execute")
    assert running(world, above=before.reset).sequence == 0
    exact(log, 4, one)
    for args, reason in (
        (("reset", "r", "--to", "7"), "region r has no complete checkpoint 7"),
        (("describe", "nowhere"), "there is no consistent region 'nowhere'"),
    ):
        refused = run(world.zk, "regions", *args)
        assert refused.exit_code != 0 and reason in refused.output, refused.output


def test_application_error_while_processing_takes_no_checkpoint_and_loses_no_record(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    """Not all polled records were processed: no state may belong to these offsets."""
    world.coordinator()
    world.topic("t", 2)
    config = ConsumerConfig(zk=world.zk, group="g", consumer="c1", region="r", session_timeout_ms=SESSION_MS)
    with pytest.raises(KeyboardInterrupt), Consumer(config, Subscription({"t": 1}), source=log) as consumer:
        eventually(lambda: consumer.poll(20), 20, "records come")
        running(world)
        raise KeyboardInterrupt
    assert region(world).sequence == 0

    two = counting("c2")

    exact(log, 2, two)


def test_partitions_without_an_owner_are_carried_over_checkpoints_and_restored(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    for topic in "tuv":
        world.topic(topic, 1)
    one = counting("c1", topics={"t": 1, "u": 1, "v": 1})
    running(world)
    eventually(lambda: len(one.by_partition) == 3 and set(one.by_partition.values()) == {log.end}, 20, "all is counted")
    for left in ({"t": 1, "u": 1}, {"t": 1}):
        before = region(world)
        one.consumer.subscribe(Subscription(left))
        running(world, above=before.reset)
        assert region(world).sequence > before.sequence
        checkpoint(world)
    end, log.end = log.end, log.end + 20

    before = region(world)
    one.consumer.subscribe(Subscription({"t": 1, "u": 1, "v": 1}))

    running(world, above=before.reset)
    eventually(lambda: len(one.by_partition) == 3 and set(one.by_partition.values()) == {log.end}, 20, "all is counted")
    names = contributions(world, region(world).sequence)
    assert {part.topic for given in names.values() for part in given.offsets} == {"t", "u", "v"}, names
    initial = [world.data(PATHS.initial_offset("g", topic, 0)) for topic in "tuv"]
    assert all(initial) and end < log.end


def test_a_reset_replaces_a_request_for_a_checkpoint_that_is_not_answered_yet(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    service = world.coordinator()
    world.topic("t", 2)
    one = counting("c1")
    before = running(world)
    exact(log, 2, one)
    run_ok(world.zk, "pause", "g")
    run_ok(world.zk, "regions", "checkpoint", "r")
    assert run(world.zk, "regions", "checkpoint", "r").exit_code == 2, "a request is pending already"

    run_ok(world.zk, "regions", "reset", "r", "--to-initial", "--execute")

    run_ok(world.zk, "resume", "g")
    running(world, above=before.reset)
    exact(log, 2, one)
    assert service.term is not None


@pytest.mark.parametrize(("args", "asked"), [((), None), (("--to", "1"), 1), (("--to-initial",), 0)])
def test_reset_without_a_number_leaves_the_checkpoint_to_the_coordinator(
    world: World, log: MemoryLog, counting: Callable[..., Counting], args: Sequence[str], asked: int | None
) -> None:
    """One that completes after the command has read the region is not abandoned."""
    service = world.coordinator()
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    exact(log, 2, one)
    checkpoint(world)
    second, before = checkpoint(world), region(world)
    world.stop_coordinator(service)

    run_ok(world.zk, "regions", "reset", "r", *args, "--execute")

    data = world.data(PATHS.request)
    assert data is not None and RegionRequest.parse(PATHS.request, data).sequence == asked
    world.coordinator()
    assert running(world, above=before.reset).sequence == (second if asked is None else asked)
    exact(log, 2, one)


def test_restarted_dynamic_member_resets_a_led_group_once(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 4)
    one, two = counting("c1", assignment="client"), counting("c2", assignment="client")
    world.stable("g", 2)
    before = running(world)
    generation = world.state("g").generation

    two.vanish()
    two = counting("c2", assignment="client")

    world.stable("g", 2, above=generation)
    after = running(world, above=before.reset)
    exact(log, 4, one, two)
    assert after.reset - before.reset <= world.state("g").generation - generation + 1


def test_foreign_znodes_below_checkpoints_and_requests_stop_no_group_or_region(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    world.coordinator()
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    exact(log, 2, one)
    sequence = checkpoint(world)
    given = world.data(PATHS.contribution(sequence, "g", "c1")) or b""
    world.put(PATHS.contribution(sequence, "g", "zz"), b"{")
    world.put(PATHS.contribution(sequence, "g", "zy"), given.replace(b'"0":40', b'"0":3'))
    world.put(PATHS.checkpoint(sequence + 1))
    before = region(world)

    later = checkpoint(world)
    requested(world, "reset", sequence=sequence)

    assert later > sequence + 1
    running(world, above=before.reset)
    exact(log, 2, one)

    # The coordinator removes a request without data at once: the hand is quicker the next time.
    def is_put() -> bool:
        world.put(f"{PATHS.request}/stray")
        return True

    eventually(is_put, 5, "it is there", ignoring=(Refused,))
    eventually(lambda: world.data(PATHS.request) is None, 20, "the request is removed with its children")
    log.end = 60
    exact(log, 2, one)


class _LosesOneReply(FrontStore):
    """Loses the reply of the next multi that writes a znode."""

    path = ""

    def commit(self, operations: Sequence[Operation]) -> list[str]:
        found = self.behind.commit(operations)
        if self.path and any(isinstance(each, SetData) and each.path == self.path for each in operations):
            self.path = ""
            raise OutcomeUnknown("the reply was lost")
        return found


def test_group_turns_are_requested_after_a_lost_reply_to_a_regions_multi(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    fronts: list[_LosesOneReply] = []

    def wrap(store: Store) -> Store:
        fronts.append(_LosesOneReply(store))
        return fronts[-1]

    world.coordinator(wrap=wrap)
    world.topic("t", 2)
    one = counting("c1")
    before = running(world)
    exact(log, 2, one)
    fronts[0].path = PATHS.root

    requested(world, "reset")

    running(world, above=before.reset)
    exact(log, 2, one)
    assert fronts[0].path == ""


def test_status_reports_unreadable_regions_with_their_path_and_failed_regions(world: World) -> None:
    world.coordinator()
    world.put(PATHS.root, b"{")
    failed = Region(state="Failed", reason="c1: the disk is full", groups=("g",))
    world.put(f"{REGIONS}/other", failed.to_bytes())

    status = run(world.zk, "status", "--check", "-o", "json")

    found = {(each["check"], each["region"], each["message"]) for each in json.loads(status.stdout)["findings"]}
    assert status.exit_code == 5
    assert ("region-failed", "other", "Failed, its members have stopped (c1: the disk is full)") in found
    assert any(check == "unreadable" and PATHS.root in message for check, _, message in found), found


def test_metrics_of_a_region_count_checkpoints_and_resets_until_its_removal(
    world: World, log: MemoryLog, counting: Callable[..., Counting]
) -> None:
    metrics = CoordinatorMetrics()
    world.coordinator(metrics=metrics, sweep_interval_ms=300)
    world.topic("t", 2)
    one = counting("c1")
    running(world)
    exact(log, 2, one)
    checkpoint(world)
    before = region(world).reset
    requested(world, "reset")
    running(world, above=before)

    registry = metrics.registry

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"zk_group_{name}", labels)

    assert value("checkpoints_total", region="r", result="completed") == 1
    assert value("checkpoint_duration_seconds_count", result="completed") == 1
    assert value("region_resets_total", region="r", cause="generation") == 1
    assert value("region_resets_total", region="r", cause="operator") == 1
    eventually(lambda: value("region_state", region="r", state="Running") == 1, 5, "the gauge follows the znode")
    assert value("region_state", region="r", state="Failed") == 0
    age = value("checkpoint_age_seconds", region="r")
    assert age is not None and 0 <= age < 60
    one.close()
    eventually(lambda: world.state("g").state == "Empty", 10, "the group is Empty")
    run_ok(world.zk, "regions", "remove-group", "r", "g")
    eventually(lambda: value("region_state", region="r", state="Running") is None, 10, "its metrics are gone")
    assert value("checkpoints_total", region="r", result="completed") is None
