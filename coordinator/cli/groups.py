"""`zk-coordinator groups` and `history`: members, offsets, lag, state and last rebalances of the groups.

The columns and messages are those of kafka-consumer-groups; this project's own follow after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from zk_group.coordinator.admin import groups as admin
from zk_group.coordinator.admin.offsets import BoundsOf, LogBounds
from zk_group.coordinator.admin.topics import usable_topics
from zk_group.coordinator.admin.verify import problems, unknown
from zk_group.coordinator.zk.errors import UsageError
from zk_group.coordinator.zk.process import cli
from zk_group.coordinator.zk.values import first_names
from zk_group.coordinator.zk.znodes.group_state import (
    CLIENT,
    COMPLETING,
    CONSUMER,
    DEAD,
    EMPTY,
    FAILED,
    PREPARING,
    Rebalance,
)
from zk_group.coordinator.zk.znodes.partitions import TopicPartition, by_topic
from zk_group.coordinator.zk.znodes.paths import COORDINATOR, GROUPS, TURN_TIMES, Brokers, RegionPaths
from zk_group.coordinator.zk.znodes.records import CoordinatorRecord, Registration, Topic, TurnTimes
from zk_group.coordinator.zk.znodes.regions import Region

from .watching import UNHEALTHY, Shot, at, error_note, print_below, printed, show, watch_options

if TYPE_CHECKING:
    from zk_group.consumer.logs.base import Log

Command = TypeVar("Command", bound=Callable[..., Any])

OpenLog = Callable[[str, Brokers], "Log"]
"""Opens the log of a command's options, by `--zk` and `--brokers-path`. It raises UsageError for a bad name."""

MOST_LISTED = 100
"""Findings of one kind that a command prints, before it only counts them."""
LIST = ("GROUP", "STATE", "GENERATION", "STRATEGY", "MEMBERS", "PARTITIONS", "TURN-MS-PER-S", "REASON")
OFFSETS = (
    *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
    *("CONSUMER-ID", "HOST", "CLIENT-ID", "OWNER"),
)
NO_LAG = "LOG-END-OFFSET and LAG are not known: add --log-dir with the group's log, or set ZK_GROUP_LOG_DIR"
STATE = (
    *("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"),
    *("ASSIGNMENT", "PROTOCOL-TYPE", "LEADER", "ASK", "PENDING-LEADER", "PENDING-ASK", "ATTEMPT"),
)
OF_A_REGION = ("REGION", "READY-RESET", "REGION-RESET")
CLIENT_SIDE = ("PROTOCOLS", "METADATA-BYTES", "LEADER")
VERBOSE = ("ASSIGNMENT", "SUBSCRIPTION", "INCARNATION", "COMMANDS", "ENDED")
CHANGING = ("create", "delete", "delete-offsets", "reset-offsets", "lift-mark", "remove-members")
HISTORY = (
    *("GENERATION", "EPOCH", "STARTED", "TRIGGER", "JOINED", "LEFT", "MOVED", "LAST-STOP-MS", "LAST-START-MS"),
    *("STANDSTILL-MS", "ASSIGNMENT-MS", "ATTEMPTS", "RESULT"),
)
EVICTED = ("GENERATION", "EVICTED", "SINCE", "WHY")
HISTORY_KEYS = (
    *("generation", "epoch", "trigger", "started_ms", "joined", "left", "moved", "to_last_stop_ms", "to_last_start_ms"),
    *("standstill_ms", "stopped_ms", "finished_ms", "replaced_by", "assignment_ms", "attempts"),
)
"""The fields in JSON, before `evicted`."""


