"""Runs scenarios side by side on one ensemble, each in a chroot of its own, and replays the transaction log of each:
the checker's invariants, and the bounds of a consumer's multis."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.zk.store import MAX_COMMIT_BYTES, MAX_OPERATIONS
from coordinator.zk.znodes.paths import NODES, GroupPaths

from ..base import signals
from ..base.processes import NotReached, wait_for
from ..checker import check
from ..evidence.files import STRANGER, Event, merged_history, write_history
from ..evidence.verdict import FAIL, INCONCLUSIVE, PASS
from ..testbed.probes import READY_S
from .bench import Bench, Ground, Scenario
from .event_lines import NotConforming

OF_THE_MACHINE = (OSError, subprocess.SubprocessError)
"""Errors that are unrelated to the consumer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario's result.

    :ivar optional: the feature that it needs.
    :ivar why: what was wrong, one sentence each; empty when it passed.
    :ivar aborted: why the kit itself could not go on: then `why` proves nothing about the consumer.
    :ivar folder: the history, and what the processes have printed.
    """

    name: str
    title: str
    optional: str | None
    why: list[str]
    aborted: list[str]
    seconds: float
    folder: str

    @property
    def verdict(self) -> str:
        """PASS, FAIL, or INCONCLUSIVE when it was aborted."""
        return INCONCLUSIVE if self.aborted else FAIL if self.why else PASS


def run_all(
    ground: Ground, scenarios: Sequence[Scenario], side_by_side: int, done: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run scenarios; the results have their order. An interrupt ends all processes, and is raised again.

    :param done: called with each result as it comes.
    """
    wait_for(ground.environment.is_healthy, READY_S, "ZooKeeper serves")
    with ThreadPoolExecutor(side_by_side, thread_name_prefix="conformance") as pool:
        futures = [pool.submit(_run_one, each, ground) for each in scenarios]
        try:
            for future in as_completed(futures):
                done(future.result())
        except BaseException:
            signals.ignore()  # the scenarios stop waiting, too
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _run_one(scenario: Scenario, ground: Ground) -> Outcome:
    began = time.monotonic()
    folder = ground.folder / scenario.name
    why: list[str] = []
    aborted: list[str] = []
    try:
        with Bench(scenario, ground) as bench:
            why += acted(bench)
            ended = [name for name in bench.ended() if name.startswith("node-")]
            aborted += [f"the coordinator {name} has ended unexpectedly" for name in ended]
            bench.notes.note("end")
            bench.end()
            files = bench.witnessed()
        why += judged(files, folder)
    except OF_THE_MACHINE as error:
        aborted.append(str(error))
    except Exception as error:  # noqa: BLE001  an unforeseen consumer must not end the other scenarios
        why.append(_unexpected(error))
    if why and not ground.environment.is_healthy():
        aborted.append("ZooKeeper does not serve")
    shutil.rmtree(folder / "log", ignore_errors=True)
    seconds = round(time.monotonic() - began, 1)
    return Outcome(scenario.name, scenario.title, scenario.needs or None, why, aborted, seconds, str(folder))


def acted(bench: Bench) -> list[str]:
    """Run the scenario; returns what the consumer did wrong."""
    why: list[str] = []
    try:
        bench.start_all()
        bench.scenario.act(bench)
        why += [f"no process has consumed the records of {span}" for span in bench.trials.unconsumed()]
        if not bench.scenario.repeats:
            bench.trials.require_once()
    except (NotConforming, NotReached) as error:
        why.append(str(error))
    except OF_THE_MACHINE:
        raise
    except Exception as error:  # noqa: BLE001  its transaction log is judged, too
        why.append(_unexpected(error))
    return why


def _unexpected(error: Exception) -> str:
    return f"aborted: {type(error).__name__}: {error}"


MOST_PATHS = 3
ANY = "[^/]+"
OF_ANY = GroupPaths(ANY)
CHANNEL = re.compile(OF_ANY.channel(ANY))
PARENTS = re.compile("|".join([*OF_ANY.skeleton, OF_ANY.owners_of(ANY), OF_ANY.offsets_of(ANY)]))


def judged(files: Sequence[Path], folder: Path) -> list[str]:
    """What the histories show to be wrong; empty when every invariant that they can decide was held.

    :param files: of the coordinators, the kit and ZooKeeper, in one history left in `folder`.
    """
    events, problems = merged_history(files)
    write_history(folder / "history.jsonl", events)
    verdicts = check(events)
    found = [f"unreadable history: {problem}" for problem in problems]
    found += [f"{verdict.invariant} is broken: {verdict.why}" for verdict in verdicts.broken]
    return found + multis_of_consumers(events)


def multis_of_consumers(events: Sequence[Event]) -> list[str]:
    """The commits of consumers that are too large, or not under the fence of a channel."""
    found = []
    commits = [event for event in events if event["event"] == "commit"]
    nodes = {event["who"] for event in commits if any(each["path"].startswith(f"{NODES}/") for each in event["ops"])}
    for event in commits:
        if not event["who"].startswith(STRANGER) or event["who"] in nodes:  # a node that wrote no history yet
            continue
        operations = event["ops"]
        size = sum(len(each["path"]) + len(each.get("data") or "") for each in operations)
        what = f"the multi at zxid 0x{event['zxid']:x}"
        if len(operations) > MAX_OPERATIONS or size > MAX_COMMIT_BYTES:
            found.append(f"{what} has {len(operations)} operations and {size} bytes")
        elif not _is_fenced(operations):
            paths = ", ".join(sorted({each["path"] for each in operations})[:MOST_PATHS])
            found.append(f"{what} changes {paths}, and neither sets nor checks a channel")
    return found


def _is_fenced(operations: Sequence[dict[str, Any]]) -> bool:
    fences = [each for each in operations if each["op"] in ("set", "check") and CHANNEL.fullmatch(each["path"])]
    return bool(fences) or all(map(_is_parent, operations))


def _is_parent(operation: dict[str, Any]) -> bool:
    """Whether it creates a parent, or an empty channel."""
    if operation["op"] != "create" or operation.get("ephemeral"):
        return False
    path = operation["path"]
    return bool(PARENTS.fullmatch(path) or (CHANNEL.fullmatch(path) and not operation.get("data")))
