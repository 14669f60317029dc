"""`zk-coordinator groups`: who consumes what, how far, and whether it is as it should be.

The columns and messages are those of kafka-consumer-groups; what this project knows besides stands after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from coordinator.groups import (
    Reading,
    ShownGroup,
    ShownMember,
    by_holder,
    chosen_groups,
    existing_group,
    group_names,
    parse_states,
    read_group,
)
from coordinator.topics import list_topics
from coordinator.verify import problems
from coordinator.zk.errors import UsageError
from coordinator.zk.partitions import TopicPartition, by_topic
from coordinator.zk.paths import COORDINATOR, Brokers, RegionPaths
from coordinator.zk.records import CoordinatorRecord, Registration
from coordinator.zk.regions import Region
from coordinator.zk.state import COMPLETING, DEAD, EMPTY, FAILED, PREPARING
from coordinator.zk.sync import CLIENT, CONSUMER, Ask

from .common import (
    JSON,
    UNHEALTHY,
    Cli,
    brokers_option,
    opened,
    output_option,
    print_json,
    printable,
    report,
    zk_option,
)
from .source import opened_source, source_options
from .watching import Shot, show, watch_options

if TYPE_CHECKING:
    from consumer.logs import Log

LIST = ("GROUP", "STATE", "GENERATION", "STRATEGY", "MEMBERS", "PARTITIONS", "REASON")
OFFSETS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
    "OWNER",
)
STATE = (
    "GROUP",
    "COORDINATOR (ID)",
    "ASSIGNMENT-STRATEGY",
    "STATE",
    "#MEMBERS",
    "ASSIGNMENT",
    "PROTOCOL-TYPE",
    "LEADER",
    "ASK",
    "PENDING-LEADER",
    "PENDING-ASK",
    "ATTEMPT",
)
OF_A_REGION = ("REGION", "READY-RESET", "REGION-RESET")
CLIENT_SIDE = ("PROTOCOLS", "METADATA-BYTES", "LEADER")
VERBOSE = ("ASSIGNMENT", "SUBSCRIPTION", "INCARNATION", "COMMANDS", "ENDED")


Where = tuple[str, int, str | None]
"""Topic, partition, topic id."""

CHANGES = f"{__package__}.groups_"
PLACES = {
    "delete": f"{CHANGES}delete",
    "delete-offsets": f"{CHANGES}offsets",
    "export-offsets": f"{CHANGES}export",
    "reset-offsets": f"{CHANGES}offsets",
    "remove-members": f"{CHANGES}remove",
}


@click.group(cls=Cli, places=PLACES)
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
    help="Only groups in one of these states, in upper or lower case.",
)
@watch_options
@zk_option
@output_option
def list_(states: str, watch: float | None, times: int | None, zk: str, output: str) -> None:
    """List all groups with their state."""
    wanted = parse_states(states)
    is_every = not states.strip(", ")
    with opened(zk) as store:

        def take() -> Shot:
            reading = Reading(store)
            found = [read_group(reading, name) for name in group_names(reading)]
            kept = [group for group in found if is_every or group.state.state in wanted]
            return Shot(LIST, [list_row(group) for group in kept], notes_of(reading))

        show(take, output, watch, times)


@groups.command()
@click.argument("names", metavar="GROUP...", nargs=-1)
@click.option("--all-groups", is_flag=True, help="Every group.")
@click.option("--offsets", is_flag=True, help="Each partition with its offsets, lag and owner (the default).")
@click.option("--members", is_flag=True, help="The consumers instead of the partitions.")
@click.option("--verbose", is_flag=True, help="With --members: also which partitions each has, and what it subscribed.")
@click.option("--state", is_flag=True, help="The state of the group.")
@source_options(is_needed=False)
@watch_options
@zk_option
@brokers_option
@output_option
def describe(
    names: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    verbose: bool,
    state: bool,
    log_dir: str | None,
    bootstrap_servers: str,
    kafka: dict[str, str] | None,
    watch: float | None,
    times: int | None,
    zk: str,
    brokers: Brokers,
    output: str,
) -> None:
    """Show each partition of GROUP with its current offset, log end, lag, and who has it; or its members, or its state.

    LOG-END-OFFSET and LAG need --log-dir. OWNER is the consumer's thread; a consumer's name is its id and its client's.
    """
    if offsets + members + state > 1:
        raise UsageError("describe shows one thing: give at most one of --offsets, --members and --state")
    if verbose and not members:
        raise UsageError("--verbose goes with --members")
    source = None
    if log_dir and not members and not state:
        source = opened_source(log_dir, zk, brokers, bootstrap_servers, kafka)
    with opened(zk) as store:

        def take() -> Shot:
            reading = Reading(store)
            found = [existing_group(reading, name) for name in chosen_groups(reading, names, all_groups)]
            if members:
                columns, rows = _members(found, verbose)
            elif state:
                columns, rows = _states(reading, found)
            else:
                ends = _log_ends(source, found)
                columns, rows = OFFSETS, [row for group in found for row in _offset_rows(group, ends)]
            said = [message for group in found if (message := state_message(group)) is not None]
            return Shot(columns, rows, [*said, *notes_of(reading)])

        show(take, output, watch, times)


@groups.command()
@click.argument("group")
@zk_option
@brokers_option
@output_option
@click.pass_context
def verify(context: click.Context, group: str, zk: str, brokers: Brokers, output: str) -> None:
    """Check that every partition that GROUP subscribes to has a live owner who subscribed to it; exit 5 when not.

    Says what is wrong, one line each, with the coordinator's reason for whatever it has left out.
    """
    with opened(zk) as store:
        reading = Reading(store)
        found = existing_group(reading, group)
        topics = list_topics(store, brokers)
    reading.problems.update({brokers.topic(each.name): each.error for each in topics if each.error})
    wrong = problems(found, {each.name: each.topic for each in topics if each.topic is not None})
    if output == JSON:
        told = [{"what": each.what, "why": each.why} for each in wrong]
        print_json({"group": group, "healthy": not wrong, "problems": told})
    else:
        for each in wrong:
            click.echo(printable(each))
        click.echo(f"Rebalance operation {'failed' if wrong else 'successful'} !")
    if (message := state_message(found)) is not None:
        click.echo(message, err=True)
    tell_problems(reading.problems)
    context.exit(UNHEALTHY if wrong else 0)


def list_row(group: ShownGroup) -> tuple[object, ...]:
    """A group as `groups list` and `status` show it."""
    state = group.state
    partitions = sum(len(target.partitions) for target in state.target.values())
    members = len(_members_of(group))
    return (group.group, state.state, state.generation, state.strategy or None, members, partitions, state.reason)


def tell_problems(problems: dict[str, str]) -> None:
    """Say on stderr what could not be read."""
    for path, problem in sorted(problems.items()):
        report(problem if path in problem else f"{path}: {problem}")


def state_message(group: ShownGroup) -> str | None:
    """What is said besides of a group that has no members, or is being rebalanced."""
    name, state = group.group, group.state
    if state.state in (EMPTY, DEAD):
        return f"Consumer group '{name}' has no active members."
    if state.state in (PREPARING, COMPLETING):
        return f"Warning: Consumer group '{name}' is rebalancing."
    if state.state == FAILED:
        return f"Warning: Consumer group '{name}' could not be rebalanced: {state.reason or 'no reason is given'}"
    return None


def notes_of(reading: Reading) -> list[str]:
    """What could not be read, as `tell_problems` says it."""
    found = sorted(reading.problems.items())
    return [f"error: {problem if path in problem else f'{path}: {problem}'}" for path, problem in found]


def _members_of(group: ShownGroup) -> list[ShownMember]:
    """Those that are there, and static ones that are away from a seat that is kept for them."""
    return [member for member in group.members if member.wants is not None]


# ---- members and state


def _members(found: Sequence[ShownGroup], verbose: bool) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The columns, and a row for each member; those with most partitions first."""
    wanted = [member.wants for group in found for member in group.members if member.wants]
    has_static, has_client = any(one.instance_id for one in wanted), any(one.client for one in wanted)
    instance = ("GROUP-INSTANCE-ID",) if has_static else ()
    more = (*(CLIENT_SIDE if has_client else ()), *(VERBOSE if verbose else ()))
    columns = ("GROUP", "CONSUMER-ID", *instance, "HOST", "CLIENT-ID", "#PARTITIONS", *more)
    rows: list[tuple[object, ...]] = []
    for group in found:
        has = {member.consumer: _has(group, member) for member in group.members}
        for member in sorted(_members_of(group), key=lambda m: (-len(has[m.consumer]), m.consumer)):
            wants, partitions = member.wants, has[member.consumer]
            static = ((wants.instance_id or None) if wants else None,) if has_static else ()
            host = wants.host if wants else None
            row = (group.group, member.consumer, *static, host, member.consumer, len(partitions))
            offer = _offer(group, member) if has_client else ()
            rows.append((*row, *offer, *(_details(member, partitions) if verbose else ())))
    return columns, rows


