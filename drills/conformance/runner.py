"""Runs scenarios side by side on one ensemble, each in a chroot of its own."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from ..base import signals
from ..base.waiting import NotReached, wait_for
from ..evidence.verdict import FAIL, INCONCLUSIVE, PASS
from ..testbed.probes import READY_S
from .bench import Bench, Ground
from .definition import NotConforming, Scenario
from .judge import judged

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