def source_options(is_needed: bool) -> Callable[[Command], Command]:
    """`--log-dir`, `--bootstrap-servers` and `--kafka`, given to the command as `source`, an `OpenLog`, or None.

    :param is_needed: whether the command requires the log.
    """
    log_dir = cli.env_option(
        "--log-dir",
        required=is_needed,
        help="The log, for its end and the lag: the embedded log's folder, kafka: or kafka://HOST:PORT.",
    )

    def with_source(command: Command) -> Command:
        @wraps(command)
        def run(
            *args: Any, log_dir: str | None, bootstrap_servers: str, kafka: Mapping[str, str] | None, **rest: Any
        ) -> Any:
            def opened(zk: str, brokers: Brokers) -> Log:
                from zk_group.consumer.logs import KafkaPlace, open_log  # loads pyarrow, needed only here

                place = KafkaPlace(zk, brokers.root, bootstrap_servers, kafka or {}, cli.command_access())
                return open_log(log_dir or "", place)

            return command(*args, source=opened if log_dir or is_needed else None, **rest)

        return cast(Command, run)

    return lambda command: log_dir(cli.bootstrap_option(cli.kafka_option(with_source(command))))


def bounds_in(source: Log) -> BoundsOf:
    """Earliest and latest offsets of a log's partitions; 0 for those without records."""
    from zk_group.consumer.logs.base import UnknownTopic

    def bounds_of(topic: Topic, partition: int, timestamp_ms: int | None) -> LogBounds:
        key = (topic.name, topic.id, partition)
        try:
            latest = source.latest(*key)  # read first: later records are after it
            at = min(latest, source.offset_for_timestamp(*key, timestamp_ms)) if timestamp_ms is not None else None
            return source.earliest(*key), latest, at
        except UnknownTopic:
            return 0, 0, None

    return bounds_of


Where = tuple[str, int, str | None]
"""Topic, partition, topic id."""
PLACES = dict.fromkeys(CHANGING, f"{__package__}.groups_changes") | {"export-offsets": f"{__package__}.topics"}


@click.group(cls=cli.Cli, places=PLACES)
def groups() -> None:
    """The consumer groups."""


@groups.command("list")
@click.option(
    "--state",
    "states",
    is_flag=False,
    flag_value="",
    default="",
    metavar="[STATE,...]",
    callback=lambda context, option, text: admin.parse_states(text) if text.strip(", ") else None,
    help="Only groups in one of these states, case-insensitive.",
)
@watch_options
@printed()
def list_(reading: admin.Reading, states: frozenset[str] | None) -> Shot:
    """List all groups with their state."""
    found = [admin.read_group(reading, name) for name in reading.names(GROUPS)]
    kept = [group for group in found if states is None or group.state.state in states]
    times = reading.parsed(TURN_TIMES, TurnTimes.parse)
    return Shot(LIST, [list_row(group, times) for group in kept], notes_of(reading))


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="All groups.")
@click.option("--offsets", is_flag=True, help="Partitions with offsets, lag and owner (the default).")
@click.option("--members", is_flag=True, help="The consumers instead of the partitions.")
@click.option("--verbose", is_flag=True, help="With --members: also partitions and subscription of each.")
@click.option("--state", is_flag=True, help="The state of the group.")
@source_options(is_needed=False)
@watch_options
@cli.zk_option
@cli.brokers_option
@cli.output_option
def describe(
    names: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    verbose: bool,
    state: bool,
    source: OpenLog | None,
    watch: float | None,
    times: int | None,
    zk: str,
    brokers: Brokers,
    output: str,
) -> None:
    """Show the partitions of GROUP with current offset, log end, lag and owner; or its members, or its state.

    LOG-END-OFFSET and LAG need --log-dir. OWNER is the consumer's thread; CONSUMER-ID and CLIENT-ID are the same name.
    """
    if offsets + members + state > 1:
        raise UsageError("give at most one of --offsets, --members and --state")
    if verbose and not members:
        raise UsageError("--verbose requires --members")
    log = source(zk, brokers) if source is not None and not members and not state else None
    with cli.opened(zk) as store:

        def take() -> Shot:
            reading = admin.Reading(store)
            shown = [admin.existing_group(reading, name) for name in admin.chosen_groups(reading, names, all_groups)]
            if members:
                columns, rows = _members(shown, verbose)
            elif state:
                columns, rows = _states(reading, shown)
            else:
                topics = admin.topics_of(reading, brokers, shown)
                shown = [group.within(topics) for group in shown]
                ends = _log_ends(log, shown, topics)
                columns, rows = OFFSETS, [row for group in shown for row in _offset_rows(group, ends)]
            messages = [message for group in shown if (message := state_message(group)) is not None]
            lacks_lag = log is None and columns == OFFSETS and rows and output != cli.JSON
            return Shot(columns, rows, [*messages, *([NO_LAG] if lacks_lag else []), *notes_of(reading)])

        show(take, output, watch, times)


