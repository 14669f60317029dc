"""The measurements of a drill, decided from its history alone; and PASS, FAIL or INCONCLUSIVE, from its evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from zk_group.coordinator.zk.znodes.group_state import STABLE
from zk_group.coordinator.zk.znodes.paths import COORDINATOR

from ..checker.replay.commits import Commit
from ..checker.replay.replay import Replay
from ..checker.replay.verdict import BROKEN, NOT_DECIDED, Event
from ..checker.replay.znode_views import GroupView
from . import fetch_intervals
from .fetch_intervals import AskSummary, FetchInterval, Gaps, PartitionName, asked, gaps, holders

WHAT = {
    "T0": "the fault",
    "T1": "the ephemeral is gone",
    "T2": "the next coordinator acts",
    "T3": "the first stop-fetcher is sent",
    "T4": "the last start-fetcher is acknowledged",
    "T5": "all partitions are fetched",
}


STOPS = ("stuck", "pause", "cut")
"""Faults of live processes without progress."""

BROKER_RETURNS = "broker-returns"
"""The fault event at which the broker serves again."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The effects of a fault in a history.

    :ivar marks: `T0` to `T5` -> its time, if reached.
    :ivar standstill: partition -> its longest downtime since the fault.
    :ivar moved: partitions with another consumer at the end.
    :ivar passed_on: partitions fetched by another consumer at any time.
    :ivar least: the minimum number of moves.
    :ivar stale: commands removed unapplied.
    :ivar generations: generations of the groups since the fault.
    :ivar resumed_s: the time from the broker's return until every partition had delivered records; otherwise a lower
       bound, None without a broker outage.
    :ivar changes: membership changes of the groups since the fault.
    :ivar settled_s: the longest time from a kill until the group was Stable without the killed process; None without
        one.
    :ivar asks: the requests of client-side assignment.
    """

    marks: Mapping[str, float]
    standstill: Mapping[PartitionName, float]
    moved: int
    passed_on: int
    least: int
    doubly_held_s: float
    stale: int
    generations: int = 0
    resumed_s: float | None = None
    changes: int = 0
    settled_s: float | None = None
    asks: AskSummary = field(default_factory=AskSummary)

    def between(self, first: str, last: str) -> float | None:
        """Seconds from one mark to another, 0 in the reverse order; None without one of them."""
        if first not in self.marks or last not in self.marks:
            return None
        return max(0.0, self.marks[last] - self.marks[first])

    def to_json(self) -> dict[str, Any]:
        """`numbers` in run.json."""
        each = {f"{topic}-{number}": round(seconds, 3) for (topic, number), seconds in self.standstill.items()}
        later = "T2" if "T2" in self.marks else "T1"
        return {
            "detection_s": _rounded(self.between("T0", "T1")), "election_s": _rounded(self.between("T1", "T2")),
            "rebalance_s": _rounded(self.between(later, "T5")),
            "standstill": {
                "max_s": _rounded(max(self.standstill.values(), default=None)),
                "median_s": _rounded(median(self.standstill.values()) if self.standstill else None),
                "by_partition": each,
            },
            "moved": self.moved, "passed_on": self.passed_on, "least_possible": self.least,
            "doubly_owned_s": round(self.doubly_held_s, 3), "stale_refused": self.stale,
            "generations": self.generations, "resumed_s": _rounded(self.resumed_s),
            "member_changes": self.changes, "settled_s": _rounded(self.settled_s),
            **({"asks": self.asks.to_json()} if self.asks.asks else {}),
        }  # fmt: skip


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def measured(events: Sequence[Event], fault_at: float) -> Measured:
    """The effects of the fault at `fault_at`.

    :param events: a whole history, in order.
    """
    end = float(events[-1]["at"])
    intervals = fetch_intervals.holds(events)
    before = fetch_intervals.last_holders(intervals, fault_at)
    after = holders(intervals, end)
    commits, settled_s = replayed(events)
    empty = gaps(_without_stopped(intervals, events), fault_at, end)
    passed = {h.partition for h in intervals if h.begun >= fault_at and h.consumer != before.get(h.partition)}
    return Measured(
        marks=_marks(events, commits, fault_at, _all_fetched(empty, fault_at, end)),
        standstill={part: max((last - first for first, last in its), default=0.0) for part, its in empty.items()},
        moved=sum(before.get(part) != consumer for part, consumer in after.items()),
        passed_on=len(passed),
        least=least_moved(before, set(after.values()), len(after)),
        doubly_held_s=fetch_intervals.doubly_held_s(intervals),
        stale=_stale(commits),
        generations=_generations(commits, fault_at),
        resumed_s=_resumed(events, set(after), end),
        changes=changes_of_members(commits, fault_at),
        settled_s=settled_s,
        asks=asked(events, intervals, fault_at),
    )


def _without_stopped(intervals: Sequence[FetchInterval], events: Sequence[Event]) -> list[FetchInterval]:
    """The fetch intervals, ended at the suspension of their process: it keeps the partition, and fetches nothing."""
    stopped = {event["process"]: float(event["at"]) for event in events if event.get("kind") in STOPS}
    return [
        replace(hold, until=stopped[hold.who])
        if hold.who in stopped and hold.begun <= stopped[hold.who] < hold.until
        else hold
        for hold in intervals
    ]


def least_moved(before: Mapping[PartitionName, str], consumers: set[str], partitions: int) -> int:
    """The minimum number of moves to balanced shares of the remaining consumers.

    The consumers with the most partitions keep the larger shares.
    """
    if not consumers:
        return 0
    share, over = divmod(partitions, len(consumers))
    had = sorted((count for consumer, count in Counter(before.values()).items() if consumer in consumers), reverse=True)
    kept = 0
    for count in had:
        larger = over > 0 and count > share
        over -= larger
        kept += min(count, share + larger)
    return partitions - kept


def _marks(
    events: Sequence[Event], commits: Sequence[Commit], fault_at: float, fetched_at: float | None
) -> dict[str, float]:
    later = [event for event in events if event["at"] >= fault_at]
    stops = [commit.at for commit in commits for _, command in commit.made if command.is_stop]
    applied = [(command.made["at"], commit.at) for commit in commits for _, command in commit.gone if command.is_start]
    marks: dict[str, float | None] = {
        "T0": fault_at,
        "T1": next((float(event["at"]) for event in later if _takes_an_ephemeral(event)), None),
        "T2": _next_acts(later),
        "T3": next((at for at in stops if at >= fault_at), None),
        "T4": next((at for sent, at in reversed(applied) if sent >= fault_at), None),
        "T5": fetched_at,
    }
    return {name: at for name, at in marks.items() if at is not None}


def _next_acts(events: Sequence[Event]) -> float | None:
    """When the first elected coordinator held its lease."""
    elected = next((event for event in events if event["event"] == "elected"), None)
    if elected is None:
        return None
    leases = [each for each in events if each["event"] == "lease" and each.get("role") == "coordinator"]
    its = (each for each in leases if each["who"] == elected["who"] and each["until"] > each["at"] >= elected["at"])
    return next((float(each["at"]) for each in its), None)


def _takes_an_ephemeral(event: Event) -> bool:
    """Whether a member's or the coordinator's ephemeral is removed: with its session, by itself, or manually."""
    paths = list(event.get("paths", ())) if event["event"] == "closed" else []
    paths += [op["path"] for op in event.get("ops", ()) if op["op"] == "delete"]
    return any(path == COORDINATOR or path.rpartition("/")[0].endswith("/ids") for path in paths)


def _all_fetched(without: Gaps, fault_at: float, end: float) -> float | None:
    """The end of the first downtime after the fault, when every partition is fetched again; the fault without one.

    Later rebalances, as on the victim's return, are not counted. None when it lasted to the end.
    """
    empty = sorted(gap for its in without.values() for gap in its)
    if not empty:
        return fault_at
    over = empty[0][1]
    for first, last in empty:
        over = max(over, last) if first <= over else over
    return over if over < end else None


def _stale(commits: Sequence[Commit]) -> int:
    """Commands removed unapplied by their consumer: they are not in its channel."""
    count = 0
    for commit in commits:
        ops = commit.event.get("ops", ())
        written = [str(op.get("data", "")) for op in ops if op["op"] == "set" and "/channel/" in op["path"]]
        if commit.who not in ("hand", "server") and not commit.states:
            count += sum(not any(command.name in data for data in written) for _, command in commit.gone)
    return count


def _generations(commits: Sequence[Commit], fault_at: float) -> int:
    """The number of generations since the fault, in readable states."""
    written = [
        (commit.at, change.group.name, change.after.data.generation)
        for commit in commits
        for change in commit.states
        if change.after is not None and change.after.data is not None
    ]
    before = {(group, generation) for at, group, generation in written if at < fault_at}
    return len({(group, generation) for _, group, generation in written} - before)


def _resumed(events: Sequence[Event], partitions: set[PartitionName], end: float) -> float | None:
    """The time from the broker's return until all these partitions had delivered records."""
    back = next((float(event["at"]) for event in events if event.get("kind") == BROKER_RETURNS), None)
    if back is None:
        return None
    first: dict[PartitionName, float] = {}
    for event in events:
        if event["event"] == "fetch" and event["at"] >= back:
            for item in event["ranges"]:
                first.setdefault((item["topic"], item["partition"]), float(event["at"]))
    return max((first.get(part, end) - back for part in partitions), default=None)


