"""Drills on a consistent region: the fetchers are applications that count in memory, and every count must be exact.

Checkpoints come every 0.5 s. At the end the drill waits for one that covers all produced records, and compares its
states with the counts of one uninterrupted run. During the run S10 compares the states that the applications log
(`drills/workloads/application.py`) with the same counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.admin.regions import read_contributions, request
from zk_group.coordinator.zk.znodes import regions
from zk_group.coordinator.zk.znodes.group_state import decoded
from zk_group.coordinator.zk.znodes.paths import RegionPaths
from zk_group.coordinator.zk.znodes.records import DRAIN, START_FETCHER, STOP_FETCHER
from zk_group.coordinator.zk.znodes.regions import COMPLETED, RESET, Contribution, Region, RegionRequest

from ..base.processes import NotReached, wait_for
from ..base.settings import REGION, Settings
from ..checker.replay.sketches import NOTHING, Sketch, of_range
from ..evidence.measurements import RecordCounts
from ..testbed.commands import READY_S, Produced, slot
from ..testbed.testbed import Stage
from .coordinators import Step, Steps, a_turn_is_taken, another_is_elected, elected_of, lose_commit
from .definition import Drill

PATHS = RegionPaths(REGION)
Counted = tuple[str, int] | tuple[str, str, int]
"""The key of a count: a partition, or a partition and the member that counted it, with the topic's id."""


def region_of(stage: Stage) -> Region:
    """The current region.

    :raises NotReached: when there is none.
    """
    node = stage.store.get(PATHS.root)
    if node is None:
        raise NotReached(f"{PATHS.root} does not exist")
    return Region.parse(PATHS.root, node.data)


def wait_region(stage: Stage, above: Region, cut: bool = True) -> Region:
    """The region, once it is Running with a checkpoint newer than that of `above`, or (`cut` false) after a reset."""

    def look() -> Region | None:
        region = region_of(stage)
        is_newer = region.sequence > above.sequence if cut else region.reset > above.reset
        return region if region.state == regions.RUNNING and is_newer else None

    what = "a checkpoint completes" if cut else "every member's state is restored after a reset"
    return wait_for(look, READY_S, f"the region is Running: {what}")


# ---- the verdict


def in_states(stage: Stage) -> RecordCounts:
    """The counts in the states of the newest checkpoint, once it covers all produced records.

    :raises NotReached: when there is none.
    """
    produced = stage.in_log()
    total = stage.produced_by_partition().total()

    def look() -> Mapping[str, Contribution | None] | None:
        contributions = read_contributions(Reading(stage.store), REGION, region_of(stage).sequence)
        taken = sum(sum(given.offsets.values()) for given in contributions.values() if given is not None)
        return contributions if taken == total else None

    contributions = wait_for(look, READY_S, "a checkpoint covers every produced record")
    if missing := [name for name, given in contributions.items() if given is None]:
        raise NotReached(f"the last checkpoint's {missing[0]} is unreadable")
    return compared(produced, [given for given in contributions.values() if given is not None])


def compared(produced: Produced, contributions: Iterable[Contribution]) -> RecordCounts:
    """The sums of all states, compared with the counts of one uninterrupted run over the same records."""
    expected: dict[Counted, Sketch] = {}
    for topic, ids in produced.items():
        topic_id, numbers = list(ids.items())[-1]
        for number, count in numbers.items():
            # Each record is counted twice: for its partition, and for the member that consumed it.
            for key in (topic, int(number)), (topic, topic_id, int(number)):
                expected[key] = of_range(0, count)
    actual: dict[Counted, Sketch] = {}
    for given in contributions:
        counted: list[tuple[Counted, list[int]]] = [
            ((part.topic, part.partition), json.loads(decoded("a state", text))) for part, text in given.states.items()
        ]
        for *names, records, total, squares in json.loads(decoded("a state", given.member_state) or b"[]"):
            counted.append((tuple(names), [records, total, squares]))
        for key, sketch in counted:
            actual[key] = actual.get(key, NOTHING).plus(Sketch(*sketch))
    more = {key: actual.get(key, NOTHING).records - sketch.records for key, sketch in expected.items()}
    # The number is right and the sums differ: one record is a duplicate, another one is missing.
    others = sum(1 for key, sketch in expected.items() if more[key] == 0 and actual.get(key, NOTHING) != sketch)
    by_partition = [key for key in expected if len(key) == 2]
    return RecordCounts(
        produced=sum(expected[key].records for key in by_partition),
        delivered=sum(actual.get(key, NOTHING).records for key in by_partition),
        lost=sum(max(0, -count) for count in more.values()) + others,
        duplicated=sum(max(0, count) for count in more.values()) + others,
        misplaced=sum(actual[key].records for key in actual.keys() - expected.keys()),
    )


