"""`bench region`: the cost of checkpoints and resets of a consistent region, and of a rebalance without a region.

Every member is a process that always has records and processes a few at a time. A pause is a member's: from its last
record before a checkpoint until `poll` returns the first one after it. A reset is an operator's, from the request until
the last member's state is restored. A rebalance is a join, as in `bench rebalance`, under an eager strategy, as a reset
stops every member. End times are from ZooKeeper's clock.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.admin.regions import request
from zk_group.coordinator.admin.topics import usable_topics
from zk_group.coordinator.zk.znodes.paths import Brokers, RegionPaths
from zk_group.coordinator.zk.znodes.records import parsed_channel
from zk_group.coordinator.zk.znodes.regions import (
    CHECKPOINT,
    COMPLETED,
    RESET,
    RUNNING,
    CheckpointEnd,
    Progress,
    Region,
    RegionRequest,
)
from zk_group.drills.base.processes import module_command

from .figures import machine, peak_memory_mb, summary
from .ground import fill_embedded
from .group import TOPIC, Group, Member, eventually
from .rebalance import Rounds

REGION = "bench"
STRATEGY = "range"
RECORD_BYTES = 100
RECORDS_A_PARTITION = 400
CALM_S = 1.5
"""After a reset records are slow for a second: no checkpoint is measured then."""

Tell = Callable[[str], None]


class RegionGroup(Group):
    """A group with processes of the benchmark as members.

    :param region: the members' region; empty for none.
    """

    def __init__(self, folder: Path, partitions: int, session_timeout_ms: int, region: str) -> None:
        super().__init__(folder, partitions, session_timeout_ms, True, STRATEGY)
        self.region = region
        self.regional = RegionPaths(REGION)

    def fill(self) -> None:
        """More records than the benchmark consumes."""
        topic = usable_topics(Reading(self.store), Brokers())[TOPIC]
        count = self.partitions * RECORDS_A_PARTITION
        size = RECORDS_A_PARTITION * RECORD_BYTES
        fill_embedded(self.folder / "log", TOPIC, topic.id, self.partitions, count, RECORD_BYTES, size)

    def start_member(self, name: str) -> Member:
        config = json.dumps({**self.fields(name), "region": self.region})
        return Member(self.folder, name, module_command("bench.region_member", [config]))

    # ---- the state of the region

    def record(self) -> Region:
        """The current region."""
        return Reading(self.store).parsed(self.regional.root, Region.parse) or Region()

    def running(self, above: int = 0) -> None:
        """Wait until the region is Running in a reset above `above` with all members."""
        eventually(lambda: (now := self.record()).state == RUNNING and now.reset > above, "the region is Running")

    def restored_ms(self, above: int) -> int | None:
        """When the last member was ready after a reset above `above`, on ZooKeeper's clock; None until all are."""
        nodes = self.store.get_many([self.paths.channel(name) for name in self.members])
        regional = [(parsed_channel("a channel", node.data).region or Progress(), node.stat) for node in nodes if node]
        is_back = len(regional) == len(self.members) and all(progress.ready > above for progress, _ in regional)
        return max(stat.mtime_ms for _, stat in regional) if is_back else None

    def pauses(self, checkpoint: int) -> list[float] | None:
        """Each member's report of a checkpoint; None until it is complete."""
        members = [member for member in self.members.values() if isinstance(member, Member)]
        reports = [line for member in members for line in member.printed()]
        found = [line["pause_ms"] for line in reports if line["checkpoint"] == checkpoint]
        return found if len(found) == len(members) else None


class RegionRounds:
    """The measured rounds of a group in a region."""

    def __init__(self, group: RegionGroup, tell: Tell) -> None:
        self._group = group
        self._tell = tell
        self.measured: dict[str, list[float]] = defaultdict(list)

    def round(self, number: int) -> None:
        """A checkpoint and a reset; round 0 is the warm-up and is not counted."""
        if number == 1:
            self.measured.clear()
        time.sleep(CALM_S)
        pauses = self._checkpoint()
        self._reset()
        self._tell(
            f"round {number}{' (warm-up)' if number == 0 else ''}: pauses {max(pauses):.0f} ms at most, "
            f"checkpoint {self.measured['checkpoint_ms'][-1]:g} ms, reset {self.measured['reset_ms'][-1]:g} ms"
        )

    def _checkpoint(self) -> list[float]:
        group = self._group
        before = group.record().sequence
        request(group.store, REGION, RegionRequest(CHECKPOINT, "bench"))
        sequence = eventually(
            lambda: now if (now := group.record().sequence) > before else None, "a checkpoint completes"
        )
        pauses = eventually(lambda: group.pauses(sequence), "every member continues after it")
        end = Reading(group.store).parsed(group.regional.end(sequence, COMPLETED), CheckpointEnd.parse)
        self.measured["pause_ms"] += pauses
        self.measured["checkpoint_ms"].append(end.duration_ms if end is not None else 0)
        return pauses

    def _reset(self) -> None:
        group = self._group
        before, asked_ms = group.record().reset, time.time() * 1000
        request(group.store, REGION, RegionRequest(RESET, "bench"))
        restored_ms = eventually(lambda: group.restored_ms(before), "every member's state is restored")
        self.measured["reset_ms"].append(round(restored_ms - asked_ms, 1))
        group.running(before)


def measure(
    folder: Path, members: int, partitions: int, rounds: int, session_timeout_ms: int, tell: Tell
) -> dict[str, Any]:
    """Measure, and return one object for `--json`.

    The group without a region runs first, so that the groups do not compete for the machine.
    """
    loaded = machine()
    joins = _rebalances(folder / "without", members, partitions, rounds, session_timeout_ms, tell)
    place = folder / "with"
    place.mkdir()
    with RegionGroup(place, partitions, session_timeout_ms, REGION) as group:
        group.fill()
        for _ in range(members):
            group.add_member()
        group.settled(0)
        group.running()
        done = RegionRounds(group, tell)
        for number in range(rounds + 1):
            done.round(number)
        peak_mb = max(peak_memory_mb(node.pid) for node in group.nodes)
    resets, rebalances = summary(done.measured["reset_ms"]), summary(joins)
    ratio = resets["median"] / rebalances["median"] if resets and rebalances else 0.0
    return {
        "bench": "region",
        "members": members,
        "partitions": partitions,
        "rounds": rounds,
        "pause_ms": summary(done.measured["pause_ms"]),
        "checkpoint_ms": summary(done.measured["checkpoint_ms"]),
        "reset_ms": resets,
        "rebalance_ms": rebalances,
        "reset_ratio": round(ratio, 3),
        "coordinator_peak_mb": peak_mb,
        **loaded,
    }


def _rebalances(
    folder: Path, members: int, partitions: int, rounds: int, session_timeout_ms: int, tell: Tell
) -> list[float]:
    """Milliseconds of each join of the group without a region."""
    folder.mkdir()
    with RegionGroup(folder, partitions, session_timeout_ms, "") as group:
        group.fill()
        done = Rounds(group, members, tell, "without a region")
        done.begin()
        for number in range(rounds + 1):
            done.join_and_leave()
            join_ms = done.measured["join_ms"][-1]
            tell(f"round {number}{' (warm-up)' if number == 0 else ''}, without a region: a join {join_ms:g} ms")
        return done.measured["join_ms"][1:]
