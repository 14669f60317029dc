"""`zk-coordinator history`: a group's last rebalances."""

from __future__ import annotations

import click

from coordinator.admin.groups import Reading, checked_group, read_history
from coordinator.zk.znodes.group_state import Rebalance

from .common import at
from .groups import notes_of
from .watching import Shot, print_below, printed

COLUMNS = (
    *("GENERATION", "EPOCH", "STARTED", "TRIGGER", "JOINED", "LEFT", "MOVED", "LAST-STOP-MS", "LAST-START-MS"),
    *("STANDSTILL-MS", "ASSIGNMENT-MS", "ATTEMPTS", "RESULT"),
)
EVICTED = ("GENERATION", "EVICTED", "SINCE", "WHY")
KEYS = (
    *("generation", "epoch", "trigger", "started_ms", "joined", "left", "moved", "to_last_stop_ms", "to_last_start_ms"),
    *("standstill_ms", "stopped_ms", "finished_ms", "replaced_by", "assignment_ms", "attempts"),
)
"""The fields in JSON, before `evicted`."""
NAMED = 3


@click.command()
@click.argument("group")
@printed()
def history(reading: Reading, group: str) -> Shot:
    """Show the last rebalances of GROUP, the newest last.

    LAST-STOP-MS and LAST-START-MS count from the start of the rebalance to the last acknowledged stop and start.
    STANDSTILL-MS is the longest time in which a partition had no fetcher, at most: to the last start, from the first
    stop, or from the last sign of life of a member that died, left or was evicted; across rebalances that replaced each
    other. `-` where no partition stood still.

    Below the table: why each evicted member was, and SINCE when: its last sign of life, or the first command that it
    did not carry out.

    Under client-side assignment ASSIGNMENT-MS counts from the ask to the adoption of its answer, and ATTEMPTS is 1 plus
    the assignments that failed before it.
    """
    checked_group(reading, group)
    found = read_history(reading, group)
    document = [
        {**{key: getattr(each, key) for key in KEYS}, "evicted": [one.to_json() for one in each.evicted]}
        for each in found
    ]
    evicted = [
        (record.generation, each.member, at(each.since_ms) if each.since_ms else None, each.reason)
        for record in found
        for each in record.evicted
    ]
    rows = [_row(record) for record in found]
    return Shot(COLUMNS, rows, notes_of(reading), document, lambda: print_below("Evicted", EVICTED, evicted))


def _row(record: Rebalance) -> tuple[object, ...]:
    joined, left = _named(record.joined), _named(record.left)
    return (
        *(record.generation, record.epoch, at(record.started_ms), record.trigger, joined, left, record.moved),
        *(record.to_last_stop_ms, record.to_last_start_ms, record.standstill_ms),
        *(record.assignment_ms, record.attempts, _result(record)),
    )


def _result(record: Rebalance) -> str:
    if record.replaced_by is not None:
        return f"replaced by {record.replaced_by}"
    return "finished" if record.finished_ms is not None else "in progress"


def _named(lives: tuple[str, ...]) -> str | None:
    more = f" and {len(lives) - NAMED} more" if len(lives) > NAMED else ""
    return ", ".join(lives[:NAMED]) + more if lives else None
