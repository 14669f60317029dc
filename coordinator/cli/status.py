"""`zk-coordinator status`: the elected coordinator, the groups, and health checks."""

from __future__ import annotations

import click

from coordinator.admin.groups import Reading, first_names
from coordinator.admin.health import STUCK_AFTER_MS, HealthFinding, Status, findings, read_status, summary
from coordinator.zk.process.cli import brokers_option, echo_alarm, print_rows, printable, row_objects
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import CoordinatorRecord, NodeRecord

from .groups import LIST, MOST_LISTED, list_row
from .regions import LIST as REGION_LIST
from .regions import list_row as region_row
from .watching import UNHEALTHY, Shot, echo_paused, print_below, printed

COLUMNS = (*LIST, "PAUSED")


@click.command()
@click.option("--check", is_flag=True, help="Only list what is unhealthy, one line each; exit 5 if anything is.")
@click.option(
    "--stuck-after-ms",
    type=click.IntRange(0),
    default=STUCK_AFTER_MS,
    show_default=True,
    help="With --check: age limit of a rebalance, a command, a requested turn or a pause.",
)
@printed(brokers_option)
def status(reading: Reading, check: bool, stuck_after_ms: int, brokers: Brokers) -> Shot:
    """Show the elected coordinator, the nodes on standby, every group, and unreadable znodes.

    With --check, unhealthy is: no elected node, or a coordinator's znode that no elected node holds; a group that is
    RebalanceFailed; partitions that are left out or unassigned; evictions whose lease still runs; fetchers paused by
    back-pressure; a query that has been silent for three minutes and holds back 1,000,000 records, 5,000 segments or 1
    GiB; a consistent region that is Failed, whose last three checkpoints or more were aborted, or that is
    Running, not paused, and without a checkpoint for three intervals; unreadable znodes; and, for longer than
    --stuck-after-ms, a rebalance, an unacknowledged command, a requested turn, a pause, or a region's reset.
    """
    now_ms = ThreadRuntime().wall_ms()
    found = read_status(reading.store, brokers, now_ms if check else None)
    return _checked(found, findings(found, now_ms, stuck_after_ms)) if check else _shown(found)


def _checked(found: Status, unhealthy: list[HealthFinding]) -> Shot:
    keys = ("check", "group", "region", "message")
    document = {
        "healthy": not unhealthy,
        "findings": [{key: getattr(each, key) for key in keys} for each in unhealthy],
        "summary": summary(found),
    }

    def text() -> None:
        for item in unhealthy:
            echo_alarm(printable(f"unhealthy: {item}"))
        if not unhealthy:
            click.echo(printable(f"healthy: {document['summary']}"))

    return Shot(document=document, text=text, code=UNHEALTHY if unhealthy else 0)


def _print(found: Status, rows: list[tuple[object, ...]]) -> None:
    elected = found.coordinator
    if elected is not None:
        click.echo(f"COORDINATOR  {_shown_node(elected)}")
    else:
        echo_alarm("COORDINATOR  - (no node is elected)")
    click.echo(f"STANDBY      {first_names([*map(_shown_node, found.standby)], MOST_LISTED) or '-'}")
    click.echo(f"EPOCH        {found.epoch if found.epoch is not None else '-'}")
    click.echo(f"TOPICS       {len(found.topics)}")
    echo_paused(found.paused, "PAUSED       ")
    click.echo()
    print_rows(COLUMNS, rows)
    left_out = [
        (each.shown.group, *item) for each in found.groups for item in sorted(each.shown.state.left_out.items())
    ]
    print_below("Left out", ("GROUP", "WHAT", "WHY"), left_out, MOST_LISTED)
    print_below("Consistent regions", REGION_LIST, [region_row(region) for region in found.regions])
    print_below("Cannot be read", ("PATH", "PROBLEM"), sorted(found.problems.items()), MOST_LISTED)


def _shown_node(record: CoordinatorRecord | NodeRecord) -> str:
    return printable(f"{record.node} ({record.host})")


def _shown(found: Status) -> Shot:
    elected = found.coordinator
    everything, paused = found.paused.everything, found.paused.groups
    pauses = ["all" if everything else "group" if each.shown.group in paused else None for each in found.groups]
    listed = [list_row(each.shown, found.turn_times) for each in found.groups]
    rows = [(*row, pause) for row, pause in zip(listed, pauses, strict=True)]
    objects = zip(row_objects(COLUMNS, rows), found.groups, strict=True)
    document = {
        "coordinator": {"node": elected.node, "host": elected.host, "epoch": elected.epoch} if elected else None,
        "standby": [{"node": node.node, "host": node.host} for node in found.standby],
        "epoch": found.epoch,
        "topics": len(found.topics),
        "paused": found.paused.to_json(),
        "groups": [row | {"left_out": dict(group.shown.state.left_out)} for row, group in objects],
        "regions": row_objects(REGION_LIST, [region_row(region) for region in found.regions]),
        "problems": dict(sorted(found.problems.items())[:MOST_LISTED]),
        "problem_count": len(found.problems),
    }
    return Shot(document=document, text=lambda: _print(found, rows))
