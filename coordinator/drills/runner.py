"""Running one drill: its steady state, its fault, what comes after, and the verdict with its evidence."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..checker import check
from ..zk.errors import CoordinatorError, StoreError
from .drill import Drill
from .evidence import point_latest, versions, write_history, write_json, write_reports, znodes
from .ground import Ground
from .histories import Event, granted_otherwise, logged, merged_history, write_down
from .holds import read_elsewhere
from .measure import WHAT, Measured, measured
from .reader import Reader
from .regions import in_states
from .remnants import remnants
from .settings import POOL, Settings
from .sight import READY_S, SPARK_READY_S, Produced
from .stage import Stage
from .verdict import Records, counted, decided, together_of
from .waiting import NotReached, wait_for

SETTLE_S = 1.0 + 0.5
"""L1 and L5 are decided when the promised time after the last fault has gone by, and a little more."""
REMAINS_S = 0.5
"""S7 is decided at two session timeouts and the collection period after calm, and a little more."""

BREAKS_OFF = (CoordinatorError, OSError, subprocess.SubprocessError)
"""What may end a drill and has nothing to do with what it was to show."""

Tell = Callable[[str], None]


@dataclass
class Run:
    """What is known of one run of one drill.

    :ivar missing: what a conclusion would have needed.
    :ivar wrong: what was seen that must not be.
    """

    drill: Drill
    folder: Path
    settings: Settings
    seed: int
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`PASS`, `FAIL` or `INCONCLUSIVE`."""
        return str(self.document["verdict"])


def run_drill(
    drill: Drill, ground: Ground, runs: Path, settings: Settings, seed: int, reader: Reader, tell: Tell, keep: bool
) -> Run:
    """Run one drill; its evidence is in `runs/<drill>/<UTC>/`.

    :param reader: reads the DataFrame.
    :param tell: gets a sentence for each thing that happens.
    :param keep: leave the log and the segments in the folder.
    :raises OSError: when the runs folder cannot be written.
    """
    began = time.monotonic()
    run = Run(drill, _made_folder(runs / drill.name), drill.adjust(settings), seed)
    produced: Produced = {}
    rows: list[dict[str, Any]] | None = None
    states: Records | None = None
    files: list[Path] = []
    chroot = ground.chroot_of(f"{run.folder.name.lower()}-{drill.name}")
    try:
        _make_whole(ground)
        with ground.cleared(chroot, keep), Stage(ground, run.folder, chroot, run.settings, seed) as stage:
            _act(run, stage, tell)
            if run.settings.region:
                states = _in_states(run, stage)
            else:
                produced, rows = _read(run, stage, reader)
            files = _witnessed(run, stage, chroot)
    except BREAKS_OFF as error:  # also in clearing up, when everything may be known already
        run.missing.append(f"broken off: {error}")
    events, unreadable = merged_history(files)
    bounds = run.settings.bounds(ground.tick_s)
    run.missing += [f"a history cannot be read: {problem}" for problem in unreadable[:3]]
    run.missing += granted_otherwise(events, bounds["session_timeout"])
    write_history(run.folder / "history.jsonl", events)
    elsewhere = read_elsewhere(events, _applications(events))
    records = states or (Records(0) if rows is None else counted(produced, rows, elsewhere))
    _conclude(run, ground, events, bounds, records)
    run.document["seconds"] = round(time.monotonic() - began, 1)
    write_json(run.folder / "run.json", run.document)
    write_reports(run.folder, run.document, events)
    if not keep:
        for pattern in ("log", "segments", "histories", "kafka", "spark-*"):
            for left in run.folder.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)
    point_latest(run.folder)
    return run