def _is_settled_without(name: str, group: GroupView) -> bool:
    """Whether a group is Stable with all registered members, without `name`; or has no readable state."""
    state = group.known
    return state is None or (
        state.state == STABLE and set(state.target) == set(group.members) and name not in state.target
    )


def replayed(events: Sequence[Event]) -> tuple[list[Commit], float | None]:
    """The changes by commits and ends of sessions, in order; and the longest time from a kill until the group was
    Stable without the killed process, else a lower bound.

    The time is None without a kill.
    """
    world = Replay()
    commits: list[Commit] = []
    waits: list[float] = []
    killed: dict[str, float] = {}
    for event in events:
        if event["event"] == "commit":
            commits.append(world.commit(event))
        elif event["event"] == "closed":
            commits.append(world.close(event))
        elif event["event"] == "fault" and event.get("kind") == "kill":
            killed[str(event.get("process", "")).partition("#")[0]] = float(event["at"])
        settled = [name for name in killed if all(_is_settled_without(name, each) for each in world.groups.values())]
        waits += [float(event["at"]) - killed.pop(name) for name in settled]
    waits += [float(events[-1]["at"]) - at for at in killed.values()]
    return commits, max(waits, default=None)


def changes_of_members(commits: Sequence[Commit], fault_at: float) -> int:
    """The number of transactions since the fault that change the set of registered names, without takeovers."""
    found = 0
    for commit in commits:
        more: Counter[tuple[str, str]] = Counter()
        for group, was, now in commit.members:
            for member, by in ((was, -1), (now, 1)):
                if member is not None:
                    more[group.name, member.consumer] += by
        found += commit.at >= fault_at and any(more.values())
    return found


