"""The drills, the options of `drill run`, and one run of a drill: steady state, fault, recovery, and the verdict with
its evidence.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zk_group.coordinator.zk.errors import CoordinatorError, StoreError, UsageError
from zk_group.coordinator.zk.security.access import ZooKeeperAccess, access_at_open
from zk_group.coordinator.zk.values import require

from .base.processes import NotReached, wait_for
from .base.settings import POOL, Settings
from .checker import check
from .checker.invariants.l1_settles import SILENT_SHARE
from .environments.base import BROKER, MEMBER, DrillAccess, Embedded, Environment
from .environments.containers import Containers
from .environments.external import External, NamedGroup
from .evidence import files
from .evidence.fetch_intervals import read_elsewhere
from .evidence.files import Event
from .evidence.measurements import WHAT, Measured, RecordCounts, counted, decided, measured, together_of
from .scenarios.consumers import CONSUMERS, LYING_MEMBERS, SPARK
from .scenarios.coordinators import COORDINATORS, LEADERS
from .scenarios.definition import Drill, Promise
from .scenarios.ensembles import CHANGES, ENSEMBLES, KAFKA
from .scenarios.regions import REGIONS, in_states
from .testbed.commands import READY_S, SPARK_READY_S, Produced, has_remnants
from .testbed.testbed import DataFrameReader, Stage

_ALL = (
    *COORDINATORS, *CONSUMERS, *LEADERS, *REGIONS, *LYING_MEMBERS, *ENSEMBLES, *CHANGES, *SPARK, *KAFKA,
)  # fmt: skip
DRILLS: dict[str, Drill] = {drill.name: drill for drill in _ALL}
"""Every drill, by name."""

DEFAULTS = Settings()
MOST_SERVERS = 3


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """Validated options.

    :ivar names: the drills; empty where `short` or `is_all` chooses them.
    :ivar servers: size of the embedded ensemble.
    :ivar kafka: whether `short` and `is_all` include the drills on a Kafka broker.
    :ivar is_secured: whether znodes have ACLs, and embedded servers TLS and SASL.
    :ivar zk: the operator's ensemble.  :ivar group: a group there.  :ivar execute: False for a dry run on it.
    :ivar access: to its servers.
    :ivar settings: before the drill and the ensemble adjust them.
    :ivar repeat: runs of each drill.  :ivar seed: of the first run.
    :ivar runs: the folder of the evidence.  :ivar keep: whether records and segments stay in it.
    :raises UsageError: when options exclude each other.
    """

    names: tuple[str, ...] = ()
    short: bool = False
    is_all: bool = False
    servers: int = MOST_SERVERS
    kafka: bool = False
    in_docker: bool = False
    is_secured: bool = False
    zk: str | None = None
    group: str | None = None
    execute: bool = False
    repeat: int = 1
    seed: int = 1
    access: ZooKeeperAccess | None = None
    settings: Settings = DEFAULTS
    runs: Path = field(default_factory=lambda: Path("runs"))
    is_json: bool = False
    keep: bool = False

    def __post_init__(self) -> None:
        require(not (self.in_docker and self.zk is not None), "--docker and --zk are mutually exclusive")
        if self.in_docker and self.is_secured:
            raise UsageError("--docker and --secure are mutually exclusive: the servers in containers have no TLS")
        if self.group is not None and self.is_secured:
            raise UsageError("--group and --secure are mutually exclusive: the ACLs of the path of --zk are yours")
        if (self.group is not None and self.zk is None) or (self.execute and self.group is None):
            raise UsageError("--group needs --zk, and --execute needs --group")
        if self.keep and self.group is not None:
            raise UsageError("--keep cannot be used with --group: the next run refuses an existing group")
        if self.keep and self.is_secured and self.zk is not None:
            raise UsageError("--keep cannot be used with --zk and --secure: the kept znodes could not be removed later")
        if sum((bool(self.names), self.short, self.is_all)) != 1:
            raise UsageError("name the drills to run, or give one of --short and --all (see: drill list)")

    @property
    def kind(self) -> type[Embedded | Containers | External]:
        if self.zk is not None:
            return External
        return Containers if self.in_docker else Embedded

    def external(self) -> External | None:
        """The operator's ensemble; None without `zk`.

        :raises UsageError: when `zk` or `group` is malformed.
        :raises ZooKeeperUnreachable: when no server answers.
        :raises AuthenticationFailed: when a server and this machine refuse each other.
        """
        if self.zk is None:
            return None
        access = DrillAccess(access_at_open(self.access), os.environ, self.is_secured)
        if self.group is None:
            return External(self.zk, self.settings.session_timeout_ms, access)
        return NamedGroup(self.zk, self.settings.session_timeout_ms, self.group, access)

    def chosen(self) -> tuple[list[Drill], list[str]]:
        """The drills to run, and a message for each skipped one: `short` and `is_all` skip drills that the ensemble
        does not support.

        :raises UsageError: when the ensemble does not support a named drill, or is too small.
        """
        kind = self.kind
        has_broker = kind is not External and not self.is_secured and (self.kafka or bool(self.names))
        can = kind.can | {BROKER} if has_broker else kind.can
        every = named(self.names) if self.names else [one for one in DRILLS.values() if one.is_short or self.is_all]
        servers = MOST_SERVERS if kind is External else self.servers
        too_few = [one.name for one in every if one.servers > servers]
        if too_few:
            raise UsageError(f"{too_few[0]} needs an ensemble of three: use --servers 3")
        lacks = {one.name: " and ".join(sorted(one.needs - can)) for one in every if one.needs - can}
        lacking = {name: f"{name} needs {lack}: {self._instead(lack, can)}" for name, lack in lacks.items()}
        if lacking and self.names:
            raise UsageError(next(iter(lacking.values())))
        return [one for one in every if one.name not in lacking], list(lacking.values())

    def _instead(self, lack: str, can: frozenset[str]) -> str:
        """A hint: the option of an ensemble that supports the operation."""
        if not can:
            return "no broker is started with --zk" if lack == BROKER else "the servers of --zk are not touched"
        if lack == BROKER and self.is_secured:
            return "no broker is started with --secure"
        return "use --kafka" if lack == BROKER else "use --docker"


def named(names: Sequence[str]) -> list[Drill]:
    """The drills with these names.

    :raises UsageError: when a drill does not exist.
    """
    unknown = [name for name in names if name not in DRILLS]
    if unknown:
        raise UsageError(f"unknown drill {unknown[0]!r}; known drills: {', '.join(DRILLS)}")
    return [DRILLS[name] for name in names]


SETTLE_S = 1.0 + 0.5
"""Margin after the promised time since the last fault; then L1 and L5 are decided."""
REMAINS_S = 0.5
"""Margin after two session timeouts and the collection period since calm; then S7 is decided."""

BREAKS_OFF = (CoordinatorError, OSError, subprocess.SubprocessError)
"""Errors that end a drill and are unrelated to its hypothesis."""

Announce = Callable[[str], None]


@dataclass
class DrillRun:
    """The state of one run of a drill.

    :ivar missing: missing preconditions of a conclusion.
    :ivar wrong: observed violations.
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
    drill: Drill, environment: Environment, reader: DataFrameReader, options: DrillOptions, seed: int, say: Announce
) -> DrillRun:
    """Run one drill; its evidence is in `<options.runs>/<drill>/<UTC>/`.

    :param reader: reads the DataFrame.
    :param say: receives a message for each step.
    :raises OSError: when the runs folder cannot be written.
    """
    began = time.monotonic()
    settings = drill.adjust(environment.adjust(options.settings))
    run = DrillRun(drill, _made_folder(options.runs.resolve() / drill.name), settings, seed)
    produced: Produced = {}
    rows: list[dict[str, Any]] | None = None
    states: RecordCounts | None = None
    histories: list[Path] = []
    chroot = environment.chroot_of(f"{run.folder.name.lower()}-{drill.name}")
    try:
        if not environment.is_healthy():  # an earlier drill has left faults
            environment.heal()
            wait_for(environment.is_healthy, READY_S, "all ZooKeeper servers serve")
        with (
            environment.cleared(chroot, options.keep),
            Stage(environment, run.folder, chroot, run.settings, seed) as stage,
        ):
            _act(run, stage, say)
            try:
                if run.settings.region:
                    states = in_states(stage)
                else:
                    produced, rows = _read(run, stage, reader)
            except (CoordinatorError, OSError) as error:  # their records are unreadable
                run.missing.append(str(error))
            histories = _witnessed(run, stage)
    except BREAKS_OFF as error:  # also during the cleanup, when the evidence may be complete
        run.missing.append(f"aborted: {error}")
    events, unreadable = files.merged_history(histories)
    bounds = run.settings.bounds(environment.tick_s)
    run.missing += [f"unreadable history: {problem}" for problem in unreadable[:3]]
    run.missing += files.granted_otherwise(events, bounds["session_timeout"])
    files.write_history(run.folder / "history.jsonl", events)
    consumers = {event["consumer"] for event in events if event["event"] == "registered"}
    elsewhere = read_elsewhere(events, {name for name in consumers if not name.startswith(f"{POOL}-")})
    records = states or (RecordCounts(0) if rows is None else counted(produced, rows, elsewhere))
    _conclude(run, environment, events, bounds, records)
    run.document["seconds"] = round(time.monotonic() - began, 1)
    files.write_json(run.folder / "run.json", run.document)
    files.write_reports(run.folder, run.document, events)
    if not options.keep:
        for pattern in ("log", "segments", "histories", "writes", "kafka", "spark-*"):
            for left in run.folder.glob(pattern):
                shutil.rmtree(left, ignore_errors=True)
    files.point_latest(run.folder)
    return run


