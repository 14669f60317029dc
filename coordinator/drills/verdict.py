"""PASS, FAIL or INCONCLUSIVE, decided from what is known of a drill. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checker.verdict import BROKEN, NOT_DECIDED

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
EXIT_CODES = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}


NAMES = ("produced", "elsewhere", "delivered", "lost", "duplicated", "misplaced")


@dataclass(frozen=True, slots=True)
class Records:
    """What became of the numbered records, from the DataFrame; None where it could not be read.

    :ivar elsewhere: records that applications have read instead.
    """

    produced: int
    elsewhere: int = 0
    delivered: int | None = None
    lost: int | None = None
    duplicated: int | None = None
    misplaced: int | None = None

    def to_json(self) -> dict[str, Any]:
        """As `records` in run.json."""
        return {name: getattr(self, name) for name in NAMES}


def counted(
    produced: Mapping[str, Mapping[str, Mapping[str, int]]],
    rows: Sequence[Mapping[str, Any]],
    elsewhere: Mapping[tuple[str, int], int] | None = None,
) -> Records:
    """The records of the DataFrame held against what was produced.

    :param produced: topic -> its id -> partition -> records.
    :param elsewhere: topic and partition -> records that applications have read: they are in no DataFrame.
    :param rows: for each partition of each topic id `rows`, `distinct` numbers, `most` and `misplaced`.
    """
    wanted = {
        (topic, topic_id, int(number)): count
        for topic, ids in produced.items()
        for topic_id, numbers in ids.items()
        for number, count in numbers.items()
    }
    found = {(row["topic"], row["id"], row["partition"]): row for row in rows}
    read = dict(elsewhere or {})
    missing = {key: count - (found[key]["distinct"] if key in found else 0) for key, count in wanted.items()}
    for topic, topic_id, number in missing:
        missing[topic, topic_id, number] -= read.pop((topic, number), 0)
    strange = sum(row["rows"] for key, row in found.items() if key not in wanted or row["most"] >= wanted[key])
    return Records(
        produced=sum(wanted.values()),
        delivered=sum(row["rows"] for row in found.values()),
        elsewhere=sum((elsewhere or {}).values()),
        lost=sum(max(0, count) for count in missing.values()),
        duplicated=sum(row["rows"] - row["distinct"] for row in found.values())
        + sum(max(0, -count) for count in missing.values()),
        misplaced=strange + sum(row["misplaced"] for row in found.values()),
    )


def together_of(batches: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the batches of a stream hold together, in the form of one read.

    :param batches: for each batch, and each partition in it, `rows`, `distinct`, `least`, `most` and `misplaced`.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(batches, key=lambda each: each["least"]):
        key = (row["topic"], row["id"], row["partition"])
        total = found.setdefault(key, {**row, "rows": 0, "distinct": 0, "most": -1, "misplaced": 0})
        again = max(0, min(row["most"], total["most"]) - row["least"] + 1)
        total["rows"] += row["rows"]
        total["distinct"] += max(0, row["distinct"] - again)
        total["most"] = max(total["most"], row["most"])
        total["misplaced"] += row["misplaced"]
    return list(found.values())


def decided(
    invariants: Mapping[str, Mapping[str, Any]],
    promises: Sequence[Mapping[str, Any]],
    records: Records,
    missing: Sequence[str],
    seen: Sequence[str] = (),
) -> tuple[str, list[str]]:
    """The verdict, and the reasons for it.

    :param missing: what a conclusion would have needed: a fault that did not fire, a recovery that did not come, ...
    :param seen: what the drill itself has seen that must not be.
    """
    wrong = [*seen]
    wrong += [f"{name}: {each['why']}" for name, each in invariants.items() if each["outcome"] == BROKEN]
    wrong += [
        f"{each['name']}: {each['measured']:g} {each['unit']}, promised {each['bound']:g} ({each['rule']})"
        for each in promises
        if each["held"] is False
    ]
    # What is missing may still have been on its way when something else did not come in time.
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
        unknown.append("the DataFrame could not be read")
    return (INCONCLUSIVE, unknown) if unknown else (PASS, [])


def together(verdicts: Sequence[str]) -> str:
    """The verdict of several drills: the worst; INCONCLUSIVE for none at all."""
    if FAIL in verdicts:
        return FAIL
    return PASS if verdicts and all(verdict == PASS for verdict in verdicts) else INCONCLUSIVE
