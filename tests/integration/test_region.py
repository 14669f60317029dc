"""Consistent regions of consumers: checkpoints, resets, and states that are exact (sources R12 to R24)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run, run_json, run_ok
from tests.support.client_side import Hooked, writes
from tests.support.region import PATHS, CountingRegion, running
from tests.support.stores import Reads, lost_reply
from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World
from zk_group.consumer.config import ConsumerConfig, Subscription
from zk_group.consumer.consumer import Consumer
from zk_group.consumer.logs.embedded.producer import Producer
from zk_group.consumer.membership import contributor
from zk_group.coordinator.term.metrics import CoordinatorMetrics
from zk_group.coordinator.zk.errors import Refused, UsageError
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.security.access import AUTH_VARIABLE, digest_identity
from zk_group.coordinator.zk.security.policy import AclPolicy
from zk_group.coordinator.zk.store import Create, SetData
from zk_group.coordinator.zk.wire import OPEN_ACL
from zk_group.coordinator.zk.znodes.paths import ACL_POLICY, REGIONS, GroupPaths
from zk_group.coordinator.zk.znodes.regions import Region, RegionRequest


@pytest.mark.parametrize("has_own", [True, False], ids=["policy", "no policy of its own"])
def test_secured_group_is_bound_only_to_a_region_that_an_operator_permits(
    world: World, r: CountingRegion, monkeypatch: pytest.MonkeyPatch, has_own: bool
) -> None:
    monkeypatch.setenv(AUTH_VARIABLE, "digest:all:secret")
    one_party = (digest_identity("all:secret"),)
    r.world.coordinator(sweep_interval_ms=200)
    r.topic(4)
    closed = AclPolicy(is_secure=True, coordinators=one_party, operators=one_party, members=one_party)
    world.put(GroupPaths("g").root)
    world.store.commit([Create(ACL_POLICY, replace(closed, members=()).to_bytes(), acl=OPEN_ACL)])
    if has_own:
        world.store.commit([Create(GroupPaths("g").acl, closed.to_bytes(), acl=OPEN_ACL)])

    r.member("c1")

    eventually(lambda: "not be bound to consistent region r" in (world.state("g").reason or ""), 10, "it is refused")
    assert world.store.get(PATHS.root) is None
    world.put(GroupPaths("g").acl, replace(closed, regions=("r",)).to_bytes())
    assert r.settles().groups == ("g",)


def test_member_resumes_after_its_checkpoint_by_a_watch(r: CountingRegion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contributor, "LOOK_AGAIN_S", 3600.0)
    _, two = r.starts("c1", "c2")
    two.drain_s = 0.2

    r.checkpoint()

    r.counts_on()


def test_operator_resets_a_region_to_an_earlier_checkpoint_or_the_initial_state(r: CountingRegion) -> None:
    one = r.joins("c1")
    first = r.checkpoint()
    r.counts_on()
    second = r.checkpoint()

    for to in (first, 0):
        assert r.reset(to).sequence == to
        assert one.resets[-1] == to
    assert "abandoned" in r.world.names(PATHS.checkpoint(second))


def test_a_newcomer_that_names_no_region_or_another_is_refused(r: CountingRegion) -> None:
    r.joins("c1")

    for name, other in (("c2", ""), ("c3", "another")):
        newcomer = r.member(name, region=other)
        error = eventually(lambda newcomer=newcomer: newcomer.errors, 10, "it is refused")[0]
        assert type(error).__name__ == "InconsistentRegion"
        assert "the group is in consistent region r" in str(error)
        newcomer.vanish()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "client"])
def test_states_are_exact_through_joins_kills_and_leaves_with_every_strategy(r: CountingRegion, strategy: str) -> None:
    r.topic(6)
    how: dict[str, Any] = {"assignment": "client"} if strategy == "client" else {"protocols": (strategy,)}
    r.joins("c1", **how)
    two = r.joins("c2", **how)
    r.counts_on()
    before = r.now
    three = r.joins("c3", **how)
    joined = r.now
    assert joined.sequence > before.sequence, "a joining member is preceded by a checkpoint"
    r.counts_on()

    assert r.reset_by(two.vanish).sequence == joined.sequence
    r.settles()
    r.counts_on()
    before = r.now
    r.reset_by(three.close)
    r.settles()
    r.counts_on()
    assert r.now.sequence > before.sequence, "a leaving member takes a checkpoint first"


def test_leaver_asks_again_after_an_aborted_checkpoint(r: CountingRegion, caplog: pytest.LogCaptureFixture) -> None:
    r.world.coordinator(drain_timeout_ms=300)
    one, two = r.starts("c1", "c2")
    two.has_finished = False
    before = r.now
    leaving = ThreadRuntime().spawn(one.close, "closing")
    r.aborted(before.next_sequence)
    eventually(lambda: two.consumer.region.state != "DRAINING", 10, "the other member resumes")

    two.has_finished = True

    leaving.join(20)
    assert r.now.sequence > before.next_sequence, "and another one is complete"
    assert "leaving without checkpoint" not in caplog.text
    r.settles()
    r.counts_on()


def test_member_leaving_without_a_checkpoint_logs_since_when_state_is_dropped(
    r: CountingRegion, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("zk_group.consumer.operator.region.SAVE_S", 0.5)
    one, two = r.starts("c1", "c2")
    sequence = r.checkpoint()
    two.has_finished = False

    one.close()

    (said,) = [each.getMessage() for each in caplog.records if "leaving without checkpoint" in each.getMessage()]
    assert f"since={sequence}" in said and "none was complete within" in said
    two.has_finished = True
    r.settles()


def test_an_application_takes_the_region_back_itself_but_not_for_ever(r: CountingRegion) -> None:
    r.world.coordinator(max_consecutive_resets=2)
    one = r.joins("c1")
    for _ in range(2):
        r.reset_by(lambda: one.consumer.request_reset("its disk is full"))

    one.consumer.request_reset("its disk is full")

    assert "max_consecutive_resets" in r.fails()
    eventually(lambda: not one.consumer.assignment(), 10, "no member has a partition")
    r.reset()


def test_checkpoint_with_a_state_from_after_a_reset_request_is_never_completed(r: CountingRegion) -> None:
    """The request and the contribution come within one turn, after it has read the region."""
    r.world.coordinator(wrap=Reads)
    one = r.joins("c1")
    before = r.now
    one.has_finished = False
    r.asks("checkpoint")
    eventually(lambda: one.consumer.region.state == "DRAINING", 10, "it drains")

    def asks_and_contributes() -> None:
        asked = RegionRequest("reset", "c1", "its state is wrong", by_application=True, reset=before.reset)
        r.world.store.commit([SetData(PATHS.request, asked.to_bytes(), 0)])
        one.has_finished = True
        eventually(lambda: "g~c1" in r.world.names(PATHS.checkpoint(1)), 10, "it contributes")

    r.world.front(Reads).after(PATHS.root, asks_and_contributes)
    after = r.reset_by(lambda: r.asks("checkpoint"))  # the turn of any request

    assert after.sequence == 0 and "aborted" in r.world.names(PATHS.checkpoint(1))


def test_member_that_fails_to_drain_leaves_and_the_region_resumes_its_checkpoint(r: CountingRegion) -> None:
    _, two = r.starts("c1", "c2")
    sequence, before = r.checkpoint(), r.now
    two.fails_to_drain = True

    r.asks("checkpoint")

    errors = eventually(lambda: two.errors, 10, "it is notified")
    assert type(errors[0]).__name__ == "DrainFailed" and "the disk is full" in str(errors[0])
    two.fails_to_drain = False
    assert running(r.world, above=before.reset).sequence >= sequence
    r.counts_on()


def test_damaged_file_of_a_state_fails_the_region_and_evicts_no_reader(r: CountingRegion, tmp_path: Path) -> None:
    one = r.joins("c1", checkpoint_dir=str(tmp_path), max_poll_interval_ms=3000)
    one.padding = b"x" * 10_000
    given = r.given(r.checkpoint())["g~c1"]
    assert given.file is not None and not given.states
    r.reset()

    file = tmp_path / given.file.name
    file.write_bytes(b"y" * file.stat().st_size)
    r.asks("reset")

    reason = r.fails()
    assert "is damaged" in reason and "`zk-coordinator regions reset r --to`" in reason
    assert one.consumer.member.registrations == 1


def test_group_that_joins_a_region_costs_the_others_no_work(r: CountingRegion) -> None:
    one = r.joins("c1")
    before = r.now

    other = r.joins("h~o1")

    assert r.now.sequence > before.sequence and r.now.groups == ("g", "h"), "a checkpoint was first"
    assert one.resets[-1] == r.now.sequence
    assert other.resets == [r.now.sequence] and r.now.reset == before.reset + 1


def test_member_that_joins_a_region_without_members_waits_for_no_checkpoint(r: CountingRegion) -> None:
    for each, group in zip(r.starts("c1", "h~o1"), "gh", strict=True):
        each.vanish()
        r.emptied(group)

    r.joins("c1")


def test_partitions_that_are_added_begin_at_their_beginning_and_cost_no_work(r: CountingRegion) -> None:
    r.topic(2)
    r.joins("c1")
    before = r.now

    after = r.reset_by(lambda: r.topic(4))

    assert after.sequence > before.sequence


def test_offset_lost_by_the_log_fails_the_region_with_a_remedy(r: CountingRegion, tmp_path: Path) -> None:
    r.world.coordinator(sweep_interval_ms=300)
    r.topic(2)
    one = r.joins("c1")
    r.checkpoint()
    r.log.lost_below = r.log.end + 100
    r.log.end = r.log.lost_below + 10

    r.asks("reset")

    reason, raised = r.fails(), [str(e) for e in one.errors if type(e).__name__ == "OffsetOutOfRange"]
    assert "t-" in reason and raised
    for text in (reason, *raised):
        assert "`zk-coordinator regions reset r --to NUMBER`, or `--to-initial`" in text
        assert "`regions remove-group r GROUP`" in text and "auto_offset_reset" not in text

    one.close()
    r.emptied()
    with Producer.for_store(r.world.store, tmp_path / "log", r.world.brokers) as producer:
        for number in range(2):
            producer.send_batch("t", number, [b"x"] * r.log.end)
    to = ["--topic", "t", "--to-offset", str(r.log.lost_below), "--log-dir", str(tmp_path / "log"), "--execute"]
    refused = run(r.zk, "groups", "reset-offsets", "g", *to)
    assert refused.exit_code == 2 and "in consistent region r: reset it with `regions reset r`" in refused.stderr
    run_ok(r.zk, "regions", "remove-group", "r", "g")
    eventually(lambda: r.world.data(PATHS.root) is None, 15, "the region without a group is removed")
    run_ok(r.zk, "groups", "reset-offsets", "g", *to)
    again = r.member("c1")
    eventually(lambda: again.by_key == {"t-0": 10, "t-1": 10}, 20, "it starts again from the log's beginning")


def test_a_commit_and_a_seek_are_refused_in_a_sentence(r: CountingRegion) -> None:
    one = r.joins("c1")

    for act in (one.consumer.commit, one.consumer.seek_to_beginning):
        with pytest.raises(UsageError, match="is not for a consistent region"):
            act()
    with pytest.raises(UsageError, match="enable_auto_commit is not for a consistent region"):
        ConsumerConfig(zk=r.zk, group="g", region="r", enable_auto_commit=True)


def test_regions_are_shown_checkpointed_and_reset_from_the_command_line(r: CountingRegion) -> None:
    one = r.joins("c1")
    one.drain_s = 0.1

    run_ok(r.zk, "regions", "checkpoint", "r")
    eventually(lambda: r.now.sequence == 1, 10, "it is complete")
    (shown,) = run_json(r.zk, "regions", "list")
    assert (shown["region"], shown["state"], shown["checkpoint"], shown["members"]) == ("r", "Running", 1, 1)
    assert (r.now.kind, r.now.groups) == ("consumers", ("g",))
    assert shown["completed"] is not None and shown["open"] is None
    (given,) = run_json(r.zk, "regions", "describe", "r")
    assert (given["contribution"], given["partitions"]) == ("g~c1", 4)
    (ended,) = run_json(r.zk, "regions", "history", "r")
    assert (ended["state"], ended["contributions"], ended["participants"]) == ("completed", 1, 1)
    assert ended["ms"] >= given["drain_ms"] >= 100
    (state,) = run_json(r.zk, "groups", "describe", "g", "--state")
    assert (state["region"], state["ready_reset"]) == ("r", state["region_reset"])
    for name in ("list", "describe r", "history r"):
        watched = run_ok(r.zk, "regions", *name.split(), "--watch=0.1", "--times", "2", "-o", "json")
        assert [len(json.loads(line)["rows"]) for line in watched.stdout.splitlines()] == [1, 1], name
    (also,) = run_json(r.zk, "status")["regions"]
    assert also == shown and "Consistent regions:" in run_ok(r.zk, "status").stdout
    assert run(r.zk, "status", "--check").exit_code == 0
    before = r.now
    dry = run_json(r.zk, "regions", "reset", "r", "--to-initial")
    assert dry[0]["executed"] is False and r.now == before
    assert r.reset_by(lambda: run_ok(r.zk, "regions", "reset", "r", "--to-initial", "--execute")).sequence == 0
    for args, reason in (
        (("reset", "r", "--to", "7"), "region r has no complete checkpoint 7"),
        (("describe", "nowhere"), "there is no consistent region 'nowhere'"),
    ):
        refused = run(r.zk, "regions", *args)
        assert refused.exit_code != 0 and reason in refused.output, refused.output


def test_application_error_while_processing_takes_no_checkpoint_and_loses_no_record(r: CountingRegion) -> None:
    """Not all polled records were processed: no state may belong to these offsets."""
    r.world.coordinator()
    r.topic(2)
    config = ConsumerConfig(zk=r.zk, group="g", consumer="c1", region="r", session_timeout_ms=SESSION_MS)
    with pytest.raises(KeyboardInterrupt), Consumer(config, Subscription({"t": 1}), source=r.log) as consumer:
        eventually(lambda: consumer.poll(20), 20, "records come")
        running(r.world)
        raise KeyboardInterrupt
    assert r.now.sequence == 0

    r.joins("c2")


def test_a_reset_replaces_a_request_for_a_checkpoint_that_is_not_answered_yet(r: CountingRegion) -> None:
    service = r.world.coordinator()
    r.joins("c1")
    run_ok(r.zk, "pause", "g")
    run_ok(r.zk, "regions", "checkpoint", "r")
    assert run(r.zk, "regions", "checkpoint", "r").exit_code == 2, "a request is pending already"
    before = r.now

    run_ok(r.zk, "regions", "reset", "r", "--to-initial", "--execute")

    run_ok(r.zk, "resume", "g")
    running(r.world, above=before.reset)
    r.exact()
    assert service.term is not None


@pytest.mark.parametrize(("args", "asked"), [((), None), (("--to", "1"), 1), (("--to-initial",), 0)])
def test_coordinator_chooses_a_resets_checkpoint(r: CountingRegion, args: Sequence[str], asked: int | None) -> None:
    """One that completes after the command has read the region is not abandoned."""
    service = r.world.coordinator()
    r.joins("c1")
    r.checkpoint()
    second = r.checkpoint()
    r.world.stop_coordinator(service)

    run_ok(r.zk, "regions", "reset", "r", *args, "--execute")

    data = r.world.data(PATHS.request)
    assert data is not None and RegionRequest.parse(PATHS.request, data).sequence == asked
    assert r.reset_by(r.world.coordinator).sequence == (second if asked is None else asked)


def test_restarted_dynamic_member_resets_a_led_group_once(r: CountingRegion) -> None:
    _, two = r.starts("c1", "c2", assignment="client")
    before, generation = r.now, r.world.state("g").generation

    two.vanish()
    r.member("c2", assignment="client")

    r.world.stable("g", 2, above=generation)
    after = r.settles(before.reset)
    assert after.reset - before.reset <= r.world.state("g").generation - generation + 1


def test_foreign_znodes_below_checkpoints_stop_no_group_or_region(r: CountingRegion) -> None:
    r.joins("c1")
    sequence = r.checkpoint()
    given = r.world.data(PATHS.contribution(sequence, "g", "c1")) or b""
    r.world.put(PATHS.contribution(sequence, "g", "zz"), b"{")
    r.world.put(PATHS.contribution(sequence, "g", "zy"), given.replace(b'"0":40', b'"0":3'))
    r.world.put(PATHS.checkpoint(sequence + 1))

    later = r.checkpoint()
    r.reset(sequence)

    assert later > sequence + 1
    # The coordinator removes a request without data at once: a hand puts a child below it before.
    eventually(lambda: r.world.put(f"{PATHS.request}/stray") is None, 5, "it is there", ignoring=(Refused,))
    eventually(lambda: r.world.data(PATHS.request) is None, 20, "the request is removed with its children")
    r.counts_on()


def test_a_region_runs_after_a_lost_reply_to_its_reset(r: CountingRegion) -> None:
    r.world.coordinator(wrap=Hooked)
    r.joins("c1")
    r.world.front(Hooked).after(writes(PATHS.root, b"Resetting"), lost_reply)

    r.reset()

    assert r.world.front(Hooked).has_acted


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


def test_metrics_of_a_region_count_checkpoints_and_resets_until_its_removal(r: CountingRegion) -> None:
    metrics = CoordinatorMetrics()
    r.world.coordinator(metrics=metrics, sweep_interval_ms=300)
    one = r.joins("c1")
    r.checkpoint()
    r.reset()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"zk_group_{name}", labels)

    assert value("checkpoints_total", region="r", result="completed") == 1
    assert value("checkpoint_duration_seconds_count", result="completed") == 1
    assert value("region_resets_total", region="r", cause="generation") == 1
    assert value("region_resets_total", region="r", cause="operator") == 1
    eventually(lambda: value("region_state", region="r", state="Running") == 1, 5, "the gauge follows the znode")
    assert value("region_state", region="r", state="Failed") == 0
    age = value("checkpoint_age_seconds", region="r")
    assert age is not None and 0 <= age < 60
    one.close()
    r.emptied()
    run_ok(r.zk, "regions", "remove-group", "r", "g")
    eventually(lambda: value("region_state", region="r", state="Running") is None, 10, "its metrics are gone")
    assert value("checkpoints_total", region="r", result="completed") is None