def _witnessed(run: DrillRun, stage: Stage) -> list[Path]:
    """Write the histories of the processes, the drill and ZooKeeper; returns the files."""
    try:
        files.write_json(run.folder / "after.json", files.znodes(stage.store, stage.environment.shown))
    except StoreError as error:
        run.missing.append(f"ZooKeeper is lost: {error}")
    histories = stage.witnessed()
    run.missing += [stage.observer.missing] if stage.observer is not None and stage.observer.missing else []
    return histories


def _made_folder(parent: Path) -> Path:
    """A new folder with a unique name, the start time."""
    while True:
        folder = parent / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")[:-5].replace(".", "")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue


def _act(run: DrillRun, stage: Stage, announce: Announce) -> None:
    """Run all steps; an unreached one is recorded as missing. L1 counts from `calm`, the time after the last fault,
    regardless of the drill's waits."""
    drill, calm = run.drill, None
    try:
        stage.start_all()
        wait_for(lambda: stage.elected(), READY_S, "a coordinator is elected")
        stage.wait_settled(stage.slots(), SPARK_READY_S if run.settings.spark else READY_S)
        stage.wait_sealed(stage.partitions(), READY_S)
        wait_for(lambda: stage.streamed() != [], SPARK_READY_S, "the query delivers records")
        announce(f"steady: {len(stage.slots())} fetchers, {run.settings.partitions} partitions")
        time.sleep(run.settings.steady_s)
        files.write_json(run.folder / "before.json", files.znodes(stage.store, stage.environment.shown))
        announce(f"fault: {drill.fault}")
        drill.run(stage)
        if run.settings.spark != "pool":  # Spark promises no restart time for slots in executors
            calm = stage.notes.note("calm", stuck=[])
        stage.wait_settled(stage.slots())
        announce("settled")
    except StoreError as error:
        run.missing.append(f"ZooKeeper is lost: {error}")
    except BREAKS_OFF as error:
        run.missing.append(str(error))
    try:
        calm = stage.notes.note("calm", stuck=[]) if calm is None else calm
        time.sleep(max(0.0, calm + _settled_s(stage) - time.monotonic()))
        stage.stop_producing()
        stage.drained()
        stage.caught_up(SPARK_READY_S)
        _cleared(stage, calm)
    except BREAKS_OFF as error:
        run.missing.append(str(error))
    run.wrong += [*stage.wrong, *(f"{name} ended unexpectedly" for name in stage.ended())]
    stage.notes.note("end")


