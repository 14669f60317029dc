"""`scripts/counts`: workers that count in memory and are killed repeatedly, and a verdict."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from common import coordinated, example, run

from zk_group.consumer.logs.embedded.producer import Producer, TopicsInStore
from zk_group.consumer.operator.states import StateFiles
from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.admin.regions import existing_region, read_contributions, request
from zk_group.coordinator.admin.topics import create_topic
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.session.kazoo_store import open_kazoo
from zk_group.coordinator.zk.store import Store
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.coordinator.zk.znodes.regions import CHECKPOINT, RUNNING, RegionRequest
from zk_group.drills.base.processes import Process, module_command, wait_for

from .worker import REGION, SESSION_TIMEOUT_MS, TOPIC

PARTITIONS = 6
KEYS = 200
WORKERS = ("w1", "w2", "w3")
ROUNDS = 4
RECORDS_A_ROUND = 5_000
DEADLINE_S = 60.0


def worker(zk: str, name: str, folder: Path) -> Process:
    """The process of a worker."""
    places = [str(folder / "log"), str(folder / "checkpoints")]
    return Process(folder, name, module_command("counts.worker", [zk, name, *places]))


class Log:
    """Random records with keys; `counts` are those of one uninterrupted run."""

    def __init__(self, store: Store, folder: Path) -> None:
        create_topic(store, Brokers(), TOPIC, PARTITIONS)
        self._topics = TopicsInStore(store, Brokers())
        self._folder = folder
        self._random = random.Random(7)
        self.counts: Counter[str] = Counter()

    def write(self, records: int) -> None:
        """Write more records."""
        with Producer(self._folder / "log", self._topics) as producer:
            for _ in range(records):
                key = f"key-{self._random.randrange(KEYS)}"
                producer.send(TOPIC, b"", key=key.encode())
                self.counts[key] += 1


def is_running(store: Store, members: int) -> bool:
    """Whether the region is Running with this number of members."""
    try:
        found = existing_region(Reading(store), REGION)
    except CoordinatorError:
        return False
    return found.state == RUNNING and sum(found.members.values()) == members


def checkpointed(store: Store, folder: Path) -> tuple[int, Counter[str], int]:
    """A checkpoint's number, the counts of all workers in it, and the number of records below its offsets."""
    before = existing_region(Reading(store), REGION).region
    request(store, REGION, RegionRequest(CHECKPOINT, "scripts/counts"))

    def is_complete() -> bool:
        now = existing_region(Reading(store), REGION).region
        return now is not None and before is not None and now.sequence > before.sequence

    wait_for(is_complete, DEADLINE_S, "a checkpoint is complete")
    region = existing_region(Reading(store), REGION).region
    sequence = region.sequence if region is not None else 0
    files, counts, records = StateFiles(str(folder / "checkpoints"), REGION), Counter[str](), 0
    for name, given in read_contributions(Reading(store), REGION, sequence).items():
        if given is None:
            raise AssertionError(f"{name} of checkpoint {sequence} is unreadable")
        records += sum(given.offsets.values())
        state = files.get(name, given, ())
        counts.update(json.loads(state.member) if state.member else {})
    return sequence, counts, records


def wrong_keys(written: Counter[str], counted: Counter[str]) -> list[str]:
    """Keys whose count differs from the number of records."""
    return sorted(key for key in written.keys() | counted.keys() if written[key] != counted[key])


@example(
    lambda found: (
        f"{found['records']} records, {found['counted']} counted, {found['wrong_keys']} of {found['keys']} keys "
        f"wrong, {found['kills']} workers killed"
    )
)
def main(folder: Path, say: Callable[[str], None]) -> dict[str, object]:
    """Count records per key in the memory of three workers that are killed repeatedly; check every count.

    Exit code 0 and PASS only if the counts are those of one uninterrupted run; else 1 and FAIL.
    """
    (folder / "checkpoints").mkdir()
    kills = 0
    options = "--session-timeout-ms", str(SESSION_TIMEOUT_MS)
    with coordinated(folder, "ab", *options, chroot="/counts") as (zk, workers, nodes):
        store = open_kazoo(zk, 30_000)
        try:
            log = Log(store, folder)
            workers += [worker(zk, name, folder) for name in WORKERS]
            wait_for(lambda: is_running(store, len(WORKERS)), DEADLINE_S, "the region is Running")
            say(f"{len(WORKERS)} workers count {KEYS} keys in {PARTITIONS} partitions")
            for number in range(ROUNDS):
                log.write(RECORDS_A_ROUND)
                sequence, counts, _ = checkpointed(store, folder)
                say(f"checkpoint {sequence}: {sum(counts.values())} of {sum(log.counts.values())} records counted")
                log.write(RECORDS_A_ROUND)
                victim = workers.pop(0)
                victim.kill()
                kills += 1
                say(f"{victim.name} was killed (SIGKILL): its counts since the checkpoint are lost")
                if number == 1:
                    nodes.pop(0).kill()
                    say("a coordinator node was killed, too")
                wait_for(lambda: is_running(store, len(workers)), DEADLINE_S, "the others have restored the checkpoint")
                workers.append(worker(zk, victim.name if number % 2 else f"{victim.name}x", folder))
                wait_for(lambda: is_running(store, len(workers)), DEADLINE_S, "another worker has joined")
            written = sum(log.counts.values())
            counts, sequence = Counter[str](), 0

            def has_all() -> bool:
                nonlocal counts, sequence
                sequence, counts, records = checkpointed(store, folder)
                return records == written

            wait_for(has_all, DEADLINE_S, "every record is counted")
        finally:
            store.close()
    wrong = wrong_keys(log.counts, counts)
    return {
        "verdict": "PASS" if not wrong else "FAIL",
        "records": written,
        "counted": sum(counts.values()),
        "keys": len(log.counts),
        "wrong_keys": len(wrong),
        "kills": kills,
        "checkpoints": sequence,
    }


if __name__ == "__main__":
    run(main, "scripts/counts")
