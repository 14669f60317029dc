"""Scenarios of the members of a group: registration, ownership, offsets, leaving, threads, strategies, heartbeats,
pauses, refusals, static members and wildcards; processes that are killed, suspended or cut off, taken-over names, and
coordinators that change."""

from __future__ import annotations

from functools import partial

from zk_group.coordinator.admin.control import resign

from ..testbed.commands import READY_S
from .bench import STATIC_MEMBERS, TOPIC, WILDCARDS, Bench, Scenario
from .event_lines import ASSIGNED, COMMITTED, CONSUMED, LOST, REVOKED, STARTED, Trial, names_of, require

MARGIN_S = 0.5


@partial(Scenario, "registration", "registers with its subscription, strategies and lease")
def registers(bench: Bench) -> None:
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


@partial(Scenario, "ownership", "claims each partition with an owner znode of its session and thread")
def owns(bench: Bench) -> None:
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


@partial(Scenario, "records-and-offsets", "consumes each record once, and commits")
def consumes(bench: Bench) -> None:
    """It consumes each record once, in order, and commits; its offsets stand in its channel."""
    bench.produce(50)
    bench.consuming()
    running = dict(bench.channel("c1").running)
    require(running == bench.written, f"the channel has the offsets {running}, not {bench.written}")
    for part in bench.written:
        node = bench.store.get(bench.paths.offset(*part))
        require(node is not None and b'"start"' in node.data, f"the start of {part} is not recorded in offsets/")


@partial(Scenario, "rebalance", "gives up and takes partitions as members join and leave", partitions=6)
def rebalances(bench: Bench) -> None:
    """Joining and leaving members get and give up partitions, and no record is lost or consumed twice."""
    bench.flow("c1")
    bench.flow("c1", "c2", "c3")
    bench.leave(bench.trials["c2"])
    bench.flow("c1", "c3")
    names = bench.trials["c1"].events().names
    require(names.count(ASSIGNED) >= 3, "c1 does not print partitions_assigned for each assignment")


@partial(Scenario, "leave", "leaves at SIGTERM, and the next owner continues at its offsets")
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


@partial(Scenario, "threads", "divides the partitions of several topics among its threads")
def has_threads(bench: Bench) -> None:
    """Topics with different numbers of threads: each owner znode names the assigned thread."""
    bench.topic("u")
    bench.consumer("c1", topics=f"{TOPIC}:2,u:3")
    shown = bench.settled("c1", "c2", topics=(TOPIC, "u"))
    for name in ("c1", "c2"):
        for thread, parts in shown.state.target[name].threads.items():
            owners = {each.partition: each.thread for each in shown.partitions}
            for part in parts:
                require(owners[part] == thread, f"the owner of {part} is thread {owners[part]}, not {thread}")
    bench.produce(topic="u")
    bench.flow()


@partial(
    Scenario, "cooperative", "keeps and fetches what stays its own under cooperative-sticky",
    partitions=6, long_sessions=True,
)  # fmt: skip
def cooperates(bench: Bench) -> None:
    first = bench.consumer("c1", protocols="cooperative-sticky")
    bench.flow("c1")
    bench.suspend(first)  # so that no command is applied before c2 is suspended, too
    second = bench.consumer("c2", protocols="cooperative-sticky")
    bench.wait(lambda: bench.store.get(bench.paths.id("c2")), "c2 registers")
    bench.suspend(second)
    first.process.resume()
    bench.wait(lambda: bench.commands("c2"), "a start is sent to c2")
    bench.produce()
    kept = first.events().held
    require(bool(kept), "c1 has given up all partitions, also those that it was to keep")
    bench.wait(lambda: kept <= first.events().at_end(bench.written), f"c1 consumes {names_of(kept)} meanwhile")
    second.process.resume()
    bench.settled("c1", "c2")
    moved = set(bench.channel("c2").running)
    revoked = first.events().given_up(REVOKED)
    require(revoked == moved, f"c1 has given up {names_of(revoked)}, and c2 runs {names_of(moved)}")
    bench.flow()
    bench.leave(second)
    bench.flow("c1")
    require(first.events().given_up(REVOKED) == moved, "c1 has given up partitions when c2 left, which it was to keep")