# ---- members


def _hung_in_drain(stage: Stage, name: str) -> Region:
    """A member hangs in `on_drain` of the next checkpoint, after all others' contributions; returns the region."""
    group = stage.settings.group
    others = {f"{group}~{other}" for other in stage.slots() - {name}}
    stage.processes[name].hang()

    def look() -> Region | None:
        region = region_of(stage)
        listing = stage.store.children(PATHS.checkpoint(region.open)) if region.open else None
        return region if listing is not None and waits_for(f"{group}~{name}", others, listing.names) else None

    return wait_for(look, READY_S, f"all but {name} have contributed to a checkpoint")


def waits_for(member: str, others: Set[str], contributed: Sequence[str]) -> bool:
    """Whether only this member's contribution to a checkpoint is missing.

    It may have contributed to the checkpoint open at the request of the hang; then it hangs in the next."""
    return others <= set(contributed) and member not in contributed


def _killed_in_drain(stage: Stage) -> None:
    """It dies with the counts since the last checkpoint; then another process starts under its name."""
    victim = slot(stage.settings.slots - 1)
    before = _hung_in_drain(stage, victim)
    stage.kill(victim)
    after = wait_region(stage, before, cut=False)
    if _has(stage, before.open, COMPLETED):
        stage.wrong.append(f"checkpoint {before.open} completed without {victim}")
    wait_region(stage, after)
    stage.start_slot(stage.settings.slots - 1)


def _joined_in_drain(stage: Stage) -> None:
    """The generation waits for the open checkpoint, so no counts are lost to the join."""
    hung, group = slot(0), stage.settings.group
    before, generation = _hung_in_drain(stage, hung), stage.group().state.generation
    stage.fault("stuck", stage.bounds["lease"], process=stage.processes[hung].who, group=group, consumer=hung)
    stage.start_slot(stage.settings.slots)
    joined = slot(stage.settings.slots)
    wait_for(lambda: any(one.consumer == joined for one in stage.group().members), READY_S, f"{joined} is registered")
    a_turn_is_taken(stage)
    if stage.group().state.generation != generation:
        stage.wrong.append(f"the generation with {joined} did not wait for checkpoint {before.open}")
    stage.processes[hung].go_on()
    wait_region(stage, before)
    if not _has(stage, before.open, COMPLETED):
        stage.wrong.append(f"checkpoint {before.open} did not complete before the generation with {joined}")


def _has(stage: Stage, checkpoint: int, end: str) -> bool:
    """Whether a checkpoint ended with this outcome."""
    return stage.store.get(PATHS.end(checkpoint, end)) is not None


# ---- an operator


def _reset_to_initial(stage: Stage) -> None:
    before = region_of(stage)
    stage.fault("reset", group=stage.settings.group)
    request(stage.store, REGION, RegionRequest(RESET, "a drill", sequence=regions.INITIAL))
    after = wait_region(stage, before, cut=False)
    is_kept = stage.store.get(PATHS.checkpoint(before.sequence)) is not None
    if is_kept and not _has(stage, before.sequence, regions.ABANDONED):
        stage.wrong.append(f"checkpoint {before.sequence} is not abandoned: the region was not reset")
    wait_region(stage, after)


# ---- a coordinator that dies at each step