def _settled_s(stage: Stage) -> float:
    """The bound of the time from the last fault until the group is Stable.

    It includes a leader's time to answer, and in a consistent region the wait of a generation for a checkpoint.
    """
    bounds = stage.bounds
    asked_s = bounds["assignment_timeout"] if stage.settings.strategy else 0.0
    held_s = bounds["hold"] if stage.settings.region else 0.0
    is_marked = stage.has_liars or bounds["poll_interval"] * SILENT_SHARE < bounds["session_timeout"]
    marked_s = bounds["lease"] if is_marked else 0.0
    return bounds["session_timeout"] + 2 * bounds["tick"] + SETTLE_S + asked_s + held_s + marked_s


def _cleared(stage: Stage, calm: float) -> None:
    """Wait until leftovers of dead incarnations are removed, or old enough for S7 to be decided.

    S7 is decided at the end of a history: a drill that ended sooner would never decide it.
    """
    bounds = stage.bounds
    deadline = calm + 2 * bounds["session_timeout"] + bounds["collection"] + REMAINS_S
    with suppress(NotReached):  # the checker reports it, with its witness
        wait_for(lambda: not has_remnants(stage.group()), deadline - time.monotonic(), "leftovers are removed")


def _read(run: DrillRun, stage: Stage, reader: DataFrameReader) -> tuple[Produced, list[dict[str, Any]]]:
    """The produced records, and those in the DataFrame.

    With a streaming query they are the query's: its finished segments are deleted, and a batch read misses them.

    :raises NotReached: when they are unreadable.
    """
    streamed = stage.streamed()
    if streamed is not None:
        return stage.in_log(), together_of(streamed)
    access = stage.environment.access.to_servers(MEMBER)
    return stage.in_log(), reader.read(stage.zk, run.settings.group, not stage.applications, access)


