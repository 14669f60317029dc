"""Runs scenarios side by side on one ensemble, each in a chroot of its own."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from coordinator.zk.errors import CoordinatorError

from ..base.waiting import NotReached, wait_for
from .bench import Bench, Ground
from .definition import NotConforming, Scenario
from .judge import judged

ABORTS = (CoordinatorError, OSError, subprocess.SubprocessError)
HEALTHY_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario's result.

    :ivar why: what was wrong, one sentence each; empty when it passed.
    :ivar folder: the history, and what the processes have printed.
    """

    scenario: Scenario
    why: tuple[str, ...]
    seconds: float
    folder: Path

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.why

    def to_json(self) -> dict[str, object]:
        """An entry of `scenarios`."""
        return {
            "name": self.scenario.name,
            "title": self.scenario.title,
            "optional": self.scenario.needs or None,
            "passed": self.passed,
            "why": list(self.why),
            "seconds": round(self.seconds, 1),
            "folder": str(self.folder),
        }


def run_all(
    ground: Ground, scenarios: Sequence[Scenario], side_by_side: int, done: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run scenarios; the results have their order. An interrupt ends all processes, and is raised again.

    :param done: called with each result as it comes.
    """
    wait_for(ground.environment.is_healthy, HEALTHY_S, "ZooKeeper serves")
    found: dict[str, Outcome] = {}
    with ThreadPoolExecutor(side_by_side, thread_name_prefix="conformance") as pool:
        try:
            for future in as_completed([pool.submit(_run_one, each, ground) for each in scenarios]):
                outcome = future.result()
                found[outcome.scenario.name] = outcome
                done(outcome)
        except BaseException:
            ground.stopping.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [found[each.name] for each in scenarios]


def _run_one(scenario: Scenario, ground: Ground) -> Outcome:
    began = time.monotonic()
    folder = ground.folder / scenario.name
    why: list[str] = []
    try:
        with Bench(scenario, ground) as bench:
            own_session = bench.store.session_id
            why += _acted(bench)
            bench.notes.note("end")
        logs = ground.environment.transaction_logs()
        why += judged(bench.notes, bench.histories, logs, bench.chroot, own_session)
    except ABORTS as error:
        why.append(f"aborted: {error}")
    shutil.rmtree(folder / "log", ignore_errors=True)
    return Outcome(scenario, tuple(why), time.monotonic() - began, folder)


def _acted(bench: Bench) -> list[str]:
    """Run the scenario; returns what was wrong."""
    why: list[str] = []
    try:
        for number in range(bench.scenario.nodes):
            bench.node(f"node-{number + 1}")
        bench.scenario.act(bench)
        why += [f"no process has consumed the records of {span}" for span in bench.unconsumed()]
    except (NotConforming, NotReached) as error:
        why.append(str(error))
    except ABORTS as error:
        why.append(f"aborted: {error}")
    ended = sorted(name for name, node in bench.nodes.items() if not node.is_running and name not in bench.killed)
    return why + [f"aborted: the coordinator {name} has ended unexpectedly" for name in ended]