def _offer(group: ShownGroup, member: ShownMember) -> tuple[object, ...]:
    """What a member offers on which side, its metadata's size, and whether it leads."""
    client = member.wants.client if member.wants is not None else None
    adopted = group.adopted.ask if group.adopted is not None else None
    is_leader = adopted is not None and adopted.leader == member.consumer and _is_as_asked(adopted, member)
    return (
        offered(member.wants) if member.wants is not None else None,
        client.metadata_bytes if client is not None else None,
        "leader" if is_leader else None,
    )


def _is_as_asked(ask: Ask, member: ShownMember) -> bool:
    """Whether a member is in the incarnation that the ask names; a seat outlives incarnations."""
    known = ask.members.get(member.consumer)
    life = member.wants.incarnation if member.wants is not None else ""
    return known is not None and (known.identity.startswith("seat-") or known.identity == life)


def offered(registration: Registration) -> str:
    """The protocols of a member by side, the preferred side first: `client: lag, sticky; coordinator: range`."""
    client = registration.client
    here = [] if registration.pattern == CLIENT else [f"coordinator: {', '.join(registration.protocols)}"]
    there = [f"client: {', '.join(client.protocols)}"] if client is not None else []
    is_first = client is not None and client.is_preferred
    return "; ".join([*there, *here] if is_first else [*here, *there])


