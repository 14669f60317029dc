"""`zk-coordinator history`: a group's last rebalances."""

from __future__ import annotations

import click

from coordinator.admin.groups import Reading, checked_group, read_history
from coordinator.zk.process.cli import JSON, opened, output_option, print_json, print_rows, zk_option
from coordinator.zk.znodes.group_state import Rebalance

from .common import at
from .groups import report_problems

COLUMNS = (
    "GENERATION",
    "EPOCH",
    "STARTED",
    "TRIGGER",
    "JOINED",
    "LEFT",
    "MOVED",
    "LAST-STOP-MS",
    "LAST-START-MS",
    "STANDSTILL-MS",
    "ASSIGNMENT-MS",
    "ATTEMPTS",
    "RESULT",
)
EVICTED = ("GENERATION", "EVICTED", "SINCE", "WHY")
NAMED = 3


@click.command()
@click.argument("group")
@zk_option
@output_option
def history(group: str, zk: str, output: str) -> None:
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
    with opened(zk) as store:
        reading = Reading(store)
        checked_group(reading, group)
        found = read_history(reading, group)
    if output == JSON:
        print_json([_document(record) for record in found])
    else:
        print_rows(COLUMNS, [_row(record) for record in found], output)
        evicted = [(record.generation, each) for record in found for each in record.evicted]
        if evicted:
            click.echo("\nEvicted:")
            rows = [(n, each.member, at(each.since_ms) if each.since_ms else None, each.reason) for n, each in evicted]
            print_rows(EVICTED, rows, output)
    report_problems(reading.problems)


def _row(record: Rebalance) -> tuple[object, ...]:
    return (
        record.generation,
        record.epoch,
        at(record.started_ms),
        record.trigger,
        _named(record.joined),
        _named(record.left),
        record.moved,
        record.to_last_stop_ms,
        record.to_last_start_ms,
        record.standstill_ms,
        record.assignment_ms,
        record.attempts,
        _result(record),
    )


def _result(record: Rebalance) -> str:
    if record.replaced_by is not None:
        return f"replaced by {record.replaced_by}"
    return "finished" if record.finished_ms is not None else "in progress"


def _named(lives: tuple[str, ...]) -> str | None:
    more = f" and {len(lives) - NAMED} more" if len(lives) > NAMED else ""
    return ", ".join(lives[:NAMED]) + more if lives else None


def _document(record: Rebalance) -> dict[str, object]:
    return {
        "generation": record.generation,
        "epoch": record.epoch,
        "trigger": record.trigger,
        "started_ms": record.started_ms,
        "joined": list(record.joined),
        "left": list(record.left),
        "moved": record.moved,
        "to_last_stop_ms": record.to_last_stop_ms,
        "to_last_start_ms": record.to_last_start_ms,
        "standstill_ms": record.standstill_ms,
        "stopped_ms": record.stopped_ms,
        "finished_ms": record.finished_ms,
        "replaced_by": record.replaced_by,
        "assignment_ms": record.assignment_ms,
        "attempts": record.attempts,
        "evicted": [each.to_json() for each in record.evicted],
    }
