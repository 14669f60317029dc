"""A turn of a consistent region: read it and its groups, decide, write under the coordinator's fence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import TypeVar

from ..channels import ended_checkpoint
from ..metrics import OF_AN_APPLICATION, OF_AN_OPERATOR, CoordinatorMetrics
from ..problems import Problems
from ..reading import Records
from ..rebalance import LeaseLapsed
from ..term import Term
from ..zk.errors import BadData, EpochOver, OutcomeUnknown, Refused
from ..zk.fenced import batches
from ..zk.lease import Lease
from ..zk.paths import COORDINATOR_EPOCH, GroupPaths, RegionPaths, checkpoint_number, contribution_name
from ..zk.region_requests import RegionRequest
from ..zk.regions import (
    ABANDONED,
    ABORTED,
    COMPLETED,
    ENDS,
    FAILED,
    Checkpoint,
    CheckpointEnd,
    Contribution,
    Region,
)
from ..zk.runtime import Runtime
from ..zk.state import GroupState
from ..zk.store import MAX_COMMIT_BYTES, Check, Create, Delete, Node, Operation, SetData, Store
from .clearing import ROOM, clear_below
from .copies import Copies
from .group_reader import CONTRIBUTIONS_AT_ONCE
from .plan import RegionPlan, RegionRules, RegionSnapshot, aborted, region_plan
from .retiring import is_named, remove_region, retire, to_retire

log = logging.getLogger(__name__)

T = TypeVar("T")

REFUSALS_A_TURN = 10
REFUSED_PAUSE_S = 1.0
REMOVING_PAUSE_S = 0.05
ABANDONED_AT_ONCE = 300


class RegionTurns:
    """Takes the turns of one region for one term.

    :param is_paused: whether a group is paused.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        term: Term,
        lease: Lease,
        region: str,
        rules: RegionRules,
        problems: Problems,
        is_paused: Callable[[str], bool],
        metrics: CoordinatorMetrics,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._term = term
        self._lease = lease
        self._paths = RegionPaths(region)
        self._rules = rules
        self._problems = problems
        self._is_paused = is_paused
        self._metrics = metrics
        self._ended_at = runtime.monotonic()
        self._late = 0
        self._records = Records()
        self._forget()

    def _forget(self) -> None:
        """Nothing is known of the region: another one may come under its name, with the same numbers."""
        self._cut: tuple[int, float] = -1, 0.0
        self._began: tuple[int, float] = 0, 0.0
        self._mine: tuple[int, float] = 0, 0.0
        self._given: tuple[int, dict[tuple[str, str], Contribution | None]] = 0, {}
        self._stands: dict[str, str] = {}
        self._numbers: tuple[int, ...] = ()
        self._is_retired = False
        self._told: tuple[int, bool, int] | None = None
        self._copies = Copies(self._store, self._paths)

    def take_turn(self, wanted: str, held: Collection[str] = ()) -> tuple[float | None, tuple[str, ...]]:
        """One turn.

        :param wanted: what asks for a checkpoint, empty when nothing does.
        :param held: groups of which a generation waits for one.
        :returns: when the next one is due, and the groups that must take a turn now.
        :raises EpochOver: when another coordinator has been elected.
        :raises LeaseLapsed: when this one must not act.
        :raises Retryable: when ZooKeeper did not answer.
        """
        for _ in range(REFUSALS_A_TURN):
            read = self._read(wanted)
            if read is None:
                self._forget()
                self._metrics.region_gone(self._paths.region)
                return None, ()
            snapshot, version, request = read
            if not snapshot.region.groups:
                return self._removed(version), ()
            decided = region_plan(snapshot, self._rules)
            if decided.region == snapshot.region and not decided.is_answered:
                return self._retire(decided, decided.again_s), self._news(snapshot.region, held)
            copies: list[tuple[str, Contribution]] = []
            if decided.completed:
                try:
                    copies = list(self._copies.copies(snapshot))
                except BadData as error:  # what nobody contributes would be lost
                    decided = aborted(snapshot, decided, f"the checkpoint before it cannot be read: {error}")
            if self._commit(snapshot, version, request, decided, copies):
                self._note(snapshot, decided)
                if decided.completed:
                    self._copies.completed(snapshot, decided.completed, copies)
                return self._retire(decided, decided.again_s), self._news(decided.region, held)
        return REFUSED_PAUSE_S, ()

    def _news(self, region: Region, held: Collection[str]) -> tuple[str, ...]:
        """The groups for which something is to be done since they were last asked for a turn, whoever changed it."""
        now = region.reset, region.state == FAILED, region.open
        before, self._told = self._told, now
        if now == before:
            return ()
        has_only_ended = before is not None and before[:2] == now[:2] and not region.open
        return tuple(group for group in region.groups if group in held) if has_only_ended else region.groups

    # ---- reading

    def _read(self, wanted: str) -> tuple[RegionSnapshot, int, Node | None] | None:
        """The region, then the checkpoint that is open, then its groups."""
        node, asked = self._store.get_many([self._paths.root, self._paths.request])
        region = self._parsed(self._paths.root, node, Region.parse) if node is not None else None
        if node is None or region is None:
            return None
        numbers, sequences, open_names = self._checkpoints(region)
        region = replace(region, next_sequence=_free(region, numbers))
        checkpoint, groups = self._groups(region)
        contributions = self._contributions(region.open, checkpoint, open_names) if checkpoint is not None else {}
        self._records.forget_unseen()
        now = self._runtime.monotonic()
        if self._began[0] != region.open:
            self._began = region.open, now
        self._see(region, now)
        snapshot = RegionSnapshot(
            region,
            groups,
            frozenset(group for group in region.groups if self._is_paused(group)),
            checkpoint,
            contributions,
            strays=frozenset(ENDS).intersection(open_names),
            late=self._late,
            cut_s=now - self._ended_at,
            open_s=now - self._began[1],
            completed=sequences,
            request=self._parsed(self._paths.request, asked, RegionRequest.parse) if asked is not None else None,
            wanted=wanted,
            now_ms=self._runtime.wall_ms(),
        )
        if asked is not None and snapshot.request is None:
            removed = [Delete(self._paths.request, asked.stat.version)]
            if not self._write(removed):
                self._write(removed)  # what stood below it is gone now
            asked = None
        return snapshot, node.stat.version, asked

    def _see(self, region: Region, now: float) -> None:
        """Keep when the cut that the region stands on completed, for metrics: a later coordinator reads it once."""
        if self._cut[0] != region.sequence:
            node = self._store.get(self._paths.end(region.sequence, COMPLETED)) if region.sequence else None
            path = self._paths.end(region.sequence, COMPLETED)
            end = self._parsed(path, node, CheckpointEnd.parse) if node is not None else None
            age_ms = max(0, self._runtime.wall_ms() - end.at_ms) if end is not None else 0
            self._cut = region.sequence, now - age_ms / 1000
        self._metrics.region_seen(self._paths.region, region.state, lambda: self._runtime.monotonic() - self._cut[1])

    def _took_ms(self, snapshot: RegionSnapshot) -> int:
        """From the begin of the open checkpoint until now; of one that another coordinator began, by wall clocks."""
        sequence, since = self._mine
        if sequence == snapshot.region.open:
            return round((self._runtime.monotonic() - since) * 1000)
        return max(0, snapshot.now_ms - snapshot.checkpoint.since_ms) if snapshot.checkpoint is not None else 0

    def _checkpoints(self, region: Region) -> tuple[list[int], tuple[int, ...], Sequence[str]]:
        """The sequences of all checkpoints, those of complete ones, in order; and what stands below the open one."""
        paths = [self._paths.checkpoints, *([self._paths.checkpoint(region.open)] if region.open else [])]
        listing, *opened = self._store.children_many(paths)
        numbers = sorted(filter(None, map(checkpoint_number, listing.names if listing is not None else ())))
        unknown = [n for n in numbers if str(n) not in self._stands and n != region.open]
        below = self._store.children_many([self._paths.checkpoint(n) for n in unknown])
        for number, each in zip(unknown, below, strict=True):
            names = each.names if each is not None else []
            if how := next((end for end in (ABANDONED, ABORTED, COMPLETED) if end in names), ""):
                self._stands[str(number)] = how
        ended = frozenset(map(str, numbers)) - {str(region.open)}
        self._stands = {n: how for n, how in self._stands.items() if n in ended}
        self._numbers = tuple(numbers)
        open_names = opened[0].names if opened and opened[0] is not None else ()
        return numbers, self._standing(COMPLETED), open_names

    def _contributions(
        self, sequence: int, checkpoint: Checkpoint, names: Sequence[str]
    ) -> Mapping[tuple[str, str], Contribution | None]:
        """What has been contributed to the open checkpoint; each is read once."""
        if self._given[0] != sequence:
            self._given = sequence, {}
        known, there = self._given[1], frozenset(names)
        wanted = [
            (group, consumer)
            for group, some in checkpoint.participants.items()
            for consumer in some
            if (group, consumer) not in known and contribution_name(group, consumer) in there
        ]
        for first in range(0, len(wanted), CONTRIBUTIONS_AT_ONCE):
            some = wanted[first : first + CONTRIBUTIONS_AT_ONCE]
            paths = [self._paths.contribution(sequence, *who) for who in some]
            for who, where, found in zip(some, paths, self._store.get_many(paths), strict=True):
                if found is not None:
                    known[who] = self._parsed(where, found, Contribution.parse)
        return known

    def _groups(self, region: Region) -> tuple[Checkpoint | None, dict[str, GroupState]]:
        """The checkpoint that is open, and the states of the region's groups."""
        opened = [self._paths.checkpoint(region.open)] if region.open else []
        paths = [GroupPaths(group).state for group in region.groups]
        nodes = self._store.get_many([*opened, *paths])
        first = nodes[0] if opened else None
        checkpoint = self._parsed(opened[0], first, Checkpoint.parse) if first is not None else None
        found = {}
        for group, path, node in zip(region.groups, paths, nodes[len(opened) :], strict=True):
            state = self._parsed(path, node, GroupState.parse) if node is not None else None
            if state is not None:
                found[group] = state
        return checkpoint, found

    def _parsed(self, path: str, node: Node, parse: Callable[[str, bytes], T]) -> T | None:
        try:
            found = self._records.parsed(path, node.data, parse)
        except BadData as error:
            self._problems.report(path, str(error))
            return None
        self._problems.clear(path)
        return found

    # ---- writing

    def _commit(
        self,
        snapshot: RegionSnapshot,
        version: int,
        request: Node | None,
        decided: RegionPlan,
        copies: Sequence[tuple[str, Contribution]],
    ) -> bool:
        written: list[Operation] = [SetData(self._paths.root, decided.region.to_bytes(), version)]
        if decided.begun is not None:
            path = self._paths.checkpoint(decided.region.open)
            written.append(Create(path, decided.begun.to_bytes()))
        end = CheckpointEnd(snapshot.now_ms, self._took_ms(snapshot), decided.reason)
        if decided.completed:
            if not self._copy(decided.completed, copies):
                return False
            files = tuple(sorted({given.file.checkpoint for _, given in copies if given.file is not None}))
            written += self._ended(snapshot, decided.completed, COMPLETED, replace(end, files=files))
        if decided.aborted:
            written += self._ended(snapshot, decided.aborted, ABORTED, end)
        marks = [[Create(self._paths.end(sequence, ABANDONED), end.to_bytes())] for sequence in decided.abandoned]
        for sequence in decided.abandoned:
            self._stands.pop(str(sequence), None)
        *before, last = batches(marks, ABANDONED_AT_ONCE) if marks else [[]]
        unmoved = Check(self._paths.root, version)
        if not all(self._write([unmoved, *some]) for some in before):
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
        return all(self._write(some) for some in batches(units, ROOM, MAX_COMMIT_BYTES // 2))

    def _write(self, operations: Sequence[Operation]) -> bool:
        if not self._lease.is_held:
            raise LeaseLapsed(f"region {self._paths.region}: the lease has lapsed")
        try:
            self._store.commit([Check(COORDINATOR_EPOCH, self._term.fence), *operations])
        except Refused as refused:
            if refused.path == COORDINATOR_EPOCH:
                raise EpochOver(f"epoch {self._term.epoch} is over: another coordinator was elected") from refused
            log.info(
                "region turn restarts: region=%s refused=%s reason=%s",
                self._paths.region, refused.path, refused.reason,
            )  # fmt: skip
            if refused.reason == "not-empty":
                self._clear_below(refused.path)
            return False
        except OutcomeUnknown:
            self._store.sync()
            return False
        return True

    def _clear_below(self, path: str) -> None:
        """Remove what somebody has put below a znode of the protocol's, the deepest first, some at a time."""
        stray, fence = f"{path}/...", Check(COORDINATOR_EPOCH, self._term.fence)
        self._problems.report(stray, "nothing may stand here; it is removed")

        def commit(operations: Sequence[Operation]) -> bool:
            with suppress(Refused, OutcomeUnknown):
                self._store.commit([fence, *operations])
            return True

        if clear_below(self._store, path, commit, ROOM):
            self._problems.clear(stray)

    def _note(self, snapshot: RegionSnapshot, decided: RegionPlan) -> None:
        name, before, after = self._paths.region, snapshot.region, decided.region
        took_ms, now = self._took_ms(snapshot), self._runtime.monotonic()
        if decided.completed or decided.aborted:
            self._ended_at = now
            self._late = self._late + 1 if decided.is_late else 0
            self._metrics.checkpoint_ended(name, COMPLETED if decided.completed else ABORTED, took_ms / 1000)
        if decided.completed:
            self._cut = decided.completed, now
        if after.reset != before.reset and snapshot.request is not None:
            self._metrics.region_reset(name, OF_AN_APPLICATION if snapshot.request.by_application else OF_AN_OPERATOR)
        self._see(after, now)
        if decided.begun is not None:
            self._mine = self._began = after.open, now
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
                "region state: region=%s state=%s reset=%d checkpoint=%d reason=%s",
                name, after.state, after.reset, after.sequence, after.reason or "-",
            )  # fmt: skip

    # ---- retirement

    def _removed(self, version: int) -> float | None:
        """Remove the region, to which no group is bound; when the next turn is due."""
        if is_named(self._store, self._paths.region):
            return None  # the turn of that group puts it into the list again
        if not remove_region(self._store, self._paths, version, self._write):
            return REMOVING_PAUSE_S
        log.info("region removed: region=%s", self._paths.region)
        self._forget()
        self._metrics.region_gone(self._paths.region)
        return None

    def _retire(self, decided: RegionPlan, again_s: float | None) -> float | None:
        """Remove some of the checkpoints that are kept no more; `again_s`, or sooner where some are left."""
        if decided.begun is not None or decided.completed or decided.aborted:
            self._is_retired = False
        if self._is_retired or again_s == 0.0:
            return again_s  # what this turn has written is read first
        complete, ended = self._standing(COMPLETED), self._standing(ABORTED, ABANDONED)
        old = to_retire(self._numbers, complete, ended, decided.region.sequence, self._rules.kept)
        self._is_retired = retire(self._store, self._paths, old, self._write)
        for number in old:
            self._stands.pop(str(number), None)
        return again_s if self._is_retired else 0.0

    def _standing(self, *ends: str) -> tuple[int, ...]:
        """The checkpoints that have ended so, in order."""
        return tuple(n for n in self._numbers if self._stands.get(str(n)) in ends)


def _free(region: Region, numbers: Sequence[int]) -> int:
    """The number of the next checkpoint, but for those that a hand has made."""
    there = set(numbers) - {region.open}
    return next(number for number in count(region.next_sequence) if number not in there)