@partial(Scenario, "heartbeat", "gives signs of life while no record comes", max_poll_interval_ms=3000)
def gives_signs_of_life(bench: Bench) -> None:
    """Without records it still sets its channel, and is not evicted."""
    trial, incarnation = bench.consuming()
    path = bench.paths.channel("c1")
    node = bench.store.get(path)
    interval_s = bench.scenario.max_poll_interval_ms / 1000
    bench.stand_still(2.5 * interval_s)
    after = bench.store.get(path)
    require(bench.channel("c1").incarnation == incarnation, "c1 was evicted: it gave no sign of life")
    assert node is not None and after is not None
    changes = after.stat.version - node.stat.version
    require(changes >= 6, f"c1 has set its channel {changes} times in 2.5 max_poll_interval_ms, not every third of it")
    require(trial.events().held == bench.partitions(), "c1 has lost partitions")


@partial(Scenario, "paused-group", "goes on while its group is paused")
def goes_on_while_paused(bench: Bench) -> None:
    """While its group is paused it consumes, commits and stays; a member that joined is assigned afterwards."""
    bench.settled("c1")
    generation = bench.group().state.generation
    bench.hold_still()
    second = bench.consumer("c2")
    bench.wait(lambda: bench.store.get(bench.paths.id("c2")), "c2 registers")
    bench.flow()
    require(not second.events().held, "c2 holds unassigned partitions")
    require(bench.group().state.generation == generation, "the generation of a paused group has changed")
    bench.go_on()
    bench.flow("c1", "c2")


@partial(Scenario, "refused-member", "ends when the group refuses its strategies")
def ends_when_refused(bench: Bench) -> None:
    """Refused with `InconsistentGroupProtocol` it ends, and does not rejoin."""
    bench.settled("c1")
    second = bench.consumer("c2", protocols="round-robin")
    bench.wait(lambda: not second.process.is_running, "c2, which the group refuses, ends")
    require(second.process.wait() != 0, "c2 was refused, and ends with exit code 0")
    require(bench.store.get(bench.paths.id("c2")) is None, "c2 was refused, and is registered again")
    require(bench.channel("c2").error == "InconsistentGroupProtocol", "the channel of c2 does not name the refusal")
    bench.flow("c1")


@partial(Scenario, "static-member", "keeps its seat over a restart", needs=STATIC_MEMBERS, long_sessions=True)
def keeps_its_seat(bench: Bench) -> None:
    """A static member that restarts within its session timeout has its partitions again, in the same generation."""
    first = bench.consumer("s1", consumer="", group_instance_id="s1")
    bench.flow("s1", "c2")
    generation, running = bench.group().state.generation, set(bench.channel("s1").running)
    other = bench.trials["c2"]
    before = list(other.events().gone)
    bench.leave(first)
    require(bench.store.get(bench.paths.seat("s1")) is not None, "s1 has left, and its seat is gone")
    bench.consumer("s1", "s1-again", consumer="", group_instance_id="s1")
    bench.settled("s1", "c2")
    now = bench.group().state.generation
    require(now == generation, f"the restart of s1 is generation {now}, not {generation}")
    require(set(bench.channel("s1").running) == running, "s1 runs other partitions after its restart")
    require(other.events().gone == before, "c2 has given up partitions because s1 was restarted")
    bench.flow()


@partial(Scenario, "wildcard", "subscribes by a regular expression", needs=WILDCARDS)
def follows_a_wildcard(bench: Bench) -> None:
    """A white list: matching topics are assigned, later ones included; others are not."""
    bench.topic("u")
    trial = bench.consumer("c1", topics="", white_list="[ab].*:1")
    bench.wait(lambda: bench.store.get(bench.paths.id("c1")), "c1 registers")
    registration, _ = bench.registration("c1")
    require(registration.pattern == "white_list", f"`pattern` is {registration.pattern}, not white_list")
    bench.topic("b-1")
    bench.settled("c1", topics=("b-1",))
    bench.topic("a-1")
    bench.settled("c1", topics=("a-1", "b-1"))
    bench.produce(topic="a-1")
    bench.consumed()
    require({part.topic for part in trial.events().held} == {"a-1", "b-1"}, "c1 has partitions of other topics")


