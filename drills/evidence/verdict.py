"""PASS, FAIL or INCONCLUSIVE, decided from the evidence of a drill. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checker.replay.verdict import BROKEN, NOT_DECIDED

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """The outcome of the numbered records, from the DataFrame; None when it is unreadable.

    :ivar elsewhere: records that applications have read.
    """

    produced: int
    elsewhere: int = 0
    delivered: int | None = None
    lost: int | None = None
    duplicated: int | None = None
    misplaced: int | None = None


def counted(
    produced: Mapping[str, Mapping[str, Mapping[str, int]]],
    rows: Sequence[Mapping[str, Any]],
    elsewhere: Mapping[tuple[str, int], int] | None = None,
) -> RecordCounts:
    """The records of the DataFrame compared with the produced ones.

    :param produced: topic -> its id -> partition -> records.
    :param elsewhere: topic and partition -> records that applications have read, which are not in a DataFrame.
    :param rows: for each partition of each topic id `rows`, `distinct` numbers, `most` and `misplaced`.
    """
    expected = {
        (topic, topic_id, int(number)): count
        for topic, ids in produced.items()
        for topic_id, numbers in ids.items()
        for number, count in numbers.items()
    }
    actual = {(row["topic"], row["id"], row["partition"]): row for row in rows}
    read = dict(elsewhere or {})
    missing = {key: count - (actual[key]["distinct"] if key in actual else 0) for key, count in expected.items()}
    for topic, topic_id, number in missing:
        missing[topic, topic_id, number] -= read.pop((topic, number), 0)
    strange = sum(row["rows"] for key, row in actual.items() if key not in expected or row["most"] >= expected[key])
    return RecordCounts(
        produced=sum(expected.values()),
        delivered=sum(row["rows"] for row in actual.values()),
        elsewhere=sum((elsewhere or {}).values()),
        lost=sum(max(0, count) for count in missing.values()),
        duplicated=sum(row["rows"] - row["distinct"] for row in actual.values())
        + sum(max(0, -count) for count in missing.values()),
        misplaced=strange + sum(row["misplaced"] for row in actual.values()),
    )


def together_of(batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
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
    invariants: Mapping[str, Mapping[str, Any]],
    promises: Sequence[Mapping[str, Any]],
    records: RecordCounts,
    missing: Sequence[str],
    seen: Sequence[str] = (),
) -> tuple[str, list[str]]:
    """The verdict, and the reasons for it.

    :param missing: missing preconditions of a conclusion: a fault that did not fire, no recovery, ...
    :param seen: violations that the drill itself has observed.
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
