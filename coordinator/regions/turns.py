"""The turns of all regions in one term: read a region and its groups, decide, write under the coordinator's fence. Old
checkpoints are removed in batches, one in each turn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ..planning.regional import RegionStep
from ..term.metrics import OF_AN_APPLICATION, OF_AN_OPERATOR
from ..term.reading import Findings
from ..term.request_queue import AGAIN, Cause, GroupTurn, Pace, RegionTurn, Request, RequestQueue, Trigger
from ..term.term import Term
from ..zk.backoff import Backoff
from ..zk.errors import AccessDenied, BadData, RebalanceFailed, Refused
from ..zk.store import MAX_COMMIT_BYTES, Check, Create, Delete, Operation, SetData, Store, Watch, existing_nodes
from ..zk.update import ROOM, batches, clear_below
from ..zk.values import in_chunks
from ..zk.znodes.group_state import STABLE, GroupState
from ..zk.znodes.paths import GROUPS, REGIONS, GroupPaths, RegionPaths, is_name, names_below
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
from .plan import Ending, RegionPlan, RegionRules, RegionSnapshot, aborted, region_plan
from .region_reader import RegionReader

log = logging.getLogger(__name__)

TURNS_MAKE_ONE_WAVE_S = 0.010
ZNODES_A_TURN = 2_000
STATES_AT_ONCE = 100
ENDED_KEPT = 20
"""Number of aborted or abandoned checkpoints that are kept, for operators."""

REFUSALS_A_TURN = 10
REFUSED_BACKOFF = Backoff(1.0, 30.0)
"""After consecutive turns that were each refused as often."""
REMOVING_PAUSE_S = 0.05
ABANDONED_AT_ONCE = 300
REQUESTS_AT_ONCE = 10
"""Requests less than `LONGEST_REQUEST_PAUSE_S` apart that are answered without a pause."""
LONGEST_REQUEST_PAUSE_S = 1.0

Write = Callable[[Sequence[Operation]], bool]
"""Commits under the coordinator's fence; False when ZooKeeper has refused it."""


def to_retire(
    numbers: Sequence[int], complete: Sequence[int], ended: Sequence[int], stands_on: int, kept: int
) -> list[int]:
    """The checkpoints to remove, oldest first.

    :param numbers: all existing ones.  :param complete: the complete ones, in order.
    :param ended: the aborted or abandoned ones, in order.
    :param stands_on: the region's current one, which is always kept.
    :param kept: number of complete ones to keep.
    """
    oldest = min([*complete[-kept:], stands_on] if stands_on else [*complete[-kept:]], default=0)
    return sorted({*(n for n in numbers if n < oldest), *ended[:-ENDED_KEPT]} - {stands_on})


def retire(store: Store, paths: RegionPaths, old: Collection[int], write: Write) -> bool:
    """Remove checkpoints with their children; whether all are gone."""
    room = ZNODES_A_TURN
    for number in sorted(old):
        below = store.children(paths.checkpoint(number))
        names = below.names if below is not None else []
        units: list[list[Operation]] = [
            # `completed` first: a checkpoint that is removed in part must not be a target of a reset.
            [Delete(f"{paths.checkpoint(number)}/{name}")]
            for name in sorted(names, key=lambda name: (name != COMPLETED, name))[:room]
        ]
        room -= len(names) + 1
        if room >= 0:
            units.append([Delete(paths.checkpoint(number))])
        if not all(write(batch) for batch in batches(units, ROOM)) or room < 0:
            return False
    return True


def is_named(store: Store, region: str) -> bool:
    """Whether a group is bound to the region, or is unreadable: an operator may have emptied the region's list."""
    for batch in in_chunks(names_below(store, GROUPS), STATES_AT_ONCE):
        for _, path, node in existing_nodes(store, batch, lambda name: GroupPaths(name).state):
            try:
                state = GroupState.parse(path, node.data)
            except BadData:
                return True
            if state.region is not None and state.region.name == region:
                return True
    return False