Row = Mapping[str, Any]
Ends = Mapping[str, int]
Texts = Sequence[str]

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """The outcome of the numbered records, from the DataFrame; None when it is unreadable.

    :ivar elsewhere: records read by applications.
    """

    produced: int
    elsewhere: int = 0
    delivered: int | None = None
    lost: int | None = None
    duplicated: int | None = None
    misplaced: int | None = None


def counted(
    produced: Mapping[str, Mapping[str, Ends]], rows: Sequence[Row], elsewhere: Mapping[PartitionName, int] = {}
) -> RecordCounts:
    """The records of the DataFrame compared with the produced ones.

    :param produced: topic -> its id -> partition -> records.
    :param elsewhere: topic and partition -> records read by applications, which are not in a DataFrame.
    :param rows: for each partition of each topic id `rows`, `distinct` numbers, `most` and `misplaced`.
    """
    expected = {
        (topic, topic_id, int(number)): count
        for topic, ids in produced.items()
        for topic_id, numbers in ids.items()
        for number, count in numbers.items()
    }
    actual = {(row["topic"], row["id"], row["partition"]): row for row in rows}
    read = dict(elsewhere)
    missing = {key: count - (actual[key]["distinct"] if key in actual else 0) for key, count in expected.items()}
    for topic, topic_id, number in missing:
        missing[topic, topic_id, number] -= read.pop((topic, number), 0)
    strange = sum(row["rows"] for key, row in actual.items() if key not in expected or row["most"] >= expected[key])
    return RecordCounts(
        produced=sum(expected.values()),
        delivered=sum(row["rows"] for row in actual.values()),
        elsewhere=sum(elsewhere.values()),
        lost=sum(max(0, count) for count in missing.values()),
        duplicated=sum(row["rows"] - row["distinct"] for row in actual.values())
        + sum(max(0, -count) for count in missing.values()),
        misplaced=strange + sum(row["misplaced"] for row in actual.values()),
    )


