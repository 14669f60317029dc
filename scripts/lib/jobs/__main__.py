"""`scripts/jobs`: workers with named jobs, of which some are killed, frozen and stopped, and a verdict."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from demo.processes import Node, environment

from coordinator.zk.embedded.ensemble import Ensemble
from coordinator.zk.process.cli import exit_code_of
from coordinator.zk.security.access import clear_environment

from .worker import SESSION_TIMEOUT_MS

JOBS = ("backup", "compact", "digest", "expire", "index", "mail", "report", "rotate")
WORKERS = ("w1", "w2", "w3")
DEADLINE_S = 60.0


class Worker:
    """The process of a worker."""

    def __init__(self, zk: str, name: str, folder: Path) -> None:
        self.name = name
        command = [sys.executable, "-m", "jobs.worker", zk, name, str(folder), *JOBS]
        with (folder / f"{name}.out").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), start_new_session=True)

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and wait for the process to end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Step(NamedTuple):
    """A line of a job's log: when (nanoseconds), in which generation, by which process."""

    at: int
    generation: int
    who: str


def steps(folder: Path) -> dict[str, list[Step]]:
    """Job -> its steps, in order."""
    found = {}
    for job in JOBS:
        log = folder / f"{job}.log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        found[job] = sorted(Step(int(at), int(generation), who) for at, who, generation in lines)
    return found


def in_two_places(found: dict[str, list[Step]]) -> list[str]:
    """Jobs that ran in two processes in one generation, or in an old generation after the next one's start."""
    odd = []
    for job, lines in found.items():
        generations = [line.generation for line in lines]
        holders = {(line.generation, line.who) for line in lines}
        if generations != sorted(generations) or len(holders) != len(set(generations)):
            odd.append(job)
    return odd


def until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition.

    :raises AssertionError: after the deadline.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {DEADLINE_S:g} s: {what}")
        time.sleep(0.05)


def all_run(folder: Path, workers: list[Worker]) -> bool:
    """Whether one of these workers ran each job in the last half second, and each of them has a job."""
    since = time.monotonic_ns() - 500_000_000
    now = {f"{each.name}-{each.process.pid}" for each in workers}
    recent = {job: {line.who for line in lines if line.at > since} for job, lines in steps(folder).items()}
    busy = set().union(*recent.values())
    return all(who and who <= now for who in recent.values()) and busy == now


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, list[Worker]]]:
    """ZooKeeper, a coordinator, and a list for workers; all are stopped at the end."""
    workers: list[Worker] = []
    with Ensemble(folder / "zookeeper") as ensemble:
        zk = f"{ensemble.hosts}/jobs"
        node = Node("a", zk, folder, SESSION_TIMEOUT_MS)
        try:
            yield zk, workers
        finally:
            for worker in workers:
                worker.end(signal.SIGKILL)
            node.stop()


def story(folder: Path, say: Callable[[str], None]) -> dict[str, object]:
    """Run the example; returns the verdict."""
    with running(folder) as (zk, workers):
        workers += [Worker(zk, name, folder) for name in WORKERS]
        until("every job runs", lambda: all_run(folder, workers))
        say(f"{len(JOBS)} jobs run with {len(workers)} workers")
        killed = workers.pop(1)
        killed.end(signal.SIGKILL)
        at = time.monotonic()
        say(f"{killed.name} was killed (SIGKILL)")
        until("the others run its jobs", lambda: all_run(folder, workers))
        took_s = time.monotonic() - at
        say(f"the others run its jobs, {took_s:.1f} s later")
        workers.append(Worker(zk, killed.name, folder))
        until("it has jobs again", lambda: all_run(folder, workers))
        say(f"{killed.name} is back, and has jobs again")
        frozen = workers.pop()
        frozen.process.send_signal(signal.SIGSTOP)
        say(f"{frozen.name} is frozen (SIGSTOP)")
        until("the others run its jobs", lambda: all_run(folder, workers))
        frozen.process.send_signal(signal.SIGCONT)
        workers.append(frozen)
        until("it is a member again", lambda: all_run(folder, workers))
        say(f"{frozen.name} resumed (SIGCONT): the others ran its jobs, and it has jobs again")
        leaving = workers.pop(0)
        leaving.end(signal.SIGTERM)
        until("the others run its jobs, too", lambda: all_run(folder, workers))
        say(f"{leaving.name} has left (SIGTERM), and the others run its jobs")
    found = steps(folder)
    twice, never = in_two_places(found), sorted(job for job, lines in found.items() if not lines)
    return {
        "verdict": "FAIL" if twice or never else "PASS",
        "jobs": len(JOBS),
        "steps": sum(map(len, found.values())),
        "in_two_places": twice,
        "never_run": never,
        "seconds_without_a_killed_workers_jobs": round(took_s, 1),
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json_line", is_flag=True, help="The last line on stdout is one JSON object.")
def main(as_json_line: bool) -> None:
    """Divide eight named jobs among three workers; kill, freeze and stop one each; check that no job ran in two places.

    Exit code 0 and PASS only if no job ran in two places, and every job ran; else 1 and FAIL.
    """
    with tempfile.TemporaryDirectory(prefix="zk-group-jobs-") as folder:
        verdict = story(Path(folder), lambda what: click.echo(what, err=True))
    if as_json_line:
        click.echo(json.dumps(verdict))
    else:
        click.echo(f"{verdict['verdict']}: {verdict['jobs']} jobs, {verdict['steps']} steps, in two places: "
                   f"{verdict['in_two_places'] or 'none'}, left: {verdict['never_run'] or 'none'}")  # fmt: skip
    sys.exit(0 if verdict["verdict"] == "PASS" else 1)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    clear_environment()  # the servers are its own
    sys.exit(exit_code_of(partial(main.main, sys.argv[1:], prog_name="scripts/jobs", standalone_mode=False)))
