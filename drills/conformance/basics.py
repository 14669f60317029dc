"""Scenarios: registration, ownership, records and offsets, leaving, heartbeats."""

from __future__ import annotations

from .bench import TOPIC, Bench, Scenario
from .event_lines import ASSIGNED, STARTED, require


def registers(bench: Bench) -> None:
    """Its registration and its channel have what the coordinator needs."""
    trial = bench.consumer("c1", topics=f"{TOPIC}:2")
    bench.wait(lambda: STARTED in trial.events().names, "c1 prints startup_complete")
    bench.settled("c1")
    registration, session = bench.registration("c1")
    channel = bench.channel("c1")
    require(session != 0, "ids/c1 is not ephemeral")
    require(registration.incarnation == channel.incarnation, "ids/c1 and channel/c1 name different incarnations")
    require(dict(registration.subscription) == {TOPIC: 2}, f"the subscription is {dict(registration.subscription)}")
    require(registration.pattern == "static", f"`pattern` is {registration.pattern}, not static")
    require(registration.protocols == ("range",), f"`protocols` is {registration.protocols}, not range")
    most = round(1000 * bench.bounds["lease"]) + 1
    require(0 < registration.lease_ms <= most, f"`lease_ms` is {registration.lease_ms}, and {most} at most")
    interval = bench.scenario.max_poll_interval_ms
    require(registration.max_poll_interval_ms == interval, f"`max_poll_interval_ms` is not {interval}")


def owns(bench: Bench) -> None:
    """Each partition that it runs has its owner znode, of the session of its registration, with the thread assigned."""
    bench.consumer("c1", topics=f"{TOPIC}:3")
    shown = bench.settled("c1")
    registration, session = bench.registration("c1")
    threads = shown.state.target["c1"].threads
    thread_of = {part: thread for thread, parts in threads.items() for part in parts}
    for each in shown.partitions:
        require(each.session == session, f"the owner znode of {each.partition} is not of the session of ids/c1")
        require(each.incarnation == registration.incarnation, f"the owner of {each.partition} has another incarnation")
        wanted = thread_of[each.partition]
        require(each.thread == wanted, f"the owner of {each.partition} is thread {each.thread}, not {wanted}")


def consumes(bench: Bench) -> None:
    """It consumes each record once, in order, and commits; its offsets stand in its channel."""
    bench.produce(50)
    bench.consuming()
    running = dict(bench.channel("c1").running)
    require(running == bench.written, f"the channel has the offsets {running}, not {bench.written}")
    for part in bench.written:
        node = bench.store.get(bench.paths.offset(*part))
        require(node is not None and b'"start"' in node.data, f"the start of {part} is not recorded in offsets/")


def rebalances(bench: Bench) -> None:
    """Members that join and leave are given and give up partitions, and no record is lost or consumed twice."""
    bench.flow("c1")
    bench.flow("c1", "c2", "c3")
    bench.leave(bench.trials["c2"])
    bench.flow("c1", "c3")
    names = bench.trials["c1"].events().names
    require(names.count(ASSIGNED) >= 3, "c1 does not print partitions_assigned for each assignment")


def leaves(bench: Bench) -> None:
    """SIGTERM: it commits, leaves the group at once and ends with 0; the next owner continues at its offsets."""
    first, _ = bench.consuming()
    events = bench.leave(first)
    require(not events.held, "c1 ends, and has not printed that its partitions are revoked")
    channel = bench.channel("c1")
    require(channel.ended is not None, "c1 has left, and its channel is not ended")
    require(not channel.error, f"c1 has left, and its channel has the error {channel.error}")
    require(not channel.running, "c1 has left, and its channel still runs partitions")
    require(bench.store.get(bench.paths.id("c1")) is None, "c1 has left, and ids/c1 is there")
    for each in bench.group().partitions:
        require(each.session is None, f"c1 has left, and the owner znode of {each.partition} is there")
        wanted = bench.written[each.partition]
        require(each.offset == wanted, f"offsets/ of {each.partition} is {each.offset}, and {wanted} was committed")
    bench.flow("c2")


BASICS = (
    Scenario("registration", "registers with its subscription, strategies and lease", registers),
    Scenario("ownership", "claims each partition with an owner znode of its session and thread", owns),
    Scenario("records-and-offsets", "consumes each record once, and commits", consumes),
    Scenario("rebalance", "gives up and takes partitions as members join and leave", rebalances, partitions=6),
    Scenario("leave", "leaves at SIGTERM, and the next owner continues at its offsets", leaves),
)