def _witnessed(run: Run, stage: Stage, chroot: str) -> list[Path]:
    """Write down what the processes, the drill and ZooKeeper know; the files."""
    try:
        write_json(run.folder / "after.json", znodes(stage.store, stage.ground.shown))
    except StoreError as error:
        run.missing.append(f"ZooKeeper is lost: {error}")
    observer = stage.observer
    witness = observer.events if observer is not None else logged(stage.notes, stage.ground.transaction_logs, chroot)
    files = write_down(stage.notes, stage.histories, witness, stage.store.session_id)
    run.missing += [observer.missing] if observer is not None and observer.missing else []
    return files


def _make_whole(ground: Ground) -> None:
    """Undo what an earlier drill may have left of its faults."""
    if not ground.is_healthy():
        ground.heal()
        wait_for(ground.is_healthy, READY_S, "all ZooKeeper servers serve")


def _made_folder(parent: Path) -> Path:
    """A folder named after the time; made, and nobody else's."""
    while True:
        folder = parent / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")[:-5].replace(".", "")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue


def _act(run: Run, stage: Stage, tell: Tell) -> None:
    """Everything that is done; what does not come is noted as missing."""
    drill, calm = run.drill, None
    try:
        stage.start_all()
        wait_for(lambda: stage.elected(), READY_S, "a coordinator is elected")
        stage.wait_settled(stage.slots(), SPARK_READY_S if run.settings.spark else READY_S)
        _flows(stage, run.settings.partitions)
        tell(f"steady: {len(stage.slots())} fetchers, {run.settings.partitions} partitions")
        time.sleep(run.settings.steady_s)
        write_json(run.folder / "before.json", znodes(stage.store, stage.ground.shown))
        tell(f"fault: {drill.fault}")
        consumers = drill.run(stage)
        if run.settings.spark != "pool":  # slots in executors come back when Spark starts them, which nobody promises
            calm = _noted_calm(stage)
        stage.wait_settled(consumers)
        tell("settled again")
    except StoreError as error:
        run.missing.append(f"ZooKeeper is lost: {error}")
    except BREAKS_OFF as error:
        run.missing.append(str(error))
    try:
        calm = _noted_calm(stage) if calm is None else calm
        _until(calm + _settled_s(stage))
        stage.stop_producing()
        stage.drained()
        stage.caught_up(SPARK_READY_S)
        _cleared(stage, calm)
    except BREAKS_OFF as error:
        run.missing.append(str(error))
    run.wrong += [*stage.wrong, *(f"{name} has ended, and nobody has ended it" for name in stage.ended())]
    stage.notes.note("end")


def _noted_calm(stage: Stage) -> float:
    """The last fault is over; when. From here on L1 counts: what settles late is late, however patient the drill is."""
    return stage.notes.note("calm", stuck=sorted(stage.stuck))


def _settled_s(stage: Stage) -> float:
    """How long after the last fault the group must be Stable.

    A leader has its time to answer, where one is asked; in a consistent region a generation waits for a checkpoint.
    """
    bounds = stage.bounds
    asked_s = bounds["assignment_timeout"] if stage.settings.strategy else 0.0
    held_s = bounds["hold"] if stage.settings.region else 0.0
    return bounds["session_timeout"] + 2 * bounds["tick"] + SETTLE_S + asked_s + held_s


def _flows(stage: Stage, partitions: int) -> None:
    """Wait until something of every partition has been sealed."""

    def has_begun() -> bool:
        offsets = stage.sealed_offsets()
        return len(offsets) >= partitions and all(offsets.values())

    wait_for(has_begun, READY_S, "records of every partition are sealed")
    wait_for(lambda: stage.streamed() != [], SPARK_READY_S, "the query delivers records")


def _until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


def _cleared(stage: Stage, calm: float) -> None:
    """Where the dead have left something, wait until it is gone, or has been there for so long that S7 is decided."""
    bounds = stage.bounds
    due = calm + 2 * bounds["session_timeout"] + bounds["collection"] + REMAINS_S
    with suppress(NotReached):  # the checker says it, with its witness
        wait_for(lambda: not remnants(stage.group()), due - time.monotonic(), "nothing of the dead remains")