def together_of(batches: Sequence[Row]) -> list[dict[str, Any]]:
    """The total of a stream's batches, in the form of one read.

    :param batches: for each batch, and each partition in it, `rows`, `distinct`, `least`, `most` and `misplaced`.
    """
    totals: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(batches, key=lambda each: each["least"]):
        key = (row["topic"], row["id"], row["partition"])
        total = totals.setdefault(key, {**row, "rows": 0, "distinct": 0, "most": -1, "misplaced": 0})
        again = max(0, min(row["most"], total["most"]) - row["least"] + 1)
        total["rows"] += row["rows"]
        total["distinct"] += max(0, row["distinct"] - again)
        total["most"] = max(total["most"], row["most"])
        total["misplaced"] += row["misplaced"]
    return list(totals.values())


def decided(
    invariants: Mapping[str, Row], promises: Sequence[Row], records: RecordCounts, missing: Texts, seen: Texts = ()
) -> tuple[str, list[str]]:
    """The verdict, and the reasons for it.

    :param missing: missing preconditions of a conclusion: a fault that did not fire, no recovery, ...
    :param seen: violations observed by the drill itself.
    """
    wrong = [*seen]
    wrong += [f"{name}: {each['why']}" for name, each in invariants.items() if each["outcome"] == BROKEN]
    wrong += [
        f"{each['name']}: {each['measured']:g} {each['unit']}, promised {each['bound']:g} ({each['rule']})"
        for each in promises
        if each["held"] is False
    ]
    # Without a recovery in time, missing records may still be in flight.
    lost = f"{records.lost} records lost" if records.lost else ""
    counts = (("duplicated", records.duplicated), ("misplaced", records.misplaced))
    wrong += ([lost] if lost and not missing else []) + [f"{count} records {what}" for what, count in counts if count]
    if wrong:
        return FAIL, [*wrong, *missing]
    unknown = list(missing)
    unknown += [f"{each['name']}: not measured" for each in promises if each["held"] is None]
    unknown += [
        f"{name} was not decided: {each['why']}"
        for name, each in invariants.items()
        if each["outcome"] == NOT_DECIDED and each.get("is_due")
    ]
    if records.lost is None:
        unknown.append("the DataFrame is unreadable")
    return (INCONCLUSIVE, unknown) if unknown else (PASS, [])


def together(verdicts: Sequence[str]) -> str:
    """The verdict of several drills: the worst; INCONCLUSIVE without drills."""
    if FAIL in verdicts:
        return FAIL
    return PASS if verdicts and all(verdict == PASS for verdict in verdicts) else INCONCLUSIVE
