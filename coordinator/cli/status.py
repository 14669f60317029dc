"""`zk-coordinator status`: the elected coordinator, the groups, and health checks."""

from __future__ import annotations

import click

from coordinator.admin.health import STUCK_AFTER_MS, HealthFinding, findings, summary
from coordinator.admin.status import Status, read_status
from coordinator.zk.process.cli import (
    JSON,
    brokers_option,
    opened,
    output_option,
    print_json,
    print_rows,
    printable,
    row_objects,
    zk_option,
)
from coordinator.zk.process.tables import echo_alarm
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.znodes.paths import Brokers
from coordinator.zk.znodes.records import CoordinatorRecord, NodeRecord

from .common import UNHEALTHY, paused_json, paused_rows, paused_text
from .groups import LIST, MOST_LISTED, list_row
from .regions import LIST as REGION_LIST
from .regions import list_row as region_row

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
@zk_option
@brokers_option
@output_option
def status(check: bool, stuck_after_ms: int, zk: str, brokers: Brokers, output: str) -> int:
    """Show the elected coordinator, the nodes on standby, every group, and unreadable znodes.

    With --check, unhealthy is: no elected node, or a coordinator's znode that no elected node holds; a group that is
    RebalanceFailed; partitions that are left out or unassigned; evictions whose lease still runs; fetchers paused by
    back-pressure; a query that has been silent for three minutes and holds back 1,000,000 records, 5,000 segments or 1
    GiB; a consistent region that is Failed, whose last three checkpoints or more were aborted, or that is
    Running, not paused, and without a checkpoint for three intervals; unreadable znodes; and, for longer than
    --stuck-after-ms, a rebalance, an unacknowledged command, a requested turn, a pause, or a region's reset.
    """
    with opened(zk) as store:
        now_ms = ThreadRuntime().wall_ms()
        found = read_status(store, brokers, now_ms if check else None)
    if check:
        unhealthy = findings(found, now_ms, stuck_after_ms)
        _print_check(found, unhealthy, output)
        return UNHEALTHY if unhealthy else 0
    if output == JSON:
        print_json(_document(found))
    else:
        _print(found, output)
    return 0


def _print_check(found: Status, unhealthy: list[HealthFinding], output: str) -> None:
    if output == JSON:
        document = [
            {"check": item.check, "group": item.group, "region": item.region, "message": item.message}
            for item in unhealthy
        ]
        print_json({"healthy": not unhealthy, "findings": document, "summary": summary(found)})
        return
    for item in unhealthy:
        echo_alarm(printable(f"unhealthy: {item}"))
    if not unhealthy:
        click.echo(printable(f"healthy: {summary(found)}"))


def _print(found: Status, output: str) -> None:
    elected = found.coordinator
    if elected is not None:
        click.echo(f"COORDINATOR  {_shown_node(elected)}")
    else:
        echo_alarm("COORDINATOR  - (no node is elected)")
    more = f" and {len(found.standby) - MOST_LISTED} more" if len(found.standby) > MOST_LISTED else ""
    click.echo(f"STANDBY      {', '.join(map(_shown_node, found.standby[:MOST_LISTED])) or '-'}{more}")
    click.echo(f"EPOCH        {found.epoch if found.epoch is not None else '-'}")
    click.echo(f"TOPICS       {len(found.topics)}")
    for what, pause in paused_rows(found.paused):
        echo_alarm(f"PAUSED       {paused_text(what, pause)}", "yellow")
    click.echo()
    groups = [group.shown for group in found.groups]
    print_rows(
        COLUMNS, [(*list_row(group, found.turn_times), _pause_of(found, group.group)) for group in groups], output
    )
    rows = [(group.group, what, why) for group in groups for what, why in sorted(group.state.left_out.items())]
    if rows:
        click.echo("\nLeft out:")
        print_rows(("GROUP", "WHAT", "WHY"), rows[:MOST_LISTED], output)
        _print_more(len(rows))
    if found.regions:
        click.echo("\nConsistent regions:")
        print_rows(REGION_LIST, [region_row(region) for region in found.regions], output)
    if found.problems:
        click.echo("\nCannot be read:")
        print_rows(("PATH", "PROBLEM"), sorted(found.problems.items())[:MOST_LISTED], output)
        _print_more(len(found.problems))


def _shown_node(record: CoordinatorRecord | NodeRecord) -> str:
    return printable(f"{record.node} ({record.host})")


def _print_more(count: int) -> None:
    if count > MOST_LISTED:
        click.echo(f"and {count - MOST_LISTED} more")


def _pause_of(found: Status, group: str) -> str | None:
    """The pause of a group: that of all groups, or its own."""
    if found.paused.everything is not None:
        return "all"
    return "group" if group in found.paused.groups else None


def _document(found: Status) -> dict[str, object]:
    elected = found.coordinator
    keys = [column.lower().replace("-", "_") for column in LIST]
    return {
        "coordinator": {"node": elected.node, "host": elected.host, "epoch": elected.epoch} if elected else None,
        "standby": [{"node": node.node, "host": node.host} for node in found.standby],
        "epoch": found.epoch,
        "topics": len(found.topics),
        "paused": paused_json(found.paused),
        "groups": [
            {
                **dict(zip(keys, list_row(group.shown, found.turn_times), strict=True)),
                "paused": _pause_of(found, group.shown.group),
                "left_out": dict(group.shown.state.left_out),
            }
            for group in found.groups
        ],
        "regions": row_objects(REGION_LIST, [region_row(region) for region in found.regions]),
        "problems": dict(sorted(found.problems.items())[:MOST_LISTED]),
        "problem_count": len(found.problems),
    }