# ---- the verdict


def _conclude(
    run: DrillRun, environment: Environment, events: Sequence[Event], bounds: Mapping[str, float], records: RecordCounts
) -> None:
    fault_at = next((float(event["at"]) for event in events if event["event"] == "fault"), None)
    effects = measured(events, fault_at) if fault_at is not None else None
    if fault_at is None:
        run.missing.append("the fault did not fire")
    else:
        run.missing += _window(run, events, fault_at)
    leases = (each for each in events if each["event"] == "lease" and each.get("role") == "coordinator")
    if not any(each["until"] >= events[-1]["at"] for each in leases):
        run.missing.append("no coordinator is active at the end")
    verdicts = check(events)
    invariants = {name: verdict.to_json() for name, verdict in verdicts.verdicts.items()}
    if verdicts.set_aside:
        run.missing.append(f"{verdicts.set_aside} events of the history were ignored")
    promises = [_compared(each, bounds, effects) for each in run.drill.promises]
    verdict, why = decided(invariants, promises, records, run.missing, run.wrong)
    run.document = {
        **run.drill.described(environment.touches),
        "verdict": verdict, "why": why, "seed": run.seed, "started": run.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "versions": files.versions(environment.version()), "configuration": asdict(run.settings),
        "ensemble": {
            "kind": environment.kind, "servers": len(environment.addresses), "hosts": ",".join(environment.addresses),
            "security": environment.access.described, **environment.details,
        },
        "bounds": dict(bounds), "promises": promises,
        "marks": {name: {"at": at, "what": WHAT[name]} for name, at in (effects.marks if effects else {}).items()},
        "numbers": effects.to_json() if effects else None,
        "records": asdict(records), "invariants": invariants,
    }  # fmt: skip


def _window(run: DrillRun, events: Sequence[Event], fault_at: float) -> list[str]:
    """Whether enough records came after the fault, in a region by its applications' events: else nothing is proven."""
    came, least = "taken" if run.settings.region else "fetch", run.drill.least_fetched
    count = sum(
        item["next"] - item["first"]
        for event in events
        if event["event"] == came and event["at"] >= fault_at
        for item in event["ranges"]
    )
    return [f"only {count} records came after the fault; {least} are needed for a verdict"] if count < least else []


def _compared(promise: Promise, bounds: Mapping[str, float], effects: Measured | None) -> dict[str, Any]:
    """A promise in run.json, compared with the measurement."""
    bound = promise.bound(bounds)
    was = promise.measured(effects) if effects is not None else None
    return {
        "name": promise.name, "rule": promise.rule, "unit": promise.unit, "bound": round(bound, 3),
        "measured": None if was is None else round(float(was), 3),
        "held": None if was is None else was <= bound,
    }  # fmt: skip
