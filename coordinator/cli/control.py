"""`zk-coordinator status`, and `pause`, `resume`, `resign`, `rebalance`: an operator's requests to the coordinator."""

from __future__ import annotations

from dataclasses import asdict

import click

from zk_group.coordinator.admin import control
from zk_group.coordinator.admin.groups import Reading
from zk_group.coordinator.admin.health import STUCK_AFTER_MS, HealthFinding, Status, findings, read_status, summary
from zk_group.coordinator.zk.errors import CoordinatorError
from zk_group.coordinator.zk.process.cli import brokers_option, echo_alarm, print_rows, printable, row_objects
from zk_group.coordinator.zk.runtime import ThreadRuntime
from zk_group.coordinator.zk.values import first_names
from zk_group.coordinator.zk.znodes.paths import Brokers
from zk_group.coordinator.zk.znodes.records import NodeRecord, PausedRecord

from .groups import LIST, MOST_LISTED, list_row
from .regions import LIST as REGION_LIST
from .regions import list_row as region_row
from .watching import UNHEALTHY, Shot, echo_paused, operator, print_below, printed, reason_option, timeout_option

COLUMNS = (*LIST, "PAUSED")
STANDING = ("", "STATE", "GENERATION", "REASON")


@click.command()
@click.argument("group", required=False)
@reason_option
@printed()
def pause(reading: Reading, group: str | None, reason: str | None) -> Shot:
    """Suspend the turns of GROUP, or of all groups, until `resume`; prints the pauses.

    Meanwhile no command is sent or withdrawn, no incarnation ended and no state written. Consumers continue with their
    partitions: they acknowledge, fetch, seal and commit. A turn in progress is finished.
    """
    return _paused(control.pause(reading.store, group, operator(), ThreadRuntime().wall_ms(), reason))


@click.command()
@click.argument("group", required=False)
@printed()
def resume(reading: Reading, group: str | None) -> Shot:
    """Remove the pause of GROUP, or all pauses; prints the remaining ones.

    Every group that was paused gets a turn, which applies all changes made meanwhile.
    """
    before, paused = control.resume(reading.store, group)
    if not before:
        click.echo("no group was paused", err=True)
    elif group is None:
        click.echo("all pauses are removed", err=True)
    elif group not in before.groups:
        click.echo(f"group '{group}' was not paused", err=True)
    return _paused(paused)


@click.command()
@click.option("--node", help="Only if this node is elected.")
@timeout_option("next coordinator")
@printed()
def resign(reading: Reading, node: str | None, timeout_s: float) -> Shot:
    """Depose the elected node, so that it resigns, and show the next one.

    Its term is over when its znode is removed, whether or not its process lives. One that lives resigns, and stands for
    election again after the others: with one node, the same is elected again.
    """
    runtime = ThreadRuntime()
    before, epoch = control.resign(reading.store, node)
    started = runtime.monotonic()
    after = control.await_election(reading.store, runtime, epoch, timeout_s)
    took_ms = round(1000 * (runtime.monotonic() - started))
    if after is None:
        raise CoordinatorError(
            f"node {before.node} is deposed (epoch {before.epoch}), but no node was elected within {timeout_s:g} s: "
            "neither it nor another node runs, or none reaches ZooKeeper (start one: `zk-coordinator run`)"
        )
    lines = (
        f"DEPOSED  {before.node} ({before.host}), epoch {before.epoch}",
        f"ELECTED  {after.node} ({after.host}), epoch {after.epoch}, after {took_ms} ms",
    )
    document = {"deposed": asdict(before), "elected": asdict(after), "took_ms": took_ms}
    return Shot(document=document, text=lambda: click.echo("\n".join(map(printable, lines))))


@click.command()
@click.argument("group")
@reason_option
@timeout_option("turn")
@printed()
def rebalance(reading: Reading, group: str, reason: str | None, timeout_s: float) -> Shot:
    """Request a turn of GROUP, and wait until it has been taken.

    The turn reads everything again and makes the changes that are needed, if any. A retry that waits after a failure is
    taken at once. The request survives a failover of the coordinator.
    """
    store, runtime = reading.store, ThreadRuntime()
    before = control.standing(store, group)
    is_new, by = control.request_turn(store, group, operator(), runtime.wall_ms(), reason)
    if not is_new:
        click.echo(printable(f"a turn was already requested by {by}: waiting for that one"), err=True)
    if not control.await_turn(store, runtime, group, timeout_s):
        now, pause = control.standing(store, group), control.read_paused(store).of(group)
        why = f" ({now.reason})" if now.reason else ""
        paused = f", and paused by {pause.by or 'an operator'} meanwhile" if pause else ""
        raise CoordinatorError(
            f"no turn of group '{group}' has succeeded within {timeout_s:g} s: it is {now.state}{why}{paused}; "
            "the request is kept for the next successful turn (see `status --check`)"
        )
    after = control.standing(store, group)
    has_changed = (before.state, before.generation) != (after.state, after.generation)
    rows = [(when, each.state, each.generation, each.reason) for when, each in (("before", before), ("after", after))]
    standings = {when: {"state": state, "generation": n, "reason": reason} for when, state, n, reason in rows}
    document = {"group": group, **standings, "changed": has_changed}
    text = None if has_changed else lambda: click.echo("a turn was taken: no changes were needed")
    return Shot(STANDING, rows, document=document, text=text)


def _paused(paused: PausedRecord) -> Shot:
    def text() -> None:
        echo_paused(paused, "PAUSED  ")
        if not paused:
            click.echo("no group is paused")

    return Shot(document=paused.to_json(), text=text)


# ---- status


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
    shown = read_status(reading.store, brokers, now_ms if check else None)
    return _checked(shown, findings(shown, now_ms, stuck_after_ms)) if check else _shown(shown)


def _checked(found: Status, unhealthy: list[HealthFinding]) -> Shot:
    keys = ("check", "group", "region", "message")
    listed = [{key: getattr(each, key) for key in keys} for each in unhealthy]
    document = {"healthy": not unhealthy, "findings": listed, "summary": summary(found)}

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
    left_out = [(one.shown.group, *item) for one in found.groups for item in sorted(one.shown.state.left_out.items())]
    print_below("Left out", ("GROUP", "WHAT", "WHY"), left_out, MOST_LISTED)
    print_below("Consistent regions", REGION_LIST, [region_row(region) for region in found.regions])
    print_below("Cannot be read", ("PATH", "PROBLEM"), sorted(found.problems.items()), MOST_LISTED)


def _shown_node(record: NodeRecord) -> str:
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