@groups.command()
@click.argument("group")
@printed(cli.brokers_option)
def verify(reading: admin.Reading, group: str, brokers: Brokers) -> Shot:
    """Check that every subscribed partition of GROUP has a live owner that subscribed to it; exits 5 when not.

    Prints one line for each problem, with the coordinator's reason for a partition that it has left out.
    """
    shown = admin.existing_group(reading, group)
    topics = usable_topics(reading, brokers)
    wrong = [*unknown(group, reading.problems), *problems(shown, topics)]
    lines = [*map(cli.printable, wrong), f"Rebalance operation {'failed' if wrong else 'successful'} !"]
    document = {"group": group, "healthy": not wrong, "problems": [asdict(each) for each in wrong]}
    notes = [*filter(None, [state_message(shown)]), *notes_of(reading)]
    code = UNHEALTHY if wrong else 0
    return Shot(notes=notes, document=document, text=lambda: click.echo("\n".join(lines)), code=code)


def list_row(group: admin.ShownGroup, times: TurnTimes | None) -> tuple[object, ...]:
    """A group's row in `groups list` and `status`."""
    cost = times.groups.get(group.group, 0) if times is not None else None
    state = group.state
    partitions = sum(len(target.partitions) for target in state.target.values())
    members = len(_members_of(group))
    strategy = state.strategy or None
    return (group.group, state.state, state.generation, strategy, members, partitions, cost, state.reason)


def state_message(group: admin.ShownGroup) -> str | None:
    """The message for a group without members, or in a rebalance."""
    name, state = group.group, group.state
    if state.state in (EMPTY, DEAD):
        return f"Consumer group '{name}' has no active members."
    if state.state in (PREPARING, COMPLETING):
        return f"Warning: Consumer group '{name}' is rebalancing."
    if state.state == FAILED:
        return f"Warning: Consumer group '{name}' could not be rebalanced: {state.reason or 'no reason is given'}"
    return None


def notes_of(reading: admin.Reading) -> list[str]:
    """The unreadable znodes, for stderr."""
    return [*map(error_note, admin.unreadable(reading.problems, MOST_LISTED))]


def _members_of(group: admin.ShownGroup) -> list[admin.ShownMember]:
    """Present members, and static members away from a kept seat."""
    return [member for member in group.members if member.wants is not None]


# ---- members and state