def remove_region(store: Store, paths: RegionPaths, version: int, write: Write) -> bool:
    """Remove a region without groups; whether it is gone. A concurrent binding refuses it."""
    unbound = Check(paths.root, version)
    for path in (paths.initial, paths.checkpoints):
        if not clear_below(store, path, lambda batch: write([unbound, *batch]), ZNODES_A_TURN):
            return False
    there = (paths.request, paths.initial, paths.checkpoints)
    found = [path for path, node in zip(there, store.get_many(there), strict=True) if node is not None]
    return write([*(Delete(path) for path in found), Delete(paths.root, version)])


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
        self._findings = Findings(term.problems)
        self._refused_turns = 0
        self._requests = Pace(REQUESTS_AT_ONCE, LONGEST_REQUEST_PAUSE_S, LONGEST_REQUEST_PAUSE_S)
        self._forget()

    def _forget(self) -> None:
        """Drop the cache: another region with the same name may use the same numbers."""
        self._reader.forget()
        self._is_retired = False
        self._noted: tuple[int, bool, int] | None = None

    def take_turn(self, wanted: str, held: Collection[str] = ()) -> tuple[float | None, tuple[str, ...]]:
        """One turn. It leaves a request for a later turn when many have followed each other.

        :param wanted: the reason for a checkpoint, empty without one.
        :param held: groups with a generation that waits for one.
        :returns: delay of the next turn, and the groups that must take a turn now.
        :raises EpochOver: when another coordinator has been elected.
        :raises LeaseLapsed: when this coordinator must not act.
        :raises RebalanceFailed: when an ACL refuses its writes.
        :raises Retryable: when ZooKeeper did not answer.
        """
        again_s, groups = self._taken(wanted, held)
        left_s = self._requests.until - self._term.runtime.monotonic()
        if left_s > 0:
            again_s = left_s if again_s is None else min(left_s, again_s)
        return again_s, groups

    def _taken(self, wanted: str, held: Collection[str]) -> tuple[float | None, tuple[str, ...]]:
        for _ in range(REFUSALS_A_TURN):
            snapshot = self._read(wanted)
            if snapshot is None:
                self._forget()
                self._term.metrics.region_gone(self._paths.region)
                return None, ()
            if not snapshot.region.groups:
                return self._removed(snapshot.version), ()
            decided = region_plan(snapshot, self._rules)
            if decided.region == snapshot.region and not decided.is_answered:
                return self._retire(decided), self._news(snapshot.region, held)
            copies: list[tuple[str, Contribution]] = []
            if decided.completed:
                try:
                    copies = list(self._reader.copies(snapshot))
                except BadData as error:  # the parts without a contributor would be lost
                    region = replace(snapshot.region, interval_ms=decided.region.interval_ms)
                    decided = aborted(region, f"the checkpoint before it cannot be read: {error}")
            if decided.begun is not None or decided.end is not None:
                self._is_retired = False  # also when the reply is lost, and the next turn finds it done
            if self._commit(snapshot, decided, copies):
                self._refused_turns = 0
                if decided.is_answered:
                    self._answered()
                self._note(snapshot, decided)
                if decided.completed:
                    self._reader.completed(snapshot, decided.completed, copies)
                return self._retire(decided), self._news(decided.region, held)
        self._refused_turns += 1
        return REFUSED_BACKOFF.after(self._refused_turns), ()

    def _answered(self) -> None:
        if self._requests.taken(self._term.runtime.monotonic()):
            log.warning("region requests paced: region=%s requests=%d", self._paths.region, self._requests.count)

    def _news(self, region: Region, held: Collection[str]) -> tuple[str, ...]:
        """The groups with work since their last requested turn."""
        now = region.reset, region.state == FAILED, region.open
        before, self._noted = self._noted, now
        if now == before:
            return ()
        has_only_ended = before is not None and before[:2] == now[:2] and not region.open
        return tuple(group for group in region.groups if group in held) if has_only_ended else region.groups

    # ---- reading

    def _read(self, wanted: str) -> RegionSnapshot | None:
        """The turn's input. An unreadable request is removed."""
        read = self._reader.read(wanted)
        if read is None:
            return None
        self._measure(read.region)
        requests = read.requests
        if requests.version is None:
            return read
        if self._term.runtime.monotonic() < self._requests.until:
            return replace(read, requests=replace(requests, request=None))
        if requests.request is None:
            self._answered()
            removed = [Delete(self._paths.request, requests.version)]
            if not self._write(removed):
                self._write(removed)  # its children are gone now
        return read

    def _measure(self, region: Region) -> None:
        self._term.metrics.region_seen(self._paths.region, region.state, lambda: self._reader.timing.age_s)

    # ---- writing

    def _commit(
        self, snapshot: RegionSnapshot, decided: RegionPlan, copies: Sequence[tuple[str, Contribution]]
    ) -> bool:
        written: list[Operation] = [SetData(self._paths.root, decided.region.to_bytes(), snapshot.version)]
        if decided.begun is not None:
            path = self._paths.checkpoint(decided.region.open)
            written.append(Create(path, decided.begun.to_bytes()))
        if decided.begun is not None or decided.region.state == RUNNING != snapshot.region.state:
            written += [Check(GroupPaths(group).state, at) for group, at in snapshot.groups.versions.items()]
        end = CheckpointEnd(snapshot.now_ms, self._reader.timing.took_ms(snapshot), decided.reason)
        if decided.end is not None:
            if not self._copy(decided.end.sequence, copies):
                return False
            files = tuple(sorted({given.file.checkpoint for _, given in copies if given.file is not None}))
            written += self._ended(snapshot, decided.end, replace(end, files=files))
        marks = [[Create(self._paths.end(sequence, ABANDONED), end.to_bytes())] for sequence in decided.abandoned]
        for sequence in decided.abandoned:
            self._reader.read_again(sequence)
        *before, last = batches(marks, ABANDONED_AT_ONCE) if marks else [[]]
        unmoved = Check(self._paths.root, snapshot.version)
        if not all(self._write([unmoved, *batch]) for batch in before):
            return False
        written += last
        if decided.is_answered and snapshot.requests.version is not None:
            written.append(Delete(self._paths.request, snapshot.requests.version))
        return self._write(written)

    def _ended(self, snapshot: RegionSnapshot, end: Ending, record: CheckpointEnd) -> list[Operation]:
        opened = snapshot.open
        if opened.checkpoint is None:
            return []
        strays = [Delete(self._paths.end(end.sequence, stray)) for stray in sorted(opened.strays)]
        return [*strays, *ended_checkpoint(self._paths, end.sequence, opened.checkpoint.to_bytes(), end.how, record)]

    def _copy(self, sequence: int, copies: Sequence[tuple[str, Contribution]]) -> bool:
        there = self._store.children(self._paths.checkpoint(sequence)) if copies else None
        existing = set(there.names if there is not None else ())
        units = [
            [Create(f"{self._paths.checkpoint(sequence)}/{name}", given.to_bytes())]
            for name, given in copies
            if name not in existing
        ]
        return all(self._write(batch) for batch in batches(units, ROOM, MAX_COMMIT_BYTES // 2))

    def _write(self, operations: Sequence[Operation]) -> bool:
        """Commit under the fence; False when the turn must start over."""
        return self._term.write(operations, self._restarted)

    def _restarted(self, refused: Refused | None) -> None:
        if refused is not None:
            log.info(
                "region turn restarted: region=%s refused=%s reason=%s",
                self._paths.region, refused.path, refused.reason,
            )  # fmt: skip

    def _note(self, snapshot: RegionSnapshot, decided: RegionPlan) -> None:
        name, before, after = self._paths.region, snapshot.region, decided.region
        end, request = decided.end, snapshot.requests.request
        took_ms = self._reader.timing.took_ms(snapshot)
        if end is not None:
            self._reader.timing.ended(end.is_late)
            self._term.metrics.checkpoint_ended(name, end.how, took_ms / 1000)
        if decided.completed:
            self._reader.timing.stands_on(decided.completed)
        if after.reset != before.reset and request is not None:
            cause = OF_AN_APPLICATION if request.by_application else OF_AN_OPERATOR
            self._term.metrics.region_reset(name, cause)
        self._reader.read_cut(after)
        self._measure(after)
        if decided.begun is not None:
            self._reader.timing.begun(after.open)
            count = sum(map(len, decided.begun.participants.values()))
            log.info(
                "checkpoint began: region=%s checkpoint=%d trigger=%s participants=%d",
                name, after.open, decided.begun.trigger, count,
            )  # fmt: skip
        if decided.completed:
            log.info("checkpoint completed: region=%s checkpoint=%d ms=%d", name, decided.completed, took_ms)
        elif end is not None:
            log.warning("checkpoint aborted: region=%s checkpoint=%d reason=%s", name, end.sequence, decided.reason)
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

    def _retire(self, decided: RegionPlan) -> float | None:
        """Remove some of the old checkpoints; the delay of the next turn, shorter if some are left."""
        if self._is_retired or decided.again_s == 0.0:
            return decided.again_s  # this turn's writes are read first
        complete, ended = self._reader.ended(COMPLETED), self._reader.ended(ABORTED, ABANDONED)
        old = to_retire(self._reader.numbers, complete, ended, decided.region.sequence, self._rules.kept)
        for number in old:
            self._reader.read_again(number)  # also when only a part of it is removed
        try:
            self._is_retired = retire(self._store, self._paths, old, self._write)
        except (AccessDenied, RebalanceFailed) as error:  # of an old checkpoint: the next one is not blocked
            self._findings.report(self._paths.checkpoint(old[0]), str(error))
            self._is_retired = True
        self._findings.done()
        return decided.again_s if self._is_retired else 0.0


@dataclass(slots=True)
class _Group:
    """The report of a group's last turn to its region.

    :ivar draining: members without a contribution to the open checkpoint.
    :ivar is_held: whether a generation waits for a checkpoint.
    :ivar needed: the inputs of the region's turn from the group.
    """

    draining: set[str]
    is_held: bool
    needed: object


class Regions:
    """Regions of one term. Handlers take their turns, listeners read the list.

    :param requests: the queue of turns.
    :param is_paused: whether a group is paused.
    """

    def __init__(self, term: Term, requests: RequestQueue, is_paused: Callable[[str], bool]) -> None:
        config = term.config
        self._term = term
        self._requests = requests
        self._store = term.store
        self._is_paused = is_paused
        self._rules = RegionRules(
            config.checkpoint_interval_ms / 1000,
            config.drain_timeout_ms / 1000,
            config.checkpoints_kept,
            config.max_consecutive_resets,
        )
        self._lock = term.runtime.lock()
        self._turns: dict[str, RegionTurns] = {}
        self._groups: dict[str, _Group] = {}
        self._bound: dict[str, str] = {}
        self._failing: dict[str, str] = {}

    # ---- turns

    def take_turn(self, request: Request) -> None:
        """One turn of a region, and the requests that follow from it. Raises as `RegionTurns.take_turn`."""
        wanted = next((trigger.text for trigger in request.triggers if trigger.cause is Cause.CHECKPOINT), "")
        with self._lock:
            held = frozenset(name for name, group in self._groups.items() if group.is_held)
        again_s, groups = self._of(request.key.name).take_turn(wanted, held)
        for group in groups:
            self._requests.request(GroupTurn(group), AGAIN)
        if again_s is not None:
            self._requests.request(request.key, AGAIN, again_s)

    def after_turn(self, group: str, step: RegionStep, state: GroupState, draining: Collection[str]) -> None:
        """A group has taken a turn: request the region's turn if it may have waited for that.

        A region's turn reads the states of all its groups. So it is requested only when its inputs from this group have
        changed, or an open checkpoint has all contributions. The turns of several groups share one; a sweep detects the
        rest.

        :param step: the turn's step of the region.  :param state: the group's, after it.
        :param draining: members without a contribution to the open checkpoint, which waits for them.
        """
        lives = {name: one.incarnation for name, one in state.target.items()}
        needed = step.name, state.region, state.state == STABLE, lives
        with self._lock:
            self._bound[group] = step.name
            before, self._groups[group] = self._groups.get(group), _Group(set(draining), bool(step.held_for), needed)
            is_known = before is not None and before.needed == needed
            is_news = not is_known or step.after != step.before or bool(step.after.open)
            is_news |= bool(self._failing.pop(group, ""))
            if step.after.open and self._is_draining(step.name):
                return
        if step.held_for and step.held_for >= step.after.next_sequence:
            wanted = Trigger(f"checkpoint before a generation of {group}", Cause.CHECKPOINT)
            self._requests.request(RegionTurn(step.name), wanted)
        elif is_news:
            delay_s = TURNS_MAKE_ONE_WAVE_S if len(step.after.groups) > 1 else 0.0
            self._requests.request(RegionTurn(step.name), AGAIN, delay_s)

    def failed(self, group: str, why: str) -> None:
        """A group's turns fail: no checkpoint of its region begins before a successful one."""
        with self._lock:
            is_news, self._failing[group] = self._failing.get(group) != why, why
            name = self._bound.get(group, "")
        if name and is_news:
            self._requests.request(RegionTurn(name), AGAIN)

    def acknowledged(self, group: str, consumer: str) -> bool:
        """A member has acknowledged a command; whether that was a drain. The last one triggers the region's turn."""
        with self._lock:
            name, kept = self._bound.get(group, ""), self._groups.get(group)
            if kept is None or consumer not in kept.draining:
                return False
            kept.draining.discard(consumer)
            if self._is_draining(name):
                return True
        self._requests.request(RegionTurn(name), AGAIN)
        return True

    def _is_draining(self, region: str) -> bool:
        """Whether members of its groups have not contributed yet. Called with the lock."""
        return any(kept.draining and self._bound.get(group) == region for group, kept in self._groups.items())

    def forget(self, group: str) -> None:
        """The group is gone."""
        with self._lock:
            self._groups.pop(group, None)
            self._failing.pop(group, None)

    def _of(self, name: str) -> RegionTurns:
        with self._lock:
            if name not in self._turns:
                self._turns[name] = RegionTurns(
                    self._term, name, self._rules, self._is_paused, lambda group: self._failing.get(group, "")
                )
            return self._turns[name]

    # ---- read by listeners

    def bound(self, group: str) -> str:
        """The region that a group is bound to; empty without one."""
        with self._lock:
            return self._bound.get(group, "")

    def read(self, on_regions: Watch, on_request: Watch) -> list[str]:
        """Read the list of regions, and watch it and their requests.

        :returns: the regions.
        """
        listing = self._store.children(REGIONS, watch=on_regions)
        if listing is not None and listing.denied:
            self._term.problems.report(REGIONS, str(AccessDenied(REGIONS)))
            return sorted(self._turns)
        self._term.problems.clear(REGIONS)
        names = sorted(name for name in (listing.names if listing is not None else ()) if is_name(name))
        bound: dict[str, str] = {}
        for name, path, node in existing_nodes(self._store, names, lambda name: RegionPaths(name).root):
            try:
                bound |= dict.fromkeys(Region.parse(path, node.data).groups, name)
            except BadData as error:
                self._term.problems.report(path, str(error))
        with self._lock:
            self._bound = bound
            gone = sorted(self._turns.keys() - set(names))
            for name in gone:
                del self._turns[name]
        for name in gone:
            self._term.metrics.region_gone(name)
        self.watch_requests(names, on_request)
        return names

    def watch_requests(self, regions: Sequence[str], on_request: Watch) -> list[str]:
        """Watch `request` of each region; those that have a request."""
        nodes = existing_nodes(self._store, regions, lambda name: RegionPaths(name).request, on_request)
        return [name for name, _, _ in nodes]
