"""Drills on a consistent region: the fetchers are applications that count in memory, and every count must be exact.

Checkpoints come every 0.5 s. In the end one is waited for that has taken in all that was produced, and the states in
it are held against what one uninterrupted run would have counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from ..groups import Reading
from ..regions.admin import read_contributions, request
from ..zk.commands import DRAIN, START_FETCHER, STOP_FETCHER
from ..zk.paths import RegionPaths
from ..zk.region_requests import RESET, RegionRequest
from ..zk.regions import ABANDONED, COMPLETED, INITIAL, RESETTING, RUNNING, Contribution, Region
from ..zk.sync import decoded
from .coordinators import a_turn_is_taken, another_is_elected, elected_of, happens
from .drill import Drill
from .proxy import Loss
from .settings import REGION, Settings
from .sight import READY_S, Produced, slot
from .stage import Stage
from .verdict import Records
from .waiting import NotReached, wait_for
from .wire import MULTI, op_code

PATHS = RegionPaths(REGION)
KEYS = 3
"""As in `consumer/drill/counting.py`."""


def region_of(stage: Stage) -> Region:
    """The region as it stands.

    :raises NotReached: when there is none.
    """
    node = stage.store.get(PATHS.root)
    if node is None:
        raise NotReached(f"{PATHS.root} does not exist")
    return Region.parse(PATHS.root, node.data)


def wait_region(stage: Stage, above: Region, cut: bool = True) -> Region:
    """The region, once it is Running with a checkpoint newer than that of `above`, or (`cut` false) after a reset."""

    def look() -> Region | None:
        found = region_of(stage)
        is_newer = found.sequence > above.sequence if cut else found.reset > above.reset
        return found if found.state == RUNNING and is_newer else None

    what = "a checkpoint completes" if cut else "every member has its state back after a reset"
    return wait_for(look, READY_S, f"the region is Running: {what}")


# ---- the verdict


def in_states(stage: Stage) -> Records:
    """What is in the states of the newest checkpoint, once that has taken in all that was produced.

    :raises NotReached: when there is none.
    """
    produced = stage.in_log()
    total = sum(count for ids in produced.values() for numbers in ids.values() for count in numbers.values())

    def look() -> Mapping[str, Contribution | None] | None:
        found = read_contributions(Reading(stage.store), REGION, region_of(stage).sequence)
        taken = sum(sum(given.offsets.values()) for given in found.values() if given is not None)
        return found if taken == total else None

    contributions = wait_for(look, READY_S, "a checkpoint has taken in every record that was produced")
    if missing := [name for name, given in contributions.items() if given is None]:
        raise NotReached(f"{missing[0]} of the last checkpoint cannot be read")
    return compared(produced, [given for given in contributions.values() if given is not None])


def compared(produced: Produced, contributions: Iterable[Contribution]) -> Records:
    """What all states have counted together, beside what one uninterrupted run over the same records counts."""
    wanted: Counter[str] = Counter()
    for topic, ids in produced.items():
        for number, count in list(ids.values())[-1].items():
            wanted[f"{topic}-{number}"] += count
            for key in range(KEYS):
                wanted[f"{number}:{key}"] += len(range(key, count, KEYS))
    found: Counter[str] = Counter()
    for given in contributions:
        found.update({str(part): int(decoded("a state", text)) for part, text in given.states.items()})
        found.update(json.loads(decoded("a state", given.member_state) or b"{}"))
    by_partition = {name: count for name, count in wanted.items() if ":" not in name}
    # Each record is counted twice: for its partition and for its key.
    return Records(
        produced=sum(by_partition.values()),
        delivered=sum(found[name] for name in by_partition),
        lost=sum((wanted - found).values()),
        duplicated=sum((found - wanted).values()),
        misplaced=len(found.keys() - wanted.keys()),
    )


# ---- members


def _hung_in_drain(stage: Stage, name: str) -> Region:
    """A member hangs in `on_drain` of the next checkpoint, to which all others have contributed; the region then."""
    others = {f"{stage.settings.group}~{other}" for other in stage.slots() - {name}}
    stage.processes[name].hang()

    def look() -> Region | None:
        found = region_of(stage)
        listing = stage.store.children(PATHS.checkpoint(found.open)) if found.open else None
        return found if listing is not None and others <= set(listing.names) else None

    return wait_for(look, READY_S, f"all but {name} have contributed to a checkpoint")


def _killed_in_drain(stage: Stage) -> set[str]:
    """It dies with what it had taken in since the last checkpoint; then another process comes under its name."""
    victim = slot(stage.settings.slots - 1)
    before = _hung_in_drain(stage, victim)
    stage.kill(victim)
    after = wait_region(stage, before, cut=False)
    if _has(stage, before.open, COMPLETED):
        stage.wrong.append(f"checkpoint {before.open} completed without {victim}")
    wait_region(stage, after)
    stage.start_slot(stage.settings.slots - 1)
    return stage.slots()


def _joined_in_drain(stage: Stage) -> set[str]:
    """The generation waits for the checkpoint that is open, so that the join costs no work."""
    hung, group = slot(0), stage.settings.group
    before, generation = _hung_in_drain(stage, hung), stage.group().state.generation
    stage.fault("stuck", stage.bounds["lease"], process=stage.processes[hung].who, group=group, consumer=hung)
    stage.start_slot(stage.settings.slots)
    joined = slot(stage.settings.slots)
    wait_for(lambda: any(one.consumer == joined for one in stage.group().members), READY_S, f"{joined} is registered")
    a_turn_is_taken(stage)
    if stage.group().state.generation != generation:
        stage.wrong.append(f"the generation of {joined} did not wait for checkpoint {before.open}")
    stage.processes[hung].go_on()
    wait_region(stage, before)
    if not _has(stage, before.open, COMPLETED):
        stage.wrong.append(f"checkpoint {before.open} did not complete before the generation of {joined}")
    return stage.slots()


def _has(stage: Stage, checkpoint: int, end: str) -> bool:
    """Whether a checkpoint has ended so."""
    return stage.store.get(PATHS.end(checkpoint, end)) is not None


# ---- an operator


def _reset_to_initial(stage: Stage) -> set[str]:
    before = region_of(stage)
    stage.fault("reset", group=stage.settings.group)
    request(stage.store, REGION, RegionRequest(RESET, "a drill", sequence=INITIAL))
    after = wait_region(stage, before, cut=False)
    is_kept = stage.store.get(PATHS.checkpoint(before.sequence)) is not None
    if is_kept and not _has(stage, before.sequence, ABANDONED):
        stage.wrong.append(f"checkpoint {before.sequence} is not abandoned: the region has not begun anew")
    wait_region(stage, after)
    return stage.slots()


# ---- a coordinator that dies at each step


CHECKPOINT_STEPS = (
    ("when a checkpoint has begun, and nobody has heard", (b"/checkpoints/checkpoint-", b'"trigger"'), False),
    ("when the drains are sent, and nobody has heard", (b"/command-", f'"{DRAIN}"'.encode()), False),
    ("when all have contributed, before it completes", (f"/{COMPLETED}".encode(),), True),
    ("when it has completed, and nobody has heard", (f"/{COMPLETED}".encode(),), False),
)
RESET_STEPS = (
    ("when the region is Resetting, and nobody has heard", (f'"{RESETTING}"'.encode(), b"/request"), False),
    ("when the stops are sent, and nobody has heard", (b"/command-", f'"{STOP_FETCHER}"'.encode()), False),
    ("when the starts are sent, and nobody has heard", (b"/command-", f'"{START_FETCHER}"'.encode()), False),
)
"""Where a coordinator is killed: what its commit writes, and whether the commit gets lost, or its reply."""


def _coordinator_killed_at_each_step(stage: Stage) -> set[str]:
    for where, writes, is_before in CHECKPOINT_STEPS:
        _killed_when(stage, where, writes, is_before)
    _killed_when_some_have_drained(stage)
    for where, writes, is_before in RESET_STEPS:
        before = region_of(stage)
        reset = partial(request, stage.store, REGION, RegionRequest(RESET, "a drill"))
        _killed_when(stage, where, writes, is_before, reset)
        if region_of(stage).reset == before.reset:
            stage.wrong.append(f"a coordinator that dies {where} leaves no reset")
    return stage.slots()


def _killed_when(
    stage: Stage, where: str, writes: tuple[bytes, ...], is_before: bool, cause: Callable[[], None] = lambda: None
) -> None:
    victim, before = elected_of(stage), region_of(stage)
    strike = stage.processes[victim].strike
    loss = stage.lose(victim, Loss(partial(_writes, writes), is_request=is_before, then=strike))
    cause()
    happens(loss, f"a commit {where}")
    _replaced(stage, victim, before)


def _killed_when_some_have_drained(stage: Stage) -> None:
    hung = slot(0)
    before = _hung_in_drain(stage, hung)
    victim = elected_of(stage)
    _replaced(stage, victim, before, stage.processes[hung].go_on)


def _replaced(stage: Stage, victim: str, before: Region, then: Callable[[], None] = lambda: None) -> None:
    """The victim is dead; the next coordinator ends what it has begun, and goes on."""
    stage.kill(victim)
    another_is_elected(stage, victim)
    then()
    wait_region(stage, before)
    stage.start_node(victim)


def _writes(words: tuple[bytes, ...], sent: bytes) -> bool:
    return op_code(sent) == MULTI and all(word in sent for word in words)


# ---- the drills


def _in_region(settings: Settings) -> Settings:
    """A member that hangs in `on_drain` shall live until a coordinator was replaced."""
    patient_ms = max(settings.max_poll_interval_ms, 6 * settings.session_timeout_ms)
    return replace(settings, region=REGION, max_poll_interval_ms=patient_ms, partitions=4)


EXACT = "the counts of all are those of one uninterrupted run"

REGIONS = (
    Drill(
        name="region-member-sigkill-in-drain",
        title="Kill a member of a consistent region while it drains (SIGKILL)",
        proves="A checkpoint to which a member has not contributed is never gone back to, and what it had counted is "
        "counted again, once.",
        hypothesis=f"The region goes back to the checkpoint before, and on from there; {EXACT}.",
        fault="SIGKILL to an application that hangs in on_drain while all others have contributed",
        run=_killed_in_drain,
        adjust=_in_region,
        is_short=False,
    ),
    Drill(
        name="region-rebalance-in-drain",
        title="A member joins a consistent region while a checkpoint is open",
        proves="A join waits for the checkpoint that is open, and costs nobody what was counted.",
        hypothesis=f"The checkpoint completes before the next generation begins; {EXACT}.",
        fault="an application hangs in on_drain while another one joins",
        run=_joined_in_drain,
        adjust=_in_region,
        is_short=False,
    ),
    Drill(
        name="region-reset-to-initial",
        title="Reset a consistent region to its initial state",
        proves="A region that is reset to its initial state begins again where it first began.",
        hypothesis=f"Every record is counted again from the first on; {EXACT}.",
        fault="an operator resets the region to its initial state",
        run=_reset_to_initial,
        adjust=_in_region,
        is_short=False,
    ),
    Drill(
        name="region-coordinator-sigkill-each-step",
        title="Kill the coordinator at each step of a checkpoint and of a reset",
        proves="Whatever a coordinator leaves half-done of a checkpoint or a reset, the next one ends.",
        hypothesis=f"The region is Running each time, and takes a checkpoint; {EXACT}.",
        fault="SIGKILL to the node that coordinates: when a checkpoint has begun, its drains are sent, some and all "
        "have contributed, it has completed; when a reset has begun, its stops and its starts are sent",
        run=_coordinator_killed_at_each_step,
        adjust=_in_region,
        is_short=False,
    ),
)