# ---- faults


@partial(Scenario, "killed", "is replaced after SIGKILL, from its committed offsets")
def is_killed(bench: Bench) -> None:
    """SIGKILL: another member has its partitions after its session, from the offsets of its channel."""
    bench.flow("c1", "c2")
    bench.kill("c1")
    bench.produce()
    bench.settled("c2")
    bench.consumed()


@partial(Scenario, "short-cut", "keeps its partitions over a cut that is shorter than its lease")
def is_cut_off_shortly(bench: Bench) -> None:
    """No reply of ZooKeeper for less than its lease: it keeps its partitions and its incarnation."""
    trial, incarnation = bench.consuming()
    bench.cut("c1", bench.bounds["session_timeout"] * 0.3)
    bench.flow()
    require(bench.channel("c1").incarnation == incarnation, "c1 has registered again after a short cut")
    require(not trial.events().gone, "c1 has given up partitions after a short cut")


@partial(Scenario, "lease", "delivers nothing after its lease while ZooKeeper answers only pings")
def obeys_its_lease(bench: Bench) -> None:
    """ZooKeeper answers only pings for more than a lease: no records after it; then the incarnation continues."""
    trial, incarnation = bench.consuming()
    seen = len(trial.batches())
    bench.mute(trial)
    # Records come only now: a consumer whose commit of earlier ones waits for a reply would deliver none in any case.
    lease_s = bench.bounds["lease"]
    bench.stand_still(lease_s + MARGIN_S)

    def is_quiet() -> None:
        bench.produce(5)
        same = len(trial.batches()) == seen
        require(same, f"c1 delivers records more than {lease_s:.2f} s after its last renewal: its lease is over")

    bench.stand_still(bench.bounds["session_timeout"] * 1.5 - lease_s - MARGIN_S, is_quiet)
    bench.join("c1")
    bench.consumed()
    require(bench.channel("c1").incarnation == incarnation, "c1 has registered again, and its session was never over")
    require(not trial.events().gone, "c1 has given up partitions, and its session was never over")


@partial(Scenario, "expiry", "registers again when its session has expired in a cut")
def outlives_its_session(bench: Bench) -> None:
    """No packet of ZooKeeper for longer than its session: it reports its lost partitions, and registers again."""
    trial, incarnation = bench.consuming()
    seen = len(trial.events().names)
    bench.cut_off("c1", READY_S)
    bench.stand_still(bench.bounds["session_timeout"] * 1.5)
    bench.produce()
    bench.join("c1")
    _require_first(bench, trial, seen, LOST, CONSUMED, COMMITTED)
    bench.settled("c1")
    require(bench.channel("c1").incarnation != incarnation, "c1 has no new incarnation after the end of its session")
    require(trial.events().given_up(LOST) == bench.partitions(), "c1 does not print partitions_lost after its session")
    bench.consumed()


@partial(Scenario, "suspended", "delivers and commits nothing after SIGSTOP has outlasted its session")
def is_suspended(bench: Bench) -> None:
    """SIGSTOP beyond the session timeout: after SIGCONT it neither delivers nor commits for its lost partitions."""
    trial, incarnation = bench.consuming()
    seen = len(trial.events().names)
    bench.suspend(trial)
    bench.flow("c2")
    bench.produce()
    trial.process.resume()
    _require_first(bench, trial, seen, LOST, CONSUMED, COMMITTED)
    bench.settled("c1", "c2")
    require(bench.channel("c1").incarnation != incarnation, "c1 has no new incarnation after the end of its session")
    bench.flow()


