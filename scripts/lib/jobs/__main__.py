"""`scripts/jobs`: workers with named jobs, some killed, frozen and stopped, and a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from common import coordinated, example, run

from zk_group.drills.base.processes import Process, end_all, module_command, wait_for

from .worker import SESSION_TIMEOUT_MS

JOBS = ("backup", "compact", "digest", "expire", "index", "mail", "report", "rotate")
WORKERS = ("w1", "w2", "w3")
DEADLINE_S = 60.0


def worker(zk: str, name: str, folder: Path) -> Process:
    """The process of a worker."""
    return Process(folder, name, module_command("jobs.worker", [zk, name, str(folder), *JOBS]))


class Step(NamedTuple):
    """A line of a job's log: time (nanoseconds), generation, process."""

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


def all_run(folder: Path, workers: list[Process]) -> bool:
    """Whether these workers ran every job in the last half second, and each of them has a job."""
    since = time.monotonic_ns() - 500_000_000
    now = {f"{each.name}-{each.pid}" for each in workers}
    recent = {job: {line.who for line in lines if line.at > since} for job, lines in steps(folder).items()}
    busy = set().union(*recent.values())
    return all(who and who <= now for who in recent.values()) and busy == now


@example(
    lambda found: (
        f"{found['jobs']} jobs, {found['steps']} steps, in two places: {found['in_two_places'] or 'none'}, "
        f"left: {found['never_run'] or 'none'}"
    )
)
def main(folder: Path, say: Callable[[str], None]) -> dict[str, object]:
    """Divide eight named jobs among three workers; kill, freeze and stop one each; check that no job ran in two places.

    Exit code 0 and PASS only if no job ran in two places, and every job ran; else 1 and FAIL.
    """
    options = "--session-timeout-ms", str(SESSION_TIMEOUT_MS)
    with coordinated(folder, "a", *options, chroot="/jobs") as (zk, workers, _):

        def until(what: str) -> None:
            wait_for(lambda: all_run(folder, workers), DEADLINE_S, what)

        workers += [worker(zk, name, folder) for name in WORKERS]
        until("every job runs")
        say(f"{len(JOBS)} jobs run with {len(workers)} workers")
        killed = workers.pop(1)
        killed.kill()
        at = time.monotonic()
        say(f"{killed.name} was killed (SIGKILL)")
        until("the others run its jobs")
        took_s = time.monotonic() - at
        say(f"the others run its jobs, {took_s:.1f} s later")
        workers.append(worker(zk, killed.name, folder))
        until("it has jobs again")
        say(f"{killed.name} is back, and has jobs again")
        frozen = workers.pop()
        frozen.pause()
        say(f"{frozen.name} is frozen (SIGSTOP)")
        until("the others run its jobs")
        frozen.resume()
        workers.append(frozen)
        until("it is a member again")
        say(f"{frozen.name} resumed (SIGCONT): the others ran its jobs, and it has jobs again")
        leaving = workers.pop(0)
        end_all([leaving])
        until("the others run its jobs, too")
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


if __name__ == "__main__":
    run(main, "scripts/jobs")
