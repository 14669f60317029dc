"""`bench rebalance`: from a change to a Stable group, and from one coordinator to the next.

All times are from ZooKeeper's clock, except those of signals; server and bench run on one machine, so the clocks
agree. A join begins with its committed registration, a leave with the commit that ends the member; both end with the
last claim of a partition. A coordinator acts with the commit of the first turn of its epoch, for a change after the
old one's end.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zk_group.consumer.config import COORDINATOR_SIDE
from zk_group.coordinator.zk.znodes.paths import COORDINATOR
from zk_group.drills.base.processes import Process, end_all

from .figures import machine, peak_memory_mb, summary
from .group import Group, Owner, eventually

Tell = Callable[[str], None]
TIMES = ("join_ms", "leave_ms", "resign_ms", "kill_ms")
SECURE, OPEN = "secure", "open"
COUNTED = ("transactions", "commands", "waves", "stopped", "had_to_stop")


class Rounds:
    """The measured rounds of one group."""

    def __init__(self, group: Group, members: int, tell: Tell, name: str) -> None:
        self.group = group
        self._name = name
        self._members = members
        self._tell = tell
        self.measured: dict[str, list[float]] = defaultdict(list)

    def begin(self) -> None:
        """All members except the joining one."""
        for _ in range(self._members):
            self.group.add_member()
        self.group.settled(0)

    def round(self, number: int) -> None:
        """One round; round 0 is the warm-up and is not counted."""
        if number == 1:
            self.measured.clear()
        self.join_and_leave()
        self._change_coordinator("resign_ms", Process.terminate)
        self._change_coordinator("kill_ms", Process.strike)
        shown = {name: values[-1] for name, values in self.measured.items()}
        self._tell(f"round {number}{' (warm-up)' if number == 0 else ''}, {self._name}: {shown}")

    def join_and_leave(self) -> None:
        """A join and a leave of one member."""
        group = self.group
        before, commands, owners = group.state_node(), group.commands_ever(), group.owners()
        name = group.add_member()
        after = group.settled(before[0].generation)
        self.measured["join_ms"].append(group.claimed_at() - group.joined_at(name))
        self._count(before, commands, name)
        self._moves(owners)
        group.remove_member(name)
        group.settled(after.generation)
        self.measured["leave_ms"].append(group.claimed_at() - group.left_at(name))

    def _moves(self, before: Mapping[int, Owner]) -> None:
        """For the join: revoked partitions, the minimum of them, and the downtime of each moved partition.

        A downtime is from the commit that revokes the partition (the last one to its old owner's channel, if that
        keeps the rest without a further command) to the new owner's claim.
        """
        after = self.group.owners()
        moved = [number for number, owner in after.items() if owner.consumer != before[number].consumer]
        stopped = sum(owner.czxid != before[number].czxid for number, owner in after.items())
        self.measured["stopped"].append(stopped)
        self.measured["had_to_stop"].append(len(after) // (self._members + 1))
        if stopped == len(moved):
            given_up = {owner.consumer: self.group.written_at(owner.consumer) for owner in before.values()}
            stood = [after[number].since_ms - given_up[before[number].consumer] for number in moved]
            self.measured["moved_standstill_ms"].extend(float(each) for each in stood)

    def _count(self, before: Any, commands: int, name: str) -> None:
        """For the join: all transactions after the registration, commands, waves of starts."""
        group = self.group
        state, first = group.state_node()[1], before[1]
        registered = group.store.get(group.paths.id(name))
        if state is None or registered is None or first is None:
            raise RuntimeError("the group's znodes do not exist")
        turns = state.stat.version - first.stat.version
        self.measured["transactions"].append(state.stat.mzxid - registered.stat.czxid)
        self.measured["commands"].append(group.commands_ever() - commands)
        # Without the first turn, the turn that sets Stable, and under a leader that with the assignment request.
        self.measured["waves"].append(turns - 2 - (group.assignment != COORDINATOR_SIDE))

    def _change_coordinator(self, figure: str, stop: Callable[[Process], None]) -> None:
        group = self.group
        old, epoch = group.elected(), group.epoch()
        before = group.state()
        sent_ms = time.time() * 1000
        stop(old)
        eventually(lambda: _is_over(group, old), "the old coordinator is gone")
        group.add_partition()
        acted_ms = eventually(lambda: _acted_ms(group, epoch), "the next coordinator acts")
        self.measured[figure].append(round(acted_ms - sent_ms, 1))
        group.settled(before.generation)
        end_all([old])
        group.nodes.remove(old)
        group.add_node()


def _is_over(group: Group, old: Process) -> bool:
    node = group.store.get(COORDINATOR)
    return node is None or f'"{old.name}"'.encode() not in node.data


def _acted_ms(group: Group, old_epoch: int) -> int | None:
    state, node = group.state_node()
    # The first commit of the epoch: its state is not Stable yet, and the last write.
    return node.stat.mtime_ms if node is not None and state.epoch > old_epoch else None


def measure(
    folder: Path,
    members: int,
    partitions: int,
    rounds: int,
    session_timeout_ms: int,
    as_processes: bool,
    strategy: str,
    assignments: Sequence[str],
    secure: bool,
    tell: Tell,
) -> dict[str, Any]:
    """Measure, and return one object for `--json`.

    :param assignments: the assignment; several alternate, each with its own group and server.
    :param secure: the one assignment with TLS, SASL and ACLs, alternating with one without.
    """
    names = [SECURE, OPEN] if secure else assignments
    loaded = machine()
    with ExitStack() as stack:
        measured = {}
        for name in names:
            place = folder / name
            place.mkdir()
            side = assignments[0] if secure else name
            group = Group(place, partitions, session_timeout_ms, as_processes, strategy, side, name == SECURE)
            measured[name] = Rounds(stack.enter_context(group), members, tell, name)
            measured[name].begin()
        for number in range(rounds + 1):
            for done in measured.values():
                done.round(number)
        figures = {name: _figures(done) for name, done in measured.items()}
    common = {
        "bench": "rebalance",
        "strategy": strategy,
        "members": members,
        "partitions": partitions,
        "rounds": rounds,
        "processes": as_processes,
        "assignment": ",".join(assignments),
    }
    if len(figures) == 1:
        return {**common, **next(iter(figures.values())), **loaded}
    ratios = {time: round(figures[names[0]][time]["median"] / figures[names[1]][time]["median"], 3) for time in TIMES}
    return {**common, **figures, "ratio": ratios["join_ms"], "ratios": ratios, **loaded}


def _figures(done: Rounds) -> dict[str, Any]:
    group = done.group
    return {
        **{name: summary(done.measured[name]) for name in (*TIMES, "moved_standstill_ms")},
        **{name: summary(done.measured[name], 0) for name in COUNTED},
        "kill_bound_ms": group.kill_bound_ms,
        "coordinator_peak_mb": max(peak_memory_mb(node.pid) for node in group.nodes),
    }