def _details(member: ShownMember, partitions: Iterable[TopicPartition]) -> tuple[object, ...]:
    registration, channel = member.wants, member.channel
    return (
        assignment_text(partitions),
        ",".join(f"{t}:{n}" for t, n in sorted(registration.subscription.items())) if registration else None,
        channel.incarnation[:8] if channel and channel.incarnation else None,
        len(member.commands),
        channel.ended if channel else None,
    )


def _has(group: ShownGroup, member: ShownMember) -> list[TopicPartition]:
    """What a member runs; what waits for one that is away from its seat."""
    target = group.state.target.get(member.consumer)
    if member.registration is None and member.seat is not None:
        return sorted(target.partitions) if target is not None else []
    return list(member.channel.running) if member.channel is not None else []


def assignment_text(partitions: Iterable[TopicPartition]) -> str | None:
    """`topic1(0,1), topic2(2)`; None for nothing."""
    found = by_topic(partitions)
    return ", ".join(f"{topic}({','.join(map(str, numbers))})" for topic, numbers in found.items()) or None


def _states(reading: Reading, found: Sequence[ShownGroup]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The columns, and a row for each group; of their consistent regions where one is in any."""
    elected = reading.parsed(COORDINATOR, lambda p, n: CoordinatorRecord.parse(p, n.data))
    who = f"{elected.host} ({elected.node})" if elected is not None else None
    has_region = any(g.state.region is not None for g in found)
    rows: list[tuple[object, ...]] = []
    for g in found:
        row = (g.group, who, g.state.strategy or None, g.state.state, len(_members_of(g)), *_assignment(g))
        rows.append((*row, *(_region(reading, g) if has_region else ())))
    return (*STATE, *(OF_A_REGION if has_region else ())), rows


def _region(reading: Reading, group: ShownGroup) -> tuple[object, ...]:
    """Its name, the reset of which all members of the group have their state back, and the reset that it is in."""
    bound = group.state.region
    if bound is None:
        return None, None, None
    region = reading.parsed(RegionPaths(bound.name).root, lambda p, n: Region.parse(p, n.data))
    return bound.name, bound.ready, region.reset if region is not None else None


def _assignment(group: ShownGroup) -> tuple[object, ...]:
    """Who assigns, what, and under client-side assignment by which ask; the ask that waits for its answer."""
    client, adopted, pending = group.state.client, group.adopted, group.pending
    asked = pending.ask if pending is not None else None
    return (
        "client" if client is not None else "coordinator",
        client.protocol_type if client is not None else CONSUMER,
        adopted.ask.leader if adopted is not None and adopted.ask is not None else None,
        adopted.name if adopted is not None else None,
        asked.leader if asked is not None else None,
        pending.name if pending is not None else None,
        asked.attempt if asked is not None else None,
    )


# ---- offsets


def _offset_rows(group: ShownGroup, ends: Mapping[Where, int]) -> Iterator[tuple[object, ...]]:
    """A row for each partition: of those who have most first, and at the end what nobody has."""
    hosts = {member.consumer: member.registration.host for member in group.members if member.registration}
    for consumer, partitions in by_holder(group).items():
        who = (consumer, hosts.get(consumer or ""), consumer)
        if not partitions:
            yield (group.group, None, None, None, None, None, *who, None)
        for shown in partitions:
            end = ends.get((*shown.partition, shown.topic_id))
            lag = end - shown.offset if end is not None and shown.offset is not None else None
            yield (group.group, *shown.partition, shown.offset, end, lag, *who, shown.thread)


def _log_ends(source: Log | None, groups: Iterable[ShownGroup]) -> dict[Where, int]:
    """Partition and topic id -> the end of the log, of all groups at once; what has none is said, and left out."""
    if source is None:
        return {}
    from consumer.logs import Place, UnknownTopic, ends_of

    shown = [partition for group in groups for partition in group.partitions]
    places = {Place(s.partition.topic, s.topic_id, s.partition.partition) for s in shown if s.topic_id is not None}
    found: dict[Where, int] = {}
    for place, end in ends_of(source, sorted(places)).items():
        if isinstance(end, int | UnknownTopic):  # nothing was ever written to one that is not known
            found[place.topic, place.partition, place.topic_id] = end if isinstance(end, int) else 0
        else:
            report(end)
    return found