def _read(run: Run, stage: Stage, reader: Reader) -> tuple[Produced, list[dict[str, Any]] | None]:
    """What was produced, and what is in the DataFrame; None where that cannot be read.

    Where a streaming query runs, it is the query's: what that has finished is collected, and no batch read finds it.
    """
    try:
        streamed = stage.streamed()
        if streamed is not None:
            return stage.in_log(), together_of(streamed)
        return stage.in_log(), reader.read(stage.zk, run.settings.group, not stage.applications)
    except (NotReached, OSError) as error:
        run.missing.append(str(error))
        return {}, None


def _in_states(run: Run, stage: Stage) -> Records | None:
    """What the states of a region's members hold together; None where that cannot be read."""
    try:
        return in_states(stage)
    except (CoordinatorError, OSError) as error:
        run.missing.append(str(error))
        return None


def _applications(events: Sequence[Event]) -> set[str]:
    """The consumers that are no slots."""
    return {e["consumer"] for e in events if e["event"] == "registered" and not e["consumer"].startswith(f"{POOL}-")}


# ---- the verdict


def _conclude(run: Run, ground: Ground, events: Sequence[Event], bounds: Mapping[str, float], records: Records) -> None:
    fault_at = next((float(event["at"]) for event in events if event["event"] == "fault"), None)
    found = measured(events, fault_at) if fault_at is not None else None
    if fault_at is None:
        run.missing.append("the fault did not fire")
    else:
        run.missing += _window(run.drill, events, fault_at)
    if not _is_coordinated(events):
        run.missing.append("no coordinator acts in the end")
    verdicts = check(events)
    invariants = {name: verdict.to_json() for name, verdict in verdicts.verdicts.items()}
    if verdicts.set_aside:
        run.missing.append(f"{verdicts.set_aside} events of the history could not be judged")
    promises = _promises(run.drill, bounds, found)
    verdict, why = decided(invariants, promises, records, run.missing, run.wrong)
    run.document = {
        **run.drill.described(ground.touches),
        "verdict": verdict,
        "why": why,
        "seed": run.seed,
        "started": run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": versions(ground.version()),
        "configuration": run.settings.to_json(),
        "ensemble": {
            "kind": ground.kind,
            "servers": len(ground.addresses),
            "hosts": ",".join(ground.addresses),
            **ground.told,
        },
        "bounds": dict(bounds),
        "promises": promises,
        "marks": {name: {"at": at, "what": WHAT[name]} for name, at in (found.marks if found else {}).items()},
        "numbers": found.to_json() if found else None,
        "records": records.to_json(),
        "invariants": invariants,
    }


def _is_coordinated(events: Sequence[Event]) -> bool:
    """Whether some coordinator holds its lease in the end."""
    end = events[-1]["at"] if events else 0.0
    return any(
        event["event"] == "lease" and event.get("role") == "coordinator" and event["until"] >= end for event in events
    )


def _window(drill: Drill, events: Sequence[Event], fault_at: float) -> list[str]:
    """Whether records came after the fault: without any, nothing was shown."""
    count = sum(
        item["next"] - item["first"]
        for event in events
        if event["event"] == "fetch" and event["at"] >= fault_at
        for item in event["ranges"]
    )
    if count >= drill.least_fetched:
        return []
    return [f"only {count} records came after the fault; {drill.least_fetched} are needed to show anything"]


def _promises(drill: Drill, bounds: Mapping[str, float], found: Measured | None) -> list[dict[str, Any]]:
    result = []
    for promise in drill.promises:
        bound = promise.bound(bounds)
        was = promise.measured(found) if found is not None else None
        result.append(
            {
                "name": promise.name,
                "rule": promise.rule,
                "unit": promise.unit,
                "bound": round(bound, 3),
                "measured": None if was is None else round(was, 3),
                "held": None if was is None else was <= bound,
            }
        )
    return result
