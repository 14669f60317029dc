"""Scenarios: processes that are killed, suspended or cut off, taken-over names, and coordinators that change."""

from __future__ import annotations

import time

from coordinator.admin.control import resign
from coordinator.zk.lease import LEASE_SHARE
from coordinator.zk.znodes.paths import COORDINATOR
from coordinator.zk.znodes.records import CoordinatorRecord

from .bench import Bench
from .definition import Scenario, require
from .event_lines import COMMITTED, CONSUMED, LOST
from .sight import Trial

CERTAIN_SHARE = 11 / 12
"""Of the session timeout: at the end of it a lease is over in any case."""


def is_killed(bench: Bench) -> None:
    """SIGKILL: another member has its partitions after its session, from the offsets of its channel."""
    bench.topic()
    bench.consumer("c1")
    bench.consumer("c2")
    bench.settled("c1", "c2")
    bench.produce()
    bench.consumed()
    bench.kill(bench.trials["c1"].process)
    bench.produce()
    bench.settled("c2")
    bench.consumed()
    bench.require_once()


def is_cut_off_shortly(bench: Bench) -> None:
    """No answer of ZooKeeper for less than its lease: it keeps its partitions and its incarnation."""
    bench.topic()
    trial = bench.consumer("c1")
    bench.settled("c1")
    incarnation = bench.channel("c1").incarnation
    bench.cut(trial)
    bench.stand_still(bench.session_s * 0.3, lambda: None)
    bench.join(trial)
    bench.produce()
    bench.consumed()
    require(bench.channel("c1").incarnation == incarnation, "c1 has registered again after a short cut")
    require(not trial.events().gone, "c1 has given up partitions after a short cut")
    bench.require_once()


def obeys_its_lease(bench: Bench) -> None:
    """No answer of ZooKeeper for more than its lease: it delivers nothing after it, until it has registered again."""
    bench.topic()
    trial = bench.consumer("c1")
    bench.settled("c1")
    incarnation = bench.channel("c1").incarnation
    bench.produce()
    bench.consumed()
    cut_ms = bench.cut(trial)
    # Records come only now: a consumer whose commit of earlier ones waits for an answer would deliver none in any case.
    bench.stand_still(bench.session_s * CERTAIN_SHARE, lambda: None)

    def holds() -> None:
        bench.produce(5)
        batches = trial.events().batches
        late_s = (batches[-1].at_ms - cut_ms) / 1000
        lease_s = bench.session_s * LEASE_SHARE
        is_quiet = late_s < bench.session_s * CERTAIN_SHARE
        require(is_quiet, f"c1 delivers records {late_s:.2f} s after the cut: its lease has {lease_s:.2f} s")

    bench.stand_still(bench.session_s * 0.6, holds)
    bench.join(trial)
    bench.settled("c1")
    require(bench.channel("c1").incarnation != incarnation, "c1 has no new incarnation after the end of its session")
    require(trial.events().lost() == bench.partitions(), "c1 does not print partitions_lost after its session")
    bench.consumed()


def is_suspended(bench: Bench) -> None:
    """SIGSTOP for longer than its session: when it goes on, it delivers and commits nothing of what it had."""
    bench.topic()
    trial = bench.consumer("c1")
    bench.settled("c1")
    incarnation = bench.channel("c1").incarnation
    bench.produce()
    bench.consumed()
    seen = len(trial.events().names)
    bench.suspend(trial)
    bench.consumer("c2")
    bench.settled("c2")
    bench.produce()
    bench.consumed()
    bench.produce()
    trial.process.resume()
    _require_first(bench, trial, seen, LOST, CONSUMED, COMMITTED)
    bench.settled("c1", "c2")
    require(bench.channel("c1").incarnation != incarnation, "c1 has no new incarnation after the end of its session")
    bench.produce()
    bench.consumed()
    bench.require_once()


def is_evicted(bench: Bench) -> None:
    """It obeys no command for max_poll_interval_ms: evicted, it commits nothing more, and registers again.

    Its lease still runs when it goes on, so it may deliver records until it notices.
    """
    bench.topic()
    trial = bench.consumer("c1")
    bench.settled("c1")
    bench.produce()
    bench.consumed()
    seen = len(trial.events().names)
    bench.suspend(trial)
    bench.consumer("c2")
    bench.wait(lambda: bench.channel("c1").ended, "c1 is evicted")
    require(bench.channel("c1").error == "UnknownMemberId", "an eviction is not UnknownMemberId")
    bench.produce()
    trial.process.resume()
    _require_first(bench, trial, seen, LOST, COMMITTED)
    bench.settled("c1", "c2")
    bench.produce()
    bench.consumed()


