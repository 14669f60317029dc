"""One worker: it joins the group, and repeatedly runs a step of each of its jobs, while it is permitted.

    python -m jobs.worker ZK NAME FOLDER JOB...

The leader distributes the jobs round-robin. A step is one line in `FOLDER/JOB.log`: time (the machine's monotonic
clock, in nanoseconds), worker, and generation.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from zk_group.consumer.errors import AssignmentFailed
from zk_group.consumer.group import GroupMember
from zk_group.coordinator.zk.runtime import ThreadRuntime, on_signals

GROUP = "jobs"
PROTOCOL_TYPE = "named-jobs"
STEP_MS = 50
SESSION_TIMEOUT_MS = 3000


def deal(protocol: str, members: Mapping[str, bytes]) -> dict[str, bytes]:
    """All jobs of the members, distributed round-robin."""
    jobs = sorted({job for metadata in members.values() for job in json.loads(metadata)})
    names = sorted(members)
    return {name: json.dumps(jobs[place :: len(names)]).encode() for place, name in enumerate(names)}


def main(zk: str, name: str, folder: Path, jobs: list[str]) -> None:
    """Work until SIGTERM."""
    stopping = ThreadRuntime().event()
    on_signals((signal.SIGTERM, signal.SIGINT), lambda number: stopping.set())
    protocols = {"deal": json.dumps(jobs).encode()}
    with GroupMember(
        zk, GROUP, PROTOCOL_TYPE, protocols, deal, member=name, session_timeout_ms=SESSION_TIMEOUT_MS
    ) as member:
        while not stopping.is_set():
            try:
                given = member.poll(STEP_MS)
            except AssignmentFailed as failure:
                print(f"{name}: {failure}", file=sys.stderr)
                continue
            for job in json.loads(given.state) if given is not None and given.state else ():
                if member.may_run:  # before each step: the job may have moved
                    step(folder / f"{job}.log", name, given.generation if given is not None else 0)


def step(log: Path, name: str, generation: int) -> None:
    """The work: one line, in one write."""
    line = f"{time.monotonic_ns()} {name}-{os.getpid()} {generation}\n".encode()
    with log.open("ab", buffering=0) as file:
        file.write(line)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
