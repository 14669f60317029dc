"""`zk-coordinator groups reset-offsets` and `delete-offsets`: where the next holder of a partition goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from coordinator.groups import Reading, chosen_groups
from coordinator.offsets_admin import (
    GROUP_SUBSCRIBED_TO_TOPIC,
    Deletion,
    committed,
    inactive,
    write_offsets,
)
from coordinator.offsets_admin import (
    delete_offsets as delete_them,
)
from coordinator.offsets_reset import (
    FROM_FILE,
    Known,
    NewOffset,
    Plan,
    Scenario,
    Scope,
    checked,
    chosen,
    missing,
    parse_plans,
    parse_scope,
    planned,
    scenario,
    to_csv,
)
from coordinator.topics import list_topics
from coordinator.zk.errors import CoordinatorError, SessionLost, UsageError
from coordinator.zk.names import checked_name
from coordinator.zk.partitions import TopicPartition
from coordinator.zk.paths import Brokers, GroupPaths
from coordinator.zk.records import Topic
from coordinator.zk.runtime import ThreadRuntime
from coordinator.zk.store import Store

from .common import JSON, brokers_option, opened, output_option, print_rows, printable, report, zk_option
from .source import opened_source, source_options

if TYPE_CHECKING:
    from consumer.logs import Log

P = ParamSpec("P")
T = TypeVar("T")

RESET = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")
DELETED = ("TOPIC", "PARTITION", "STATUS")
FAILED = 1

DRY_RUN = (
    "WARN: No action will be performed as the --execute option is missing. "
    "Give --dry-run to say that this is meant, and to hear no warning."
)

topic_option = click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,P...]", help="A topic, or some of its partitions; repeatable."
)


# ---- reset-offsets


@click.command("reset-offsets")
@click.argument("names", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="Every group.")
@topic_option
@click.option("--all-topics", is_flag=True, help="Every partition of which the group has an offset.")
@click.option("--to-offset", type=int, metavar="N", help="To this offset.")
@click.option("--to-earliest", is_flag=True, help="To the oldest record.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-current", is_flag=True, help="To where the group stands; to the end where it stands nowhere.")
@click.option("--to-datetime", metavar="YYYY-MM-DDTHH:mm:SS.sss", help="To the first record of that time; UTC.")
@click.option("--by-duration", metavar="PnDTnHnMnS", help="To the first record that is younger than this.")
@click.option("--shift-by", type=int, metavar="N", help="So many records forward, or with - back.")
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="To what a CSV file says: topic,partition,offset, or group,topic,partition,offset.",
)
@click.option("--dry-run", is_flag=True, help="Only show the new offsets (the default).")
@click.option("--execute", is_flag=True, help="Set them.")
@click.option("--export", is_flag=True, help="Print CSV that --from-file takes, instead of a table.")
@source_options(is_needed=True)
@zk_option
@brokers_option
@output_option
@click.pass_context
def reset_offsets(
    context: click.Context,
    /,
    names: tuple[str, ...],
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    log_dir: str,
    bootstrap_servers: str,
    kafka: dict[str, str] | None,
    zk: str,
    brokers: Brokers,
    output: str,
    **where_to: Any,
) -> None:
    """Show, or with --execute set, where GROUP goes on. The group must have no members.

    Say which partitions (--topic, --all-topics, or the file's) and exactly one --to-..., --by-duration, --shift-by or
    --from-file. Offsets outside of the log are set to its nearest end, with a warning.
    """
    to = scenario(**where_to, now_ms=ThreadRuntime().wall_ms())
    scopes = _scopes(topics, all_topics, to)
    if dry_run and execute:
        raise UsageError("--dry-run and --execute contradict each other: give one of them")
    source = opened_source(log_dir, zk, brokers, bootstrap_servers, kafka)
    with opened(zk) as store:
        groups = [checked_name("group", name) for name in chosen_groups(Reading(store), names, all_groups)]
        plans = _plans(where_to["from_file"], groups)
        reset = _Reset(store, source, _topics(store, brokers), to, scopes, plans)
        done = {group: new for group in groups if (new := _tried(reset.planned, group)) is not None}
        if execute:  # only now: a file that is wrong for one group changes none
            done = {group: new for group, new in done.items() if _tried(reset.written, group, new) is not None}
    if not dry_run and not execute:
        click.echo(DRY_RUN, err=True)
    rows = [(group, each.known.partition, each.offset) for group, new in done.items() for each in new]
    if export:
        click.echo(to_csv(rows, with_group=all_groups or len(groups) > 1), nl=False)
    else:
        print_rows(RESET, [(group, *partition, offset) for group, partition, offset in rows], output)
    context.exit(FAILED if len(done) < len(groups) else 0)


def _tried(act: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What `act` returns; None when it failed for its group, which is reported, so that the others have their turn.

    :raises UsageError: what is wrong for all of them.
    """
    try:
        return act(*args, **kwargs)
    except (UsageError, SessionLost):
        raise
    except CoordinatorError as error:
        report(error)
        return None


def _scopes(texts: Sequence[str], all_topics: bool, to: Scenario) -> list[Scope] | None:
    """What `--topic` says; None for all topics, or those of the file.

    :raises UsageError: when not exactly one scope is given.
    """
    if to.kind == FROM_FILE:
        if texts or all_topics:
            raise UsageError("--from-file says itself which partitions: give neither --topic nor --all-topics with it")
    elif bool(texts) == all_topics:
        raise UsageError("One of the reset scopes should be defined: --all-topics, --topic.")
    return [parse_scope(text) for text in texts] or None


def _plans(file: Path | None, groups: Sequence[str]) -> dict[str, Plan] | None:
    if file is None:
        return None
    try:
        return parse_plans(file.read_text(encoding="utf-8-sig"), groups)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def _topics(store: Store, brokers: Brokers) -> dict[str, Topic]:
    return {each.name: each.topic for each in list_topics(store, brokers) if each.topic is not None}


@dataclass(frozen=True, slots=True)
class _Reset:
    """One reset, of several groups.

    :ivar scopes: None for every partition of which a group has an offset, or those of `plans`.
    :ivar plans: what the file says of each group, None without a file.
    """

    store: Store
    log: Log
    topics: Mapping[str, Topic]
    to: Scenario
    scopes: Sequence[Scope] | None
    plans: Mapping[str, Plan] | None

    def planned(self, group: str) -> list[NewOffset]:
        """The new offsets of a group; warnings are said.

        :raises CoordinatorError: when somebody uses the group, or it has no offset to shift.
        :raises UsageError: when a partition does not exist.
        """
        inactive(self.store, group)
        plan = self.plans.get(group) if self.plans is not None else None
        if self.plans is not None and plan is None:
            raise CoordinatorError(f"No reset plan for group '{group}' found.")
        new = [planned(self.to, known, plan) for known in self._known(group, plan)]
        for each in new:
            if each.warning:
                click.echo(f"Warn: {each.warning}", err=True)
        self._tell_of_segments(group, new)
        return new

    def written(self, group: str, new: Sequence[NewOffset]) -> int:
        """Set the offsets of a group; how many.

        :raises CoordinatorError: when somebody uses the group by now, or has changed them.
        """
        write_offsets(self.store, group, new, self.topics)
        return len(new)

    def _known(self, group: str, plan: Plan | None) -> Iterator[Known]:
        stands = committed(self.store, GroupPaths(group))
        if plan is not None:
            partitions = checked(plan, self.topics)
        elif self.scopes is not None:
            partitions = chosen(self.scopes, self.topics)
        else:
            partitions = [partition for partition in sorted(stands) if self._is_there(partition)]
        for partition in partitions:
            topic, offset = self.topics[partition.topic], stands.get(partition)
            yield Known(
                partition,
                topic.id,
                offset.of(topic.id) if offset is not None else None,
                offset.version if offset is not None else None,
                *self._bounds(topic, partition.partition),
            )

    def _is_there(self, partition: TopicPartition) -> bool:
        why = missing(partition, self.topics)
        if why is not None:
            click.echo(f"Warn: {partition} is left out: {why}", err=True)
        return why is None

    def _bounds(self, topic: Topic, number: int) -> tuple[int, int, int | None]:
        """Earliest, latest, and the offset at the scenario's time."""
        from consumer.logs import UnknownTopic

        place = (topic.name, topic.id, number)
        try:
            latest = self.log.latest(*place)  # read first: what is written meanwhile is after it
            time_ms = self.to.timestamp_ms
            at = min(latest, self.log.offset_for_timestamp(*place, time_ms)) if time_ms is not None else None
            return self.log.earliest(*place), latest, at
        except UnknownTopic:  # nothing was ever written to it
            return 0, 0, None

    def _tell_of_segments(self, group: str, new: Sequence[NewOffset]) -> None:
        """Sealed segments end where the group stood: what is fetched after the reset does not join them."""
        node = self.store.get(GroupPaths(group).segments)
        moved = any(each.offset != each.known.current for each in new if each.known.current is not None)
        if moved and node is not None and node.stat.children:
            what = f"Warn: group {group} has sealed segments, which what is fetched after the reset does not join"
            what += ": let its queries finish them and stop, and start them again only after the reset"
            click.echo(what, err=True)


# ---- delete-offsets


@click.command("delete-offsets")
@click.argument("group")
@topic_option
@zk_option
@brokers_option
@output_option
@click.pass_context
def delete_offsets(
    context: click.Context, group: str, topics: tuple[str, ...], zk: str, brokers: Brokers, output: str
) -> None:
    """Delete the offsets of GROUP for topics that none of its members subscribes to.

    Whoever subscribes to one later begins where its start_position says: without one, at its earliest record.
    """
    if not topics:
        raise UsageError("say whose offsets shall be deleted: --topic TOPIC, or TOPIC:0,1,2 for some partitions")
    scopes = [parse_scope(text) for text in topics]
    with opened(zk) as store:
        done = delete_them(store, _topics(store, brokers), group, scopes)
    failed = [each for each in done if each.error is not None]
    if failed:
        report("Encounter some partition level error, see the follow-up details:")
    elif output != JSON:
        click.echo(f"Request succeed for deleting offsets with topic {', '.join(topics)} group {group}")
    print_rows(DELETED, [_deleted_row(each, output) for each in done], output)
    if any(each.error == GROUP_SUBSCRIBED_TO_TOPIC for each in failed):
        click.echo(printable(f"stop the consumers of group {group} that subscribe to it first"), err=True)
    context.exit(FAILED if failed else 0)


def _deleted_row(each: Deletion, output: str) -> tuple[object, ...]:
    status = f"Error: {each.error}" if each.error is not None else "Successful"
    unknown = None if output == JSON else "Not Provided"
    return each.topic, unknown if each.partition is None else each.partition, status