def loses_its_name(bench: Bench) -> None:
    """Another process registers under its name: it ends, and the other one continues at its offsets."""
    bench.topic()
    first = bench.consumer("c1")
    bench.settled("c1")
    incarnation = bench.channel("c1").incarnation
    bench.produce()
    bench.consumed()
    bench.consumer("c1", process="c1-again")
    bench.wait(lambda: not first.process.is_running, "the first process of the name ends")
    bench.settled("c1")
    now = bench.channel("c1").incarnation
    require(now != incarnation, "the second process has the incarnation of the first")
    bench.produce()
    bench.consumed()
    require(bench.channel("c1").incarnation == now, "the name was taken back")
    bench.require_once()


def outlives_a_coordinator(bench: Bench) -> None:
    """The coordinator is killed: members go on in the same generation, and obey the next one."""
    bench.topic()
    trials = [bench.consumer("c1"), bench.consumer("c2")]
    bench.settled("c1", "c2")
    generation, before = bench.generation, [list(each.events().gone) for each in trials]
    node, epoch = _elected(bench)
    bench.kill(bench.nodes[node])
    bench.produce()
    bench.consumed()
    bench.wait(lambda: _elected(bench)[1] > epoch, "another coordinator is elected")
    bench.produce()
    bench.consumed()
    require(bench.generation == generation, "the change of the coordinator is a generation")
    require([each.events().gone for each in trials] == before, "members have given up partitions for a new coordinator")
    bench.consumer("c3")
    bench.settled("c1", "c2", "c3")
    require(bench.channel("c1").epoch > epoch, "the channel of c1 does not have the epoch of the new coordinator")
    bench.produce()
    bench.consumed()
    bench.require_once()


def outlives_a_coordinator_in_a_rebalance(bench: Bench) -> None:
    """The coordinator changes while a stop is pending: the old command is withdrawn, and the next one's is obeyed."""
    bench.topic()
    trial = bench.consumer("c1")
    bench.settled("c1")
    bench.produce()
    bench.consumed()
    bench.suspend(trial)
    bench.consumer("c2")
    old = bench.wait(lambda: bench.commands("c1"), "a stop is sent to c1")
    _, epoch = resign(bench.store)
    bench.wait(lambda: bench.commands("c1") - old, "the next coordinator sends its own")
    trial.process.resume()
    bench.settled("c1", "c2")
    require(bench.channel("c1").epoch > epoch, "the channel of c1 does not have the epoch of the new coordinator")
    bench.produce()
    bench.consumed()
    bench.require_once()


def goes_on_without_a_coordinator(bench: Bench) -> None:
    """No coordinator at all for longer than a session: it consumes and commits."""
    bench.topic()
    trial = bench.consumer("c1")
    bench.settled("c1")
    bench.kill(bench.nodes["node-1"])
    until = time.monotonic() + bench.session_s * 1.5
    while time.monotonic() < until:
        bench.produce()
        bench.consumed()
    require(not trial.events().gone, "c1 has given up partitions while there was no coordinator")
    bench.node("node-2")
    bench.consumer("c2")
    bench.settled("c1", "c2")
    bench.produce()
    bench.consumed()
    bench.require_once()


def _require_first(bench: Bench, trial: Trial, seen: int, first: str, *later: str) -> None:
    """After its first `seen` events it must print `first` before any of `later`."""

    def next_event() -> str | None:
        names = trial.events().names[seen:]
        return next((name for name in names if name in (first, *later)), None)

    name = bench.wait(next_event, f"{trial.name} prints {first}")
    require(name == first, f"{trial.name} prints {name} after its incarnation was ended, and before {first}")


def _elected(bench: Bench) -> tuple[str, int]:
    """The elected node and its epoch; epoch 0 without one."""
    node = bench.store.get(COORDINATOR)
    record = CoordinatorRecord.parse(COORDINATOR, node.data) if node is not None else None
    return (record.node, record.epoch) if record is not None else ("", 0)


FAULTS = (
    Scenario("killed", "is replaced after SIGKILL, from its committed offsets", is_killed),
    Scenario("short-cut", "keeps its partitions over a cut that is shorter than its lease", is_cut_off_shortly),
    Scenario("lease", "delivers nothing after its lease while ZooKeeper does not answer", obeys_its_lease),
    Scenario("suspended", "delivers and commits nothing after SIGSTOP has outlasted its session", is_suspended),
    Scenario(
        "eviction", "commits nothing and registers again when it was evicted", is_evicted,
        long_sessions=True, max_poll_interval_ms=2000,
    ),
    Scenario("take-over", "ends when another process has its name", loses_its_name),
    Scenario("failover", "goes on when the coordinator is killed, and obeys the next", outlives_a_coordinator, nodes=2),
    Scenario(
        "failover-in-a-rebalance", "obeys the next coordinator when one goes in the midst of a rebalance",
        outlives_a_coordinator_in_a_rebalance, nodes=2, long_sessions=True,
    ),
    Scenario("no-coordinator", "goes on while there is no coordinator", goes_on_without_a_coordinator),
)  # fmt: skip
