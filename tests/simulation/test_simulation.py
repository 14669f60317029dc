"""Histories of faults: the same from the same seed, and with no invariant broken."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.simulation.__main__ import RunResult, run_one
from tests.simulation.decided import PURPOSES, Decisions, reasons
from tests.simulation.profile import CALM, PROFILES, STORM, Profile, profile_of
from tests.simulation.run import ALL_FAULTS, history_text, simulate, without_garbage_collection
from tests.simulation.world import SimulatedWorld
from tests.support.ci import number_of_commit
from zk_group.consumer.sealing import segment_check
from zk_group.consumer.streaming.fetchers import slot
from zk_group.coordinator.rebalance import group_reader
from zk_group.drills.checker import BROKEN, NOT_DECIDED, Verdict, Verdicts, check_files

FEW, MANY = 120, 240
"""Bounded sets over all profiles, one after the other; `scripts/simulate` runs as many as one likes."""

FIRST_SEED = 2_000_000 + number_of_commit() % 1_000_000 * (FEW + MANY)
"""Each commit looks at histories that none before it has seen."""

RARE_SEEDS = 150
FIRED = Path(__file__).parent / "fired.json"
"""Fault -> a run in which it took effect, which is tried before others. An old one costs time, no more."""

DIGESTS = Path(__file__).parent / "digests.json"
"""Seeds of a profile -> the digest of their histories."""
DIGESTED = 10

PRINT_DIGEST = """
import hashlib
from tests.simulation.profile import PROFILES
from tests.simulation.run import history_text, simulate
text = history_text(simulate({seed}, PROFILES["{profile}"]))
print(hashlib.sha256(text.encode()).hexdigest(), len(text.splitlines()))
"""


def digest_in_another_process(seed: int, profile: str, hash_seed: str) -> tuple[str, int]:
    code = PRINT_DIGEST.format(seed=seed, profile=profile)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    digest, events = done.stdout.split()
    return digest, int(events)


@pytest.mark.parametrize(("seed", "profile"), [(3, "storm"), (4, "pauses")])
def test_a_seed_gives_the_same_history_byte_for_byte_in_every_process(seed: int, profile: str) -> None:
    one = digest_in_another_process(seed, profile, "1")
    another = digest_in_another_process(seed, profile, "2")

    assert one == another
    assert one[1] > 200, "a history in which nothing happens would repeat easily"
    here = history_text(simulate(seed, PROFILES[profile]))
    assert hashlib.sha256(here.encode()).hexdigest() == one[0]


@pytest.mark.long
@pytest.mark.rotates
@pytest.mark.parametrize("first", [0, DIGESTED])
@pytest.mark.parametrize("profile", sorted(PROFILES.keys() - {"scale"}))
def test_change_without_effect_leaves_every_history(profile: str, first: int, request: pytest.FixtureRequest) -> None:
    """`pytest ... -k leaves_every_history --rewrite` after a change that is to have one: say so in its commit."""
    known = json.loads(DIGESTS.read_text())
    name = f"{profile} {first} to {first + DIGESTED - 1}"
    texts = (history_text(simulate(seed, PROFILES[profile])) for seed in range(first, first + DIGESTED))
    found = hashlib.sha256("".join(texts).encode()).hexdigest()[:16]

    if request.config.getoption("--rewrite"):
        DIGESTS.write_text(json.dumps(known | {name: found}, indent=1, sort_keys=True) + "\n")
    else:
        assert found == known[name]


def test_a_history_is_such_that_the_checker_reads_every_line_of_it(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text(history_text(simulate(3, STORM)))

    verdicts = check_files(file)

    assert verdicts.events > 200
    assert (verdicts.set_aside, list(verdicts.problems)) == (0, [])


def test_another_seed_gives_another_history() -> None:
    assert history_text(simulate(1, CALM)) != history_text(simulate(2, CALM))


def drawn_by(profile: Profile) -> set[str]:
    """The kinds of faults that runs of a profile draw, but for its scenes."""
    own = (profile.weights, profile.leader_weights, profile.region_weights, profile.gap_weights)
    return {kind for weights in (*own, *(each.weights for each in profile.beside)) for kind in weights}


def took_effect(kind: str) -> bool:
    """Whether a fault that no seed of the mixture has drawn in time does in other runs of the profiles that draw it."""
    known = json.loads(FIRED.read_text()).get(kind)
    kinds = {name: drawn_by(one) | {k for scene in one.scenes for k in scene.kinds} for name, one in PROFILES.items()}
    profiles = [name for name, some in kinds.items() if kind in some]
    runs = [known] if known else []
    runs += [(name, seed) for seed in range(RARE_SEEDS) for name in profiles]
    return any(simulate(seed, PROFILES[name]).fired[kind] for name, seed in runs)


def run_all(seeds: Sequence[int]) -> list[RunResult]:
    """In as many processes as there are cores."""
    context = multiprocessing.get_context("spawn")  # the test's own process has threads
    jobs = [(seed, profile_of(seed).name) for seed in seeds]
    with context.Pool(os.cpu_count() or 1, without_garbage_collection) as pool:
        return list(pool.imap_unordered(run_one, jobs, chunksize=4))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.full("more histories"))])
def test_no_invariant_is_broken_in_a_bounded_set_of_histories_over_all_profiles(seeds: int) -> None:
    first = FIRST_SEED if seeds == FEW else FIRST_SEED + FEW

    results = run_all(range(first, first + seeds))

    failed = [
        f"scripts/simulate --seed {each.seed} --profile {each.profile} --verbose\n{each.text}"
        for each in results
        if each.text
    ]
    assert not failed, f"{len(failed)} of {seeds} failed:\n" + "\n".join(failed[:3])
    assert len(results) == seeds
    if seeds == MANY:
        each_fault_took_effect(results)
        each_invariant_was_decided(results)


def each_fault_took_effect(results: Sequence[RunResult]) -> None:
    fired = {kind for each in results for kind in each.fired}
    never = [kind for kind in sorted(ALL_FAULTS.keys() - fired) if not took_effect(kind)]
    assert not never, f"these faults never took effect: {never}"


def each_invariant_was_decided(results: Sequence[RunResult]) -> None:
    decisions = Decisions()
    for each in results:
        decisions.add(each.profile, each.decided)
    assert not decisions.lacking(), decisions.rows()


def verdicts(*each: Verdict) -> Verdicts:
    return Verdicts({verdict.invariant: verdict for verdict in each})


def test_an_invariant_is_decided_where_it_judged_something() -> None:
    ends = Verdict("L1", "", NOT_DECIDED, "the history ends at 60 s, before 65.5 s", judged=3)
    found = reasons(verdicts(Verdict("S1", "", judged=1), Verdict("S9", ""), Verdict("S4", "", BROKEN), ends))

    assert found == {"S1": None, "S9": "nothing to judge", "S4": None, "L1": "the history ends"}


@pytest.mark.parametrize(
    ("profile", "is_stock", "runs", "decided", "lacking"),
    [("one", True, 100, 2, "S9"), ("led", False, 40, 9, "L5 in led")],
    ids=["over all profiles", "in a profile that is for it"],
)
def test_undecided_invariants_are_no_pass(profile: str, is_stock: bool, runs: int, decided: int, lacking: str) -> None:
    decisions, name = Decisions(), lacking.partition(" ")[0]
    every = dict.fromkeys(("S1", *PURPOSES.get(profile, ()), name))
    for number in range(runs - 1):
        decisions.add(profile, every | {name: None if number < decided else "nothing to judge"})

    assert decisions.lacking(is_stock) == [], "too few runs to tell"
    decisions.add(profile, every | {name: "nothing to judge"})
    assert decisions.lacking(is_stock) == [lacking]
    assert decisions.lacking(is_stock=False) == ([] if is_stock else [lacking])
    rows = {row[0]: row[1:] for row in decisions.rows()}
    assert rows["S1"] == (f"{runs} of {runs}", "")
    assert rows[name] == (f"{decided} of {runs}", f"nothing to judge: {runs - decided}")
    for _ in range(2):
        decisions.add(profile, every)
    assert decisions.lacking(is_stock) == []


def test_every_stock_profile_says_what_it_is_for() -> None:
    assert PURPOSES.keys() == PROFILES.keys()


def test_unexpected_error_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("somebody's mistake")

    monkeypatch.setattr("zk_group.coordinator.retention.leftovers.Collector.collect", broken)

    outcome = simulate(1, STORM)

    assert not outcome.passed
    assert "somebody's mistake" in outcome.problems[0]


def test_a_world_that_hangs_is_a_livelock_with_every_thread_s_position() -> None:
    def stop_everything(world: SimulatedWorld) -> None:
        def stop() -> None:
            for life in world.lives:
                life.process.pause()

        world.scheduler.after(5.0, stop)

    outcome = simulate(1, CALM, script=stop_everything)

    assert not outcome.passed
    assert "livelock" in outcome.problems[0] and "node-0#1 main: waits for" in outcome.problems[0]


def test_a_hand_that_writes_no_json_ends_no_run() -> None:
    assert simulate(7_000_778, PROFILES["aimed"]).passed


def test_every_fault_that_a_profile_may_draw_is_known_and_drawn() -> None:
    drawn = {kind for profile in PROFILES.values() for kind in drawn_by(profile)}
    drawn |= {kind for profile in PROFILES.values() for scene in profile.scenes for kind in scene.kinds}
    assert drawn == ALL_FAULTS.keys()
    assert {kind for profile in PROFILES.values() for each in profile.together for kind in each} <= drawn


def test_a_simulation_leaves_the_product_as_it_was() -> None:
    before = (slot.LOOK_FOR_DATA_S, segment_check.ORPHAN_AFTER_S, group_reader.UNKNOWN_LEASE_MS, socket.gethostname())

    simulate(1, CALM)

    assert (
        slot.LOOK_FOR_DATA_S,
        segment_check.ORPHAN_AFTER_S,
        group_reader.UNKNOWN_LEASE_MS,
        socket.gethostname(),
    ) == before
