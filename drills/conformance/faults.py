"""Scenarios: processes that are killed, suspended or cut off, taken-over names, and coordinators that change."""

from __future__ import annotations

from coordinator.admin.control import resign

from .bench import Bench, Scenario
from .event_lines import COMMITTED, CONSUMED, LOST, Trial, require

MARGIN_S = 0.5


def is_killed(bench: Bench) -> None:
    """SIGKILL: another member has its partitions after its session, from the offsets of its channel."""
    bench.flow("c1", "c2")
    bench.kill("c1")
    bench.produce()
    bench.settled("c2")
    bench.consumed()


def is_cut_off_shortly(bench: Bench) -> None:
    """No answer of ZooKeeper for less than its lease: it keeps its partitions and its incarnation."""
    trial, incarnation = bench.consuming()
    bench.cut("c1", bench.session_s * 0.3)
    bench.flow()
    require(bench.channel("c1").incarnation == incarnation, "c1 has registered again after a short cut")
    require(not trial.events().gone, "c1 has given up partitions after a short cut")


def obeys_its_lease(bench: Bench) -> None:
    """ZooKeeper answers nothing but pings for more than a lease: no records after it; then the incarnation goes on."""
    trial, incarnation = bench.consuming()
    seen = len(trial.batches())
    bench.mute(trial)
    # Records come only now: a consumer whose commit of earlier ones waits for an answer would deliver none in any case.
    lease_s = bench.bounds["lease"]
    bench.stand_still(lease_s + MARGIN_S)

    def is_quiet() -> None:
        bench.produce(5)
        delivers = len(trial.batches()) > seen
        require(
            not delivers, f"c1 delivers records more than {lease_s:.2f} s after its last renewal: its lease is over"
        )

    bench.stand_still(bench.session_s * 1.5 - lease_s - MARGIN_S, is_quiet)
    bench.join(trial)
    bench.consumed()
    require(bench.channel("c1").incarnation == incarnation, "c1 has registered again, and its session was never over")
    require(not trial.events().gone, "c1 has given up partitions, and its session was never over")


def outlives_its_session(bench: Bench) -> None:
    """No packet of ZooKeeper for longer than its session: it registers again, and says first what it has lost."""
    trial, incarnation = bench.consuming()
    seen = len(trial.events().names)
    bench.cut_off(trial)
    bench.stand_still(bench.session_s * 1.5)
    bench.produce()
    bench.join(trial)
    _require_first(bench, trial, seen, LOST, CONSUMED, COMMITTED)
    bench.settled("c1")
    require(bench.channel("c1").incarnation != incarnation, "c1 has no new incarnation after the end of its session")
    require(trial.events().given_up(LOST) == bench.partitions(), "c1 does not print partitions_lost after its session")
    bench.consumed()


def is_suspended(bench: Bench) -> None:
    """SIGSTOP beyond the session timeout: after SIGCONT it neither delivers nor commits for its lost partitions."""
    trial, incarnation = bench.consuming()
    seen = len(trial.events().names)
    bench.suspend(trial)
    bench.flow("c2")
    bench.produce()
    trial.process.resume()
    _require_first(bench, trial, seen, LOST, CONSUMED, COMMITTED)
    bench.settled("c1", "c2")
    require(bench.channel("c1").incarnation != incarnation, "c1 has no new incarnation after the end of its session")
    bench.flow()


def is_evicted(bench: Bench) -> None:
    """It obeys no command for max_poll_interval_ms: evicted, it commits nothing more, and registers again.

    Its lease still runs when it goes on, so it may deliver records until it notices.
    """
    trial, _ = bench.consuming()
    seen = len(trial.events().names)
    bench.suspend(trial)
    bench.consumer("c2")
    bench.wait(lambda: bench.channel("c1").ended, "c1 is evicted")
    require(bench.channel("c1").error == "UnknownMemberId", "an eviction is not UnknownMemberId")
    bench.produce()
    trial.process.resume()
    _require_first(bench, trial, seen, LOST, COMMITTED)
    bench.flow("c1", "c2")