def _members(found: Sequence[admin.ShownGroup], verbose: bool) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The columns, and a row for each member; the largest shares first."""
    registrations = [member.wants for group in found for member in group.members if member.wants]
    has_static, has_client = any(one.instance_id for one in registrations), any(one.client for one in registrations)
    instance = ("GROUP-INSTANCE-ID",) if has_static else ()
    more = (*(CLIENT_SIDE if has_client else ()), *(VERBOSE if verbose else ()))
    columns = ("GROUP", "CONSUMER-ID", *instance, "HOST", "CLIENT-ID", "#PARTITIONS", *more)
    rows: list[tuple[object, ...]] = []
    for group in found:
        leader = group.leader
        has = {member.consumer: _has(group, member) for member in group.members}
        for member in sorted(_members_of(group), key=lambda m: (-len(has[m.consumer]), m.consumer)):
            wants, partitions = member.wants, has[member.consumer]
            static = ((wants.instance_id or None) if wants else None,) if has_static else ()
            host = wants.host if wants else None
            row = (group.group, member.consumer, *static, host, member.consumer, len(partitions))
            offer = _offer(member, leader) if has_client else ()
            rows.append((*row, *offer, *(_details(member, partitions) if verbose else ())))
    return columns, rows


def _offer(member: admin.ShownMember, leader: str | None) -> tuple[object, ...]:
    """A member's protocols of both sides, its metadata's size, and whether it leads."""
    wants = member.wants
    size = wants.client.metadata_bytes if wants is not None and wants.client is not None else None
    return offered(wants) if wants is not None else None, size, "leader" if member.consumer == leader else None


def offered(registration: Registration) -> str:
    """The protocols of a member by side, the preferred side first: `client: lag, sticky; coordinator: range`."""
    client = registration.client
    here = [] if registration.pattern == CLIENT else [f"coordinator: {', '.join(registration.protocols)}"]
    there = [f"client: {', '.join(client.protocols)}"] if client is not None else []
    is_first = client is not None and client.is_preferred
    return "; ".join([*there, *here] if is_first else [*here, *there])


def _details(member: admin.ShownMember, partitions: Iterable[TopicPartition]) -> tuple[object, ...]:
    registration, channel = member.wants, member.channel
    return (
        assignment_text(partitions),
        ",".join(f"{t}:{n}" for t, n in sorted(registration.subscription.items())) if registration else None,
        channel.incarnation[:8] if channel and channel.incarnation else None,
        len(member.commands),
        channel.ended if channel else None,
    )


def _has(group: admin.ShownGroup, member: admin.ShownMember) -> list[TopicPartition]:
    """The partitions that a member runs, or those kept for a member away from its seat."""
    target = group.state.target.get(member.consumer)
    if member.registration is None and member.seat is not None:
        return sorted(target.partitions) if target is not None else []
    return list(member.channel.running) if member.channel is not None else []


def assignment_text(partitions: Iterable[TopicPartition]) -> str | None:
    """`topic1(0,1), topic2(2)`; None when empty."""
    topics = by_topic(partitions)
    return ", ".join(f"{topic}({','.join(map(str, numbers))})" for topic, numbers in topics.items()) or None


def _states(
    reading: admin.Reading, found: Sequence[admin.ShownGroup]
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The columns, and a row for each group; with columns for regions if a group is in one."""
    elected = reading.parsed(COORDINATOR, CoordinatorRecord.parse)
    coordinator = f"{elected.host} ({elected.node})" if elected is not None else None
    has_region = any(g.state.region is not None for g in found)
    rows: list[tuple[object, ...]] = []
    for g in found:
        row = (g.group, coordinator, g.state.strategy or None, g.state.state, len(_members_of(g)), *_assignment(g))
        rows.append((*row, *(_region(reading, g) if has_region else ())))
    return (*STATE, *(OF_A_REGION if has_region else ())), rows


def _region(reading: admin.Reading, group: admin.ShownGroup) -> tuple[object, ...]:
    """The region's name, the last reset that all members of the group have restored, and the current reset."""
    bound = group.state.region
    if bound is None:
        return None, None, None
    region = reading.parsed(RegionPaths(bound.name).root, Region.parse)
    return bound.name, bound.ready, region.reset if region is not None else None


def _assignment(group: admin.ShownGroup) -> tuple[object, ...]:
    """The assigning side, its protocol, and under client-side assignment the adopted and the pending request."""
    client, pending = group.state.client, group.pending
    side = ("client", client.protocol_type) if client is not None else ("coordinator", CONSUMER)
    both = group.adopted, pending
    asks = [(one.ask.leader if one.ask else None, one.name) if one else (None, None) for one in both]
    return (*side, *asks[0], *asks[1], pending.ask.attempt if pending is not None and pending.ask is not None else None)