@partial(
    Scenario, "eviction", "commits nothing and registers again when it was evicted",
    long_sessions=True, max_poll_interval_ms=2000, repeats=True,
)  # fmt: skip
def is_evicted(bench: Bench) -> None:
    """It applies no command for max_poll_interval_ms: evicted, it commits nothing more, and registers again.

    Its lease still runs when it continues, so it may deliver records until it notices.
    """
    trial, _ = bench.consuming()
    seen = len(trial.events().names)
    bench.suspend(trial)
    bench.consumer("c2")
    bench.wait(lambda: bench.channel("c1").ended, "c1 is evicted")
    require(bench.channel("c1").error == "UnknownMemberId", "an eviction is not UnknownMemberId")
    bench.produce()
    trial.process.resume()
    _require_first(bench, trial, seen, LOST, COMMITTED)
    bench.flow("c1", "c2")


@partial(Scenario, "take-over", "ends when another process has its name")
def loses_its_name(bench: Bench) -> None:
    """Another process registers under its name: it ends, and the other one continues at its offsets."""
    first, incarnation = bench.consuming()
    bench.consumer("c1", "c1-again")
    bench.wait(lambda: not first.process.is_running, "the first process of the name ends")
    require(first.process.wait() != 0, "the first process of the name ends with exit code 0")
    bench.settled("c1")
    now = bench.channel("c1").incarnation
    require(now != incarnation, "the second process has the incarnation of the first")
    bench.flow()
    require(bench.channel("c1").incarnation == now, "the name was taken back")


@partial(Scenario, "failover", "goes on when the coordinator is killed, and obeys the next", nodes=2)
def outlives_a_coordinator(bench: Bench) -> None:
    """The coordinator is killed: members continue in the same generation, and comply with the next one."""
    bench.settled("c1", "c2")
    trials = list(bench.trials.values())
    generation, gone = bench.group().state.generation, [each.events().gone for each in trials]
    former = bench.wait(bench.elected, "a coordinator is elected")
    bench.kill(former.node)
    bench.flow()
    what = f"a coordinator is elected in an epoch above {former.epoch}"
    bench.wait(lambda: (now := bench.elected()) and now.epoch > former.epoch, what)
    bench.flow()
    require(bench.group().state.generation == generation, "the change of the coordinator is a generation")
    require([each.events().gone for each in trials] == gone, "members have given up partitions for a new coordinator")
    bench.settled("c1", "c2", "c3")
    epoch = bench.channel("c1").epoch
    require(epoch > former.epoch, "the channel of c1 does not have the epoch of the new coordinator")
    bench.flow()


@partial(
    Scenario, "failover-in-a-rebalance", "obeys the next coordinator when one goes in the midst of a rebalance",
    nodes=2, long_sessions=True,
)  # fmt: skip
def outlives_a_coordinator_in_a_rebalance(bench: Bench) -> None:
    """The coordinator changes while a stop is pending: the old command is withdrawn, the next one's is applied."""
    trial, _ = bench.consuming()
    bench.suspend(trial)
    bench.consumer("c2")
    old = bench.wait(lambda: bench.commands("c1"), "a stop is sent to c1")
    _, epoch = resign(bench.store)
    bench.wait(lambda: bench.commands("c1") - old, "the next coordinator sends its own")
    trial.process.resume()
    bench.settled("c1", "c2")
    require(bench.channel("c1").epoch > epoch, "the channel of c1 does not have the epoch of the new coordinator")
    bench.flow()


@partial(Scenario, "no-coordinator", "goes on while there is no coordinator")
def goes_on_without_a_coordinator(bench: Bench) -> None:
    """No coordinator at all for longer than a session: it consumes and commits."""
    trial, _ = bench.consuming()
    bench.kill("node-1")
    bench.stand_still(bench.bounds["session_timeout"] * 1.5, bench.flow)
    require(not trial.events().gone, "c1 has given up partitions while there was no coordinator")
    bench.start_node("node-2")
    bench.flow("c1", "c2")


def _require_first(bench: Bench, trial: Trial, seen: int, first: str, *later: str) -> None:
    """After its first `seen` events it must print `first` before any of `later`."""

    def next_event() -> str | None:
        names = trial.events().names[seen:]
        return next((name for name in names if name in (first, *later)), None)

    name = bench.wait(next_event, f"{trial.name} prints {first}")
    require(name == first, f"{trial.name} prints {name} after its incarnation was ended, and before {first}")