def loses_its_name(bench: Bench) -> None:
    """Another process registers under its name: it ends, and the other one continues at its offsets."""
    first, incarnation = bench.consuming()
    bench.consumer("c1", "c1-again")
    bench.wait(lambda: not first.process.is_running, "the first process of the name ends")
    require(first.process.wait() != 0, "the first process of the name ends with exit code 0")
    bench.settled("c1")
    now = bench.channel("c1").incarnation
    require(now != incarnation, "the second process has the incarnation of the first")
    bench.flow()
    require(bench.channel("c1").incarnation == now, "the name was taken back")


def outlives_a_coordinator(bench: Bench) -> None:
    """The coordinator is killed: members go on in the same generation, and obey the next one."""
    bench.settled("c1", "c2")
    trials = list(bench.trials.values())
    generation, gone = bench.group().state.generation, [each.events().gone for each in trials]
    former = bench.wait(bench.elected, "a coordinator is elected")
    bench.kill(former.node)
    bench.flow()
    what = f"a coordinator is elected in an epoch above {former.epoch}"
    bench.wait(lambda: (now := bench.elected()) and now.epoch > former.epoch, what)
    bench.flow()
    require(bench.group().state.generation == generation, "the change of the coordinator is a generation")
    require([each.events().gone for each in trials] == gone, "members have given up partitions for a new coordinator")
    bench.settled("c1", "c2", "c3")
    require(
        bench.channel("c1").epoch > former.epoch, "the channel of c1 does not have the epoch of the new coordinator"
    )
    bench.flow()


def outlives_a_coordinator_in_a_rebalance(bench: Bench) -> None:
    """The coordinator changes while a stop is pending: the old command is withdrawn, and the next one's is obeyed."""
    trial, _ = bench.consuming()
    bench.suspend(trial)
    bench.consumer("c2")
    old = bench.wait(lambda: bench.commands("c1"), "a stop is sent to c1")
    _, epoch = resign(bench.store)
    bench.wait(lambda: bench.commands("c1") - old, "the next coordinator sends its own")
    trial.process.resume()
    bench.settled("c1", "c2")
    require(bench.channel("c1").epoch > epoch, "the channel of c1 does not have the epoch of the new coordinator")
    bench.flow()


def goes_on_without_a_coordinator(bench: Bench) -> None:
    """No coordinator at all for longer than a session: it consumes and commits."""
    trial, _ = bench.consuming()
    bench.kill("node-1")
    bench.stand_still(bench.session_s * 1.5, bench.flow)
    require(not trial.events().gone, "c1 has given up partitions while there was no coordinator")
    bench.start_node("node-2")
    bench.flow("c1", "c2")


def _require_first(bench: Bench, trial: Trial, seen: int, first: str, *later: str) -> None:
    """After its first `seen` events it must print `first` before any of `later`."""

    def next_event() -> str | None:
        names = trial.events().names[seen:]
        return next((name for name in names if name in (first, *later)), None)

    name = bench.wait(next_event, f"{trial.name} prints {first}")
    require(name == first, f"{trial.name} prints {name} after its incarnation was ended, and before {first}")


FAULTS = (
    Scenario("killed", "is replaced after SIGKILL, from its committed offsets", is_killed),
    Scenario("short-cut", "keeps its partitions over a cut that is shorter than its lease", is_cut_off_shortly),
    Scenario("lease", "delivers nothing after its lease while ZooKeeper answers only pings", obeys_its_lease),
    Scenario("expiry", "registers again when its session has expired in a cut", outlives_its_session),
    Scenario("suspended", "delivers and commits nothing after SIGSTOP has outlasted its session", is_suspended),
    Scenario(
        "eviction", "commits nothing and registers again when it was evicted", is_evicted,
        long_sessions=True, max_poll_interval_ms=2000, repeats=True,
    ),
    Scenario("take-over", "ends when another process has its name", loses_its_name),
    Scenario("failover", "goes on when the coordinator is killed, and obeys the next", outlives_a_coordinator, nodes=2),
    Scenario(
        "failover-in-a-rebalance", "obeys the next coordinator when one goes in the midst of a rebalance",
        outlives_a_coordinator_in_a_rebalance, nodes=2, long_sessions=True,
    ),
    Scenario("no-coordinator", "goes on while there is no coordinator", goes_on_without_a_coordinator),
)  # fmt: skip