# ---- offsets


def _offset_rows(group: admin.ShownGroup, ends: Mapping[Where, int]) -> Iterator[tuple[object, ...]]:
    """A row for each partition: the largest shares first, the unassigned ones last."""
    hosts = {member.consumer: member.registration.host for member in group.members if member.registration}
    for consumer, partitions in admin.by_holder(group).items():
        holder = (consumer, hosts.get(consumer or ""), consumer)
        if not partitions:
            yield (group.group, None, None, None, None, None, *holder, None)
        for shown in partitions:
            end = ends.get((*shown.partition, shown.topic_id))
            yield (group.group, *shown.partition, shown.offset, end, shown.lag(end), *holder, shown.thread)


def _log_ends(
    source: Log | None, groups: Iterable[admin.ShownGroup], topics: Mapping[str, Topic | None]
) -> dict[Where, int]:
    """Partition and topic id -> the end of the log, of all groups at once; failures are reported and left out.

    A topic that the log does not know has no record yet, unless it is deleted or a group has read some of it.
    """
    if source is None:
        return {}
    from zk_group.consumer.logs.base import TopicIdPartition, UnknownTopic

    shown = [partition for group in groups for partition in group.partitions]
    places = {
        TopicIdPartition(s.partition.topic, s.topic_id, s.partition.partition) for s in shown if s.topic_id is not None
    }
    begun = {(*s.partition, s.topic_id) for s in shown if s.offset}
    ends: dict[Where, int] = {}
    for place, end in source.latest_of(sorted(places)).items():
        where = (place.topic, place.partition, place.topic_id)
        if isinstance(end, int):
            ends[where] = end
        elif not isinstance(end, UnknownTopic):
            cli.report(end)
        elif topics.get(place.topic) is not None and where not in begun:
            ends[where] = 0
    return ends


# ---- history


@click.command()
@click.argument("group")
@printed()
def history(reading: admin.Reading, group: str) -> Shot:
    """Show the last rebalances of GROUP, the newest last.

    LAST-STOP-MS and LAST-START-MS count from the start of the rebalance to the last acknowledged stop and start.
    STANDSTILL-MS is the longest downtime of a partition, at most: to the last start, from the first stop, or from the
    last activity of a member that died, left or was evicted; across rebalances that replaced each other. `-` without
    downtime.

    Below the table: the reason of each eviction, and SINCE when: the member's last activity, or the first command that
    it did not carry out.

    Under client-side assignment ASSIGNMENT-MS counts from the assignment request to its adoption, and ATTEMPTS is 1
    plus the assignments that failed before it.
    """
    admin.checked_group(reading.store, group)
    rebalances = admin.read_history(reading, group)
    document: list[dict[str, object]] = [{key: getattr(each, key) for key in HISTORY_KEYS} for each in rebalances]
    for own, each in zip(document, rebalances, strict=True):
        own["evicted"] = [one.to_json() for one in each.evicted]
    pairs = [(record.generation, each) for record in rebalances for each in record.evicted]
    evicted = [(number, one.member, at(one.since_ms) if one.since_ms else None, one.reason) for number, one in pairs]
    rows = [_row(record) for record in rebalances]
    return Shot(HISTORY, rows, notes_of(reading), document, lambda: print_below("Evicted", EVICTED, evicted))


def _row(record: Rebalance) -> tuple[object, ...]:
    joined, left = first_names(record.joined) or None, first_names(record.left) or None
    result = "finished" if record.finished_ms is not None else "in progress"
    if record.replaced_by is not None:
        result = f"replaced by {record.replaced_by}"
    return (
        *(record.generation, record.epoch, at(record.started_ms), record.trigger, joined, left, record.moved),
        *(record.to_last_stop_ms, record.to_last_start_ms, record.standstill_ms),
        *(record.assignment_ms, record.attempts, result),
    )