CHECKPOINT_STEPS: Steps = (
    ("after a checkpoint has begun, reply lost", (b"/checkpoints/checkpoint-", b'"trigger"'), False),
    ("after the drains are sent, reply lost", (b"/command-", f'"{DRAIN}"'.encode()), False),
    ("after all contributions, before it completes", (f"/{COMPLETED}".encode(),), True),
    ("after it has completed, reply lost", (f"/{COMPLETED}".encode(),), False),
)
RESET_STEPS: Steps = (
    ("after the region is Resetting, reply lost", (f'"{regions.RESETTING}"'.encode(), b"/request"), False),
    ("after the stops are sent, reply lost", (b"/command-", f'"{STOP_FETCHER}"'.encode()), False),
    ("after the starts are sent, reply lost", (b"/command-", f'"{START_FETCHER}"'.encode()), False),
)


def _coordinator_killed_at_each_step(stage: Stage) -> None:
    for step in CHECKPOINT_STEPS:
        _killed_when(stage, step)
    before = _hung_in_drain(stage, slot(0))
    _replaced(stage, elected_of(stage), before, stage.processes[slot(0)].go_on)
    for step in RESET_STEPS:
        before = region_of(stage)
        _killed_when(stage, step, partial(request, stage.store, REGION, RegionRequest(RESET, "a drill")))
        if region_of(stage).reset == before.reset:
            stage.wrong.append(f"a coordinator that dies {step[0]} leaves no reset")


def _killed_when(stage: Stage, step: Step, cause: Callable[[], None] = lambda: None) -> None:
    where, words, is_before = step
    victim, before = elected_of(stage), region_of(stage)
    lose_commit(stage, victim, f"a commit {where}", words, is_before, cause)
    _replaced(stage, victim, before)


def _replaced(stage: Stage, victim: str, before: Region, then: Callable[[], None] = lambda: None) -> None:
    """The victim is dead; the next coordinator completes its checkpoint or reset, and continues."""
    stage.kill(victim)
    another_is_elected(stage, victim)
    then()
    wait_region(stage, before)
    stage.start_node(victim)


# ---- the drills


def _in_region(settings: Settings) -> Settings:
    """A member that hangs in `on_drain` must not be evicted before a coordinator failover is over."""
    patient_ms = max(settings.max_poll_interval_ms, 6 * settings.session_timeout_ms)
    return replace(settings, region=REGION, max_poll_interval_ms=patient_ms, partitions=4)


EXACT = "the counts of all are those of one uninterrupted run"

_region_drill = partial(Drill, adjust=_in_region, is_short=False)

REGIONS = (
    _region_drill(
        "region-member-sigkill-in-drain", "Kill a member of a consistent region while it drains (SIGKILL)",
        _killed_in_drain,
        proves="A checkpoint without a member's contribution is never restored, and the records since the last one are "
        "counted again, once.",
        hypothesis=f"The region is reset to the previous checkpoint, and continues from there; {EXACT}.",
        fault="SIGKILL to an application that hangs in on_drain while all others have contributed",
    ),
    _region_drill(
        "region-rebalance-in-drain", "A member joins a consistent region while a checkpoint is open", _joined_in_drain,
        proves="A join waits for the open checkpoint, and no counts are lost.",
        hypothesis=f"The checkpoint completes before the next generation begins; {EXACT}.",
        fault="an application hangs in on_drain while another application joins",
    ),
    _region_drill(
        "region-reset-to-initial", "Reset a consistent region to its initial state", _reset_to_initial,
        proves="A region that is reset to its initial state starts again at its initial offsets.",
        hypothesis=f"All records are counted again from the first offsets; {EXACT}.",
        fault="an operator resets the region to its initial state",
    ),
    _region_drill(
        "region-coordinator-sigkill-each-step", "Kill the coordinator at each step of a checkpoint and of a reset",
        _coordinator_killed_at_each_step,
        proves="The next coordinator completes an unfinished checkpoint or reset.",
        hypothesis=f"The region is Running again each time, and completes a checkpoint; {EXACT}.",
        fault="SIGKILL to the coordinator: after a checkpoint has begun, its drains are sent, some and all members "
        "have contributed, it has completed; after a reset has begun, its stops and its starts are sent",
    ),
)  # fmt: skip
