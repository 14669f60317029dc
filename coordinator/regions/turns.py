"""A turn of a consistent region: read it and its groups, decide, write under the coordinator's fence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ..term.metrics import OF_AN_APPLICATION, OF_AN_OPERATOR
from ..term.reading import Findings
from ..term.request_queue import Pace
from ..term.term import Term
from ..zk.batching import ROOM, batches
from ..zk.errors import AccessDenied, BadData, RebalanceFailed, Refused, WriteDenied
from ..zk.store import MAX_COMMIT_BYTES, Check, Create, Delete, Operation, SetData
from ..zk.znodes.paths import GroupPaths, RegionPaths
from ..zk.znodes.regions import (
    ABANDONED,
    ABORTED,
    COMPLETED,
    FAILED,
    RUNNING,
    CheckpointEnd,
    Contribution,
    Region,
    ended_checkpoint,
)
from .copies import Copies
from .plan import RegionPlan, RegionRules, RegionSnapshot, aborted, region_plan
from .region_reader import RegionRead, RegionReader, Timing
from .retiring import is_named, remove_region, retire, to_retire

log = logging.getLogger(__name__)

REFUSALS_A_TURN = 10
REFUSED_PAUSE_S = 1.0
"""After the first turn that was refused so often; it doubles with each further one in a row."""
LONGEST_REFUSED_PAUSE_S = 30.0
REMOVING_PAUSE_S = 0.05
ABANDONED_AT_ONCE = 300
REQUESTS_AT_ONCE = 10
"""So many requests, less than `LONGEST_REQUEST_PAUSE_S` apart, are answered without a pause."""
LONGEST_REQUEST_PAUSE_S = 1.0


class RegionTurns:
    """Takes the turns of one region in one term.

    :param is_paused: whether a group is paused.
    :param failure: why a group's turns fail; empty while they succeed.
    """

    def __init__(
        self,
        term: Term,
        region: str,
        rules: RegionRules,
        is_paused: Callable[[str], bool],
        failure: Callable[[str], str] = lambda group: "",
    ) -> None:
        self._term = term
        self._store = term.store
        self._paths = RegionPaths(region)
        self._rules = rules
        self._reader = RegionReader(term, self._paths, is_paused, failure)
        self._timing = Timing(term.runtime)
        self._findings = Findings(term.problems)
        self._refused_turns = 0
        self._requests = Pace(REQUESTS_AT_ONCE, LONGEST_REQUEST_PAUSE_S, LONGEST_REQUEST_PAUSE_S)
        self._forget()

    def _forget(self) -> None:
        """Drop the cache: another region with the same name may use the same numbers."""
        self._reader.forget()
        self._timing.forget()
        self._is_retired = False
        self._noted: tuple[int, bool, int] | None = None
        self._copies = Copies(self._store, self._paths)

    def take_turn(self, wanted: str, held: Collection[str] = ()) -> tuple[float | None, tuple[str, ...]]:
        """One turn. It leaves a request for a later turn when many have followed each other.

        :param wanted: the reason for a checkpoint, empty without one.
        :param held: groups with a generation that waits for one.
        :returns: delay of the next turn, and the groups that must take a turn now.
        :raises EpochOver: when another coordinator has been elected.
        :raises LeaseLapsed: when this coordinator must not act.
        :raises RebalanceFailed: when an ACL refuses what it writes.
        :raises Retryable: when ZooKeeper did not answer.
        """
        again_s, groups = self._taken(wanted, held)
        left_s = self._requests.until - self._term.runtime.monotonic()
        if left_s > 0:
            again_s = left_s if again_s is None else min(left_s, again_s)
        return again_s, groups

    def _taken(self, wanted: str, held: Collection[str]) -> tuple[float | None, tuple[str, ...]]:
        for _ in range(REFUSALS_A_TURN):
            read = self._read(wanted)
            if read is None:
                self._forget()
                self._term.metrics.region_gone(self._paths.region)
                return None, ()
            snapshot = read.snapshot
            if not snapshot.region.groups:
                return self._removed(read.version), ()
            decided = region_plan(snapshot, self._rules)
            if decided.region == snapshot.region and not decided.is_answered:
                return self._retire(decided, decided.again_s), self._news(snapshot.region, held)
            copies: list[tuple[str, Contribution]] = []
            if decided.completed:
                try:
                    copies = list(self._copies.copies(snapshot))
                except BadData as error:  # the parts without a contributor would be lost
                    decided = aborted(snapshot, decided, f"the checkpoint before it cannot be read: {error}")
            if decided.begun is not None or decided.completed or decided.aborted:
                self._is_retired = False  # also when the reply is lost, and the next turn finds it done
            if self._commit(read, decided, copies):
                self._refused_turns = 0
                if decided.is_answered:
                    self._answered()
                self._note(snapshot, decided)
                if decided.completed:
                    self._copies.completed(snapshot, decided.completed, copies)
                return self._retire(decided, decided.again_s), self._news(decided.region, held)
        self._refused_turns += 1
        return min(LONGEST_REFUSED_PAUSE_S, REFUSED_PAUSE_S * 2 ** min(self._refused_turns - 1, 10)), ()

    def _answered(self) -> None:
        if self._requests.taken(self._term.runtime.monotonic()):
            log.warning("region requests paced: region=%s requests=%d", self._paths.region, self._requests.count)

    def _news(self, region: Region, held: Collection[str]) -> tuple[str, ...]:
        """The groups with work since their last requested turn, by any cause."""
        now = region.reset, region.state == FAILED, region.open
        before, self._noted = self._noted, now
        if now == before:
            return ()
        has_only_ended = before is not None and before[:2] == now[:2] and not region.open
        return tuple(group for group in region.groups if group in held) if has_only_ended else region.groups

    # ---- reading

    def _read(self, wanted: str) -> RegionRead | None:
        """The turn's input. An unreadable request is removed."""
        read = self._reader.read(wanted, self._timing)
        if read is None:
            return None
        self._measure(read.snapshot.region)
        if read.request is not None and self._term.runtime.monotonic() < self._requests.until:
            return read._replace(request=None, snapshot=replace(read.snapshot, request=None))
        if read.request is None or read.snapshot.request is not None:
            return read
        self._answered()
        removed = [Delete(self._paths.request, read.request.stat.version)]
        if not self._write(removed):
            self._write(removed)  # its children are gone now
        return read._replace(request=None)

    def _measure(self, region: Region) -> None:
        self._term.metrics.region_seen(self._paths.region, region.state, lambda: self._timing.age_s)

    # ---- writing

    def _commit(self, read: RegionRead, decided: RegionPlan, copies: Sequence[tuple[str, Contribution]]) -> bool:
        snapshot, version, request = read
        written: list[Operation] = [SetData(self._paths.root, decided.region.to_bytes(), version)]
        if decided.begun is not None:
            path = self._paths.checkpoint(decided.region.open)
            written.append(Create(path, decided.begun.to_bytes()))
        if decided.begun is not None or decided.region.state == RUNNING != snapshot.region.state:
            written += [Check(GroupPaths(group).state, at) for group, at in snapshot.versions.items()]
        end = CheckpointEnd(snapshot.now_ms, self._timing.took_ms(snapshot), decided.reason)
        if decided.completed:
            if not self._copy(decided.completed, copies):
                return False
            files = tuple(sorted({given.file.checkpoint for _, given in copies if given.file is not None}))
            written += self._ended(snapshot, decided.completed, COMPLETED, replace(end, files=files))
        if decided.aborted:
            written += self._ended(snapshot, decided.aborted, ABORTED, end)
        marks = [[Create(self._paths.end(sequence, ABANDONED), end.to_bytes())] for sequence in decided.abandoned]
        for sequence in decided.abandoned:
            self._reader.read_again(sequence)
        *before, last = batches(marks, ABANDONED_AT_ONCE) if marks else [[]]
        unmoved = Check(self._paths.root, version)
        if not all(self._write([unmoved, *batch]) for batch in before):
            return False
        written += last
        if decided.is_answered and request is not None:
            written.append(Delete(self._paths.request, request.stat.version))
        return self._write(written)

    def _ended(self, snapshot: RegionSnapshot, sequence: int, how: str, end: CheckpointEnd) -> list[Operation]:
        if snapshot.checkpoint is None:
            return []
        strays = [Delete(self._paths.end(sequence, stray)) for stray in sorted(snapshot.strays)]
        return [*strays, *ended_checkpoint(self._paths, sequence, snapshot.checkpoint.to_bytes(), how, end)]

    def _copy(self, sequence: int, copies: Sequence[tuple[str, Contribution]]) -> bool:
        there = self._store.children(self._paths.checkpoint(sequence)) if copies else None
        known = set(there.names if there is not None else ())
        units = [
            [Create(f"{self._paths.checkpoint(sequence)}/{name}", given.to_bytes())]
            for name, given in copies
            if name not in known
        ]
        return all(self._write(batch) for batch in batches(units, ROOM, MAX_COMMIT_BYTES // 2))

    def _write(self, operations: Sequence[Operation]) -> bool:
        """Commit under the fence; False when the turn must start over."""
        return self._term.write(operations, self._restarted)

    def _restarted(self, refused: Refused | None) -> None:
        if isinstance(refused, WriteDenied):
            raise RebalanceFailed(f"the ACL of {refused.path}, or of its parent, refuses the coordinator's writes")
        if refused is not None:
            log.info(
                "region turn restarted: region=%s refused=%s reason=%s",
                self._paths.region, refused.path, refused.reason,
            )  # fmt: skip

    def _note(self, snapshot: RegionSnapshot, decided: RegionPlan) -> None:
        name, before, after = self._paths.region, snapshot.region, decided.region
        took_ms = self._timing.took_ms(snapshot)
        if decided.completed or decided.aborted:
            self._timing.ended(decided.is_late)
            self._term.metrics.checkpoint_ended(name, COMPLETED if decided.completed else ABORTED, took_ms / 1000)
        if decided.completed:
            self._timing.stands_on(decided.completed)
        if after.reset != before.reset and snapshot.request is not None:
            cause = OF_AN_APPLICATION if snapshot.request.by_application else OF_AN_OPERATOR
            self._term.metrics.region_reset(name, cause)
        self._reader.read_cut(after, self._timing)
        self._measure(after)
        if decided.begun is not None:
            self._timing.begun(after.open)
            count = sum(map(len, decided.begun.participants.values()))
            log.info(
                "checkpoint began: region=%s checkpoint=%d trigger=%s participants=%d",
                name, after.open, decided.begun.trigger, count,
            )  # fmt: skip
        if decided.completed:
            log.info("checkpoint completed: region=%s checkpoint=%d ms=%d", name, decided.completed, took_ms)
        if decided.aborted:
            log.warning("checkpoint aborted: region=%s checkpoint=%d reason=%s", name, decided.aborted, decided.reason)
        if decided.is_answered and decided.reason:
            log.warning("region request: region=%s reason=%s", name, decided.reason)
        elif after.reason and after.reason != before.reason and after.state == before.state:
            log.error("checkpoint refused: region=%s reason=%s", name, after.reason)
        if after.state != before.state:
            log.info(
                "region state changed: region=%s state=%s reset=%d checkpoint=%d reason=%s",
                name, after.state, after.reset, after.sequence, after.reason or "-",
            )  # fmt: skip

    # ---- retirement

    def _removed(self, version: int) -> float | None:
        """Remove the region, which has no groups; the delay of the next turn."""
        if is_named(self._store, self._paths.region):
            return None  # the turn of that group adds it to the list again
        if not remove_region(self._store, self._paths, version, self._write):
            return REMOVING_PAUSE_S
        log.info("region removed: region=%s", self._paths.region)
        self._forget()
        self._term.metrics.region_gone(self._paths.region)
        return None

    def _retire(self, decided: RegionPlan, again_s: float | None) -> float | None:
        """Remove some of the old checkpoints; `again_s`, or sooner if some are left."""
        if self._is_retired or again_s == 0.0:
            return again_s  # this turn's writes are read first
        complete, ended = self._reader.ended(COMPLETED), self._reader.ended(ABORTED, ABANDONED)
        old = to_retire(self._reader.numbers, complete, ended, decided.region.sequence, self._rules.kept)
        for number in old:
            self._reader.read_again(number)  # also when only a part of it is removed
        try:
            self._is_retired = retire(self._store, self._paths, old, self._write)
        except (AccessDenied, RebalanceFailed) as error:  # of an old checkpoint: the next one is not hindered
            self._findings.report(self._paths.checkpoint(old[0]), str(error))
            self._is_retired = True
        self._findings.done()
        return again_s if self._is_retired else 0.0
