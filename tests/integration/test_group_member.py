"""The bare group protocol: jobs divided among members, each in one place at a time (sources G7)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from itertools import pairwise
from typing import Any

import pytest

from tests.support.wait import eventually
from tests.support.world import SESSION_MS, World
from zk_group.consumer.errors import AssignmentFailed, InconsistentGroupProtocol
from zk_group.consumer.group import Given, GroupMember, MemberCallbacks
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.lease import LEASE_SHARE
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.znodes.paths import GroupPaths

JOBS = ("compact", "index", "mail", "report", "sync")


def divide(protocol: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
    names = sorted(members)
    return {name: json.dumps(JOBS[place :: len(names)]).encode() for place, name in enumerate(names)}


Calls = list[tuple[str, str, float]]
"""The callbacks of all members, in order: member, callback, when."""


class Worker(MemberCallbacks):
    """A member whose thread polls until it is stopped; it works on its jobs between polls, while it may."""

    def __init__(self, world: World, name: str, calls: Calls, assign: Any = divide, **options: Any) -> None:
        options.setdefault("session_timeout_ms", SESSION_MS)
        self.name = name
        self.calls = calls
        self.error: BaseException | None = None
        self.failures: list[AssignmentFailed] = []
        self.is_stuck = ThreadRuntime().event()
        self.worked: list[tuple[float, float, str]] = []
        self.member = GroupMember(
            world.zk, "jobs", "named-jobs", {"even": b"{}"}, assign, self, member=name, **options
        )  # fmt: skip
        self._stop = ThreadRuntime().event()
        self.thread = ThreadRuntime().spawn(self._run, f"work-{name}")

    def on_assigned(self, given: Given) -> None:
        self._called("assigned")

    def on_revoked(self) -> None:
        self._called("revoked")

    def on_lost(self) -> None:
        self._called("lost")

    def _called(self, what: str) -> None:
        self.calls.append((self.name, what, ThreadRuntime().monotonic()))

    def times(self, what: str) -> list[float]:
        """When a callback of its name was called."""
        return [at for name, called, at in self.calls.copy() if (name, called) == (self.name, what)]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self.is_stuck.is_set():
                    self._stop.wait(0.01)
                    continue
                try:
                    self.member.poll(20)
                except AssignmentFailed as failure:
                    self.failures.append(failure)
                self._work()
        except BaseException as error:  # noqa: BLE001  a test looks at it
            self.error = error

    def _work(self) -> None:
        for job in self.jobs:
            if self.member.may_run:
                began = ThreadRuntime().monotonic()
                self._stop.wait(0.001)
                self.worked.append((began, ThreadRuntime().monotonic(), job))

    @property
    def jobs(self) -> tuple[str, ...]:
        given = self.member.assignment
        return tuple(json.loads(given.state)) if given is not None and given.state else ()

    def close(self) -> None:
        self._stop.set()
        self.thread.join(10)
        self.member.close()

    def vanish(self) -> None:
        """Stop polling for good; the session lives."""
        self.is_stuck.set()


class Work:
    """Starts the workers of one group, beside its coordinator."""

    def __init__(self, world: World) -> None:
        self.coordinator = world.coordinator()
        self._world = world
        self._calls: Calls = []
        self._made: list[Worker] = []

    def __call__(self, name: str, **options: Any) -> Worker:
        self._made.append(Worker(self._world, name, self._calls, **options))
        return self._made[-1]

    def alone(self, **options: Any) -> Worker:
        """w1, which has all jobs."""
        one = self("w1", **options)
        eventually(lambda: divided(one), 10, "w1 has all jobs")
        return one

    def pair(self, **options: Any) -> tuple[Worker, Worker]:
        """w1, and w2 with these options, which both have jobs."""
        one, two = self("w1"), self("w2", **options)
        eventually(lambda: divided(one, two) and one.jobs and two.jobs, 10, "both have jobs")
        return one, two

    def close(self) -> None:
        for each in self._made:
            with suppress(Exception):
                each.close()


@pytest.fixture
def work(world: World) -> Iterator[Work]:
    with closing(Work(world)) as work:
        yield work


def divided(*workers: Worker) -> bool:
    """Whether these have all jobs, each once."""
    return sorted(job for each in workers for job in each.jobs) == sorted(JOBS)


def nowhere_twice(*workers: Worker) -> None:
    """No job ran on two workers at once: spans of work, each ended by a stop, do not overlap between workers."""
    for job in JOBS:
        spans = sorted((began, ended, one.name) for one in workers for began, ended, what in one.worked if what == job)
        for (_, ended, one), (began, _, other) in pairwise(spans):
            assert one == other or ended <= began, f"{job} ran with {one} and {other} at once"


def test_jobs_are_divided_and_revoked_from_every_member_before_any_is_assigned(world: World, work: Work) -> None:
    one = work.alone()

    two = work("w2")

    eventually(lambda: divided(one, two) and two.jobs, 10, "both have jobs")
    eventually(lambda: two.times("assigned"), 5, "w2 has been called back")
    calls = [(name, what) for name, what, _ in one.calls]
    assert calls.index(("w1", "revoked")) < calls.index(("w2", "assigned"))
    nowhere_twice(one, two)
    state = world.state("jobs")
    assert state.client is not None and state.client.protocol_type == "named-jobs"
    assert world.stable("jobs", 2).strategy == "even"


def test_jobs_of_a_member_that_stops_polling_start_elsewhere_after_its_lease(work: Work) -> None:
    """It leaves by itself, and revokes nothing: a piece of work may be under way in any of its threads."""
    one, two = work.pair(max_poll_interval_ms=1000)
    before = one.times("assigned")

    two.vanish()
    eventually(lambda: not two.member.may_run, 10, "w2 may not run its jobs any more", pause_s=0.001)
    over = ThreadRuntime().monotonic()
    eventually(lambda: divided(one), 15, "w1 has all jobs")

    again = [at for at in one.times("assigned") if at not in before]
    lease_s = SESSION_MS / 1000 * LEASE_SHARE
    assert min(again) - over > lease_s / 2, "it waits for a lease from when the coordinator saw that w2 had left"
    assert two.times("revoked") == []
    nowhere_twice(one, two)


def test_member_closed_after_it_has_left_reports_its_jobs_as_lost(work: Work) -> None:
    one = work.alone(max_poll_interval_ms=1000)
    one.vanish()
    eventually(lambda: not one.member.may_run, 10, "w1 has left by itself")

    one.close()

    assert one.times("lost") and one.member.assignment is None


def test_enforced_rebalance_and_metadata_that_changes_in_place_assign_again(world: World, work: Work) -> None:
    seen: list[Mapping[str, bytes]] = []

    def assign(protocol: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        seen.append(dict(members))
        return divide(protocol, members)

    one = work.alone(assign=assign)
    before = world.stable("jobs", 1)

    one.member.enforce_rebalance()
    world.stable("jobs", 1, above=before.generation)
    assert seen == [{"w1": b"{}"}] * 2, "without a change"
    one.member.update({"even": b"more memory"})

    eventually(lambda: seen[-1] == {"w1": b"more memory"} and divided(one), 10, "the leader has the new metadata")


def test_a_leader_that_raises_leaves_the_group_as_it_was(world: World, work: Work) -> None:
    failing = ThreadRuntime().event()

    def assign(protocol: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        if failing.is_set():
            raise ValueError("cannot divide")
        return divide(protocol, members)

    one = work.alone(assign=assign)
    failing.set()

    two = work("w2", assign=assign)

    eventually(lambda: one.failures, 10, "w1 is notified of a failure")
    assert divided(one) and two.jobs == ()
    assert world.state("jobs").state in ("RebalanceFailed", "CompletingRebalance")
    failing.clear()
    eventually(lambda: divided(one, two) and two.jobs, 10, "both have jobs")


def test_a_consumer_cannot_join_a_group_of_another_protocol_type(world: World, work: Work) -> None:
    world.topic("t", 1)
    work.alone()

    other = world.consumer("jobs", "c1", {"t": 1}, assignment="client,coordinator")

    eventually(lambda: isinstance(other.error, InconsistentGroupProtocol), 10, "the consumer is refused")


@pytest.mark.parametrize(
    ("protocol_type", "options", "words"),
    [
        ("consumer", {}, "use Consumer"),
        ("named-jobs", {"metrics_port": 9100}, "a GroupMember has no metrics_port: leave it out"),
    ],
)
def test_what_members_cannot_serve_is_refused_in_words(protocol_type: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        GroupMember("localhost:1", "jobs", protocol_type, {"even": b""}, divide, **options)


def test_next_coordinator_continues_the_groups_generation(world: World, work: Work) -> None:
    one, _ = work.pair()
    generation = world.stable("jobs", 2).generation
    before = one.calls.copy()

    world.stop_coordinator(work.coordinator)
    world.elected(world.coordinator("b"), above=1)

    assert world.stable("jobs", 2).generation == generation
    assert one.calls == before, "no member stops for a failover"
    assert world.names(GroupPaths("jobs").owners) == []


def test_given_has_the_members_assignment(work: Work) -> None:
    assert work.alone().member.assignment == Given("even", json.dumps(JOBS).encode(), 1)
